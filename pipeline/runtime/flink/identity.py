"""Signatures in the Flink job: records are checked, verdicts are signed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tocsin.pipeline.identity.signed import SignatureConfig, SignedRecords
from tocsin.pipeline.runtime.flink.outputs import Output
from tocsin.schemas.credential_store import CredentialStore
from tocsin.schemas.records import Record
from tocsin.schemas.signatures import SIGNATURE_HEADER, cut

if TYPE_CHECKING:
    from tocsin.pipeline.identity.verdict_signatures import VerdictSigner


@dataclass(frozen=True, slots=True)
class StreamIdentity:
    """Checks signatures of records and signs verdicts, as far as configured.

    Attributes:
        guard: checks the signatures of records, None = they need none.
        signer: signs verdicts, None = they are not signed.
    """

    guard: SignedRecords | None = None
    signer: VerdictSigner | None = None

    @classmethod
    def of_config(cls, config: SignatureConfig, now_ns: int) -> StreamIdentity:
        """Load the key files that the settings name.

        Raises:
            CredentialError: a file cannot be used.
        """
        guard = SignedRecords.of_config(config)
        if not config.signing_key:
            return cls(guard)
        from tocsin.pipeline.identity.verdict_signatures import VerdictSigner

        return cls(guard, VerdictSigner.of_file(CredentialStore(Path(config.signing_key)), now_ns))

    def checked(self, record: Record, data: bytes) -> bytes:
        """Check a record's signature and return its bytes without it; these bytes decide order and duplicates.

        Raises:
            IdentityError: signatures are required, and this record's is missing, wrong, or not allowed for this record.
        """
        return data if self.guard is None else cut(data, self.guard.check(record, data))

    def signed(self, output: Output) -> Output:
        """Return a verdict's message with a signature header, if a key is configured."""
        if self.signer is None:
            return output
        return output._replace(headers={**output.headers, SIGNATURE_HEADER: self.signer.header(output.value)})
