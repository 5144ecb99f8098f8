"""Signatures inside a record, which prove its sender where no connection does.

On Kafka a record carries no principal, so its sender signs it. The signature is the record's **last section**
(``_wire``). Readers that do not know it skip it, and the record means the same with and without it. It covers the
header (except checksum and length, which change with the section) and all other sections.

It is a message authentication code over the host's secret (keyed BLAKE2b, 128 bits). An engine checks two thousand of
them a second in one percent of a core, which a public-key signature would not allow (docs/adr/0024). A replay is
useless: cluster, job, host and time are signed, and the same bytes at the same place are a duplicate.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import zlib
from typing import Final, NamedTuple

from tocsin.schemas.credentials import Credential
from tocsin.schemas.errors import DecodeError, FieldError
from tocsin.schemas.wire._format import MAGIC, MAX_RECORD_BYTES, NAMES_AT

SIGNATURE_SECTION: Final = 0xFFFF
SIGNATURE_HEADER: Final = "signature"
"""Kafka header of a verdict's message: key id, and Ed25519 signature of its value."""
CODE_BYTES: Final = 16
_CRC_AT, _LENGTH_END = 12, 20
_SECTION: Final = struct.Struct("<HI")
_U32: Final = struct.Struct("<I")
_KEY_BYTES: Final = 64
_PERSON: Final = b"tocsin record 1"


class Signature(NamedTuple):
    """The content of a record's signature section.

    Attributes:
        key_id: id of the signing key as stated; not yet checked.
        code: authentication code over the rest of the record.
        start_byte_count: length of the record before the section.
    """

    key_id: bytes
    code: bytes
    start_byte_count: int


class Signer:
    """Creates and checks the signatures of one credential."""

    def __init__(self, credential: Credential) -> None:
        """Prepare the key.

        Raises:
            FieldError: the credential has no secret.
        """
        if not credential.secret:
            raise FieldError("credential.secret", "", f"there: the key {credential.key_id} signs no record")
        key = credential.secret if len(credential.secret) <= _KEY_BYTES else hashlib.blake2b(credential.secret).digest()
        self._keyed = hashlib.blake2b(digest_size=CODE_BYTES, key=key, person=_PERSON)
        key_id = credential.key_id.encode()
        self._tail = key_id + bytes((len(key_id),))
        self._head = _SECTION.pack(SIGNATURE_SECTION, CODE_BYTES + len(self._tail))

    def sign(self, data: bytes) -> bytes:
        """Return a record's bytes with this credential's signature, which replaces an existing one.

        Raises:
            FieldError: the record would be too long.
            DecodeError: the bytes are no record.
        """
        plain = without_signature(data)
        section = b"".join((self._head, self._code(plain, len(plain)), self._tail))
        size = len(plain) + len(section)
        if size > MAX_RECORD_BYTES:
            raise FieldError("record.length", size, f"at most {MAX_RECORD_BYTES} bytes with its signature")
        return _sealed(plain, section)

    def is_mine(self, data: bytes, found: Signature) -> bool:
        """Return whether a record's signature was made with this credential's secret."""
        return hmac.compare_digest(found.code, self._code(data, found.start_byte_count))

    def _code(self, data: bytes, byte_count: int) -> bytes:
        """Return the authentication code over the first ``byte_count`` bytes, without checksum and length."""
        code = self._keyed.copy()
        view = memoryview(data)
        code.update(view[:_CRC_AT])
        code.update(view[_LENGTH_END:byte_count])
        return code.digest()


def sign_record(data: bytes, credential: Credential) -> bytes:
    """Return one record with a signature; for many records keep a ``Signer``."""
    return Signer(credential).sign(data)


def without_signature(data: bytes) -> bytes:
    """Return a record's bytes without its signature; unchanged if it has none.

    Raises:
        DecodeError: the bytes are no record.
    """
    if len(data) < NAMES_AT or not data.startswith(MAGIC):
        raise DecodeError(f"{len(data)} bytes that begin with {data[:4]!r} are no record")
    found = signature_of(data)
    return data if found is None else cut(data, found.start_byte_count)


def cut(data: bytes, byte_count: int) -> bytes:
    """Return the first bytes of a record, up to the end of some section, as a complete record."""
    return _sealed(data[:byte_count], b"") if byte_count < len(data) else data


def signature_of(data: bytes) -> Signature | None:
    """Return a record's signature section, None if it has none.

    It is located from the end, by the length of its key id. Bytes that only look like a signature are harmless, because
    their code would have to be right for all bytes before it.
    """
    body_byte_count = CODE_BYTES + 1 + (data[-1] if data else 0)
    start = len(data) - body_byte_count - _SECTION.size
    if start < NAMES_AT or _SECTION.unpack_from(data, start) != (SIGNATURE_SECTION, body_byte_count):
        return None
    code_end = start + _SECTION.size + CODE_BYTES
    return Signature(data[code_end:-1], data[code_end - CODE_BYTES : code_end], start)


def is_signed_by(data: bytes, credential: Credential) -> bool:
    """Return whether a record's signature was made with this credential's secret."""
    found = signature_of(data)
    if found is None or found.key_id != credential.key_id.encode() or not credential.secret:
        return False
    return Signer(credential).is_mine(data, found)


def _sealed(plain: bytes, section: bytes) -> bytes:
    """Return a record with this section appended, and with length and checksum updated."""
    tail = b"".join((_U32.pack(len(plain) + len(section)), memoryview(plain)[_LENGTH_END:], section))
    crc = zlib.crc32(tail, zlib.crc32(plain[:_CRC_AT]))
    return b"".join((plain[:_CRC_AT], _U32.pack(crc), tail))
