"""The keys with which a cluster on one machine signs its verdicts, and with which its consumer checks them."""

from __future__ import annotations

import time
from pathlib import Path

from tocsin.schemas.credential_store import read_credentials, write_credentials


def engine_keys(folder: Path) -> tuple[Path, Path]:
    """Return the files of the engine's private key and of its public key; they are created once, with mode 0600.

    Raises:
        CredentialError: the files cannot be read or written.
    """
    from tocsin.pipeline.identity.message_signatures import public_half
    from tocsin.pipeline.identity.verdict_signatures import new_engine_key

    private, public = folder / "engine.json", folder / "verdicts.json"
    if not private.exists():
        write_credentials(private, (new_engine_key("cluster", time.time_ns()),))
    write_credentials(public, tuple(map(public_half, read_credentials(private))))
    return private, public
