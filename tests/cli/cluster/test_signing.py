"""A cluster's own keys: made once, private, and the consumer gets the public half."""

from __future__ import annotations

import stat
from pathlib import Path

from tocsin.cli.cluster.signing import engine_keys
from tocsin.pipeline.identity.verdict_signatures import VerdictChecker, VerdictSigner
from tocsin.schemas.credential_store import CredentialStore, read_credentials


def test_they_are_made_once_and_fit_each_other(tmp_path: Path) -> None:
    private, public = engine_keys(tmp_path / "keys")
    assert engine_keys(tmp_path / "keys") == (private, public)
    (key,) = read_credentials(private)
    (half,) = read_credentials(public)
    assert (half.key_id, half.secret) == (key.key_id, b"")
    assert {stat.S_IMODE(path.stat().st_mode) for path in (private, public)} == {0o600}
    header = VerdictSigner.of_file(CredentialStore(private), key.created_ns).header(b"v")
    assert VerdictChecker((half,)).check(b"v", header, key.created_ns) == key.key_id
