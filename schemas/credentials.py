"""Credentials of hosts and services, and the text format of the file that holds them.

A credential belongs to one host (or, with another role, to one service). Its secret is shared by the host and
the engine and never sent: a challenge proves it (``tocsin.schemas.sign_in``). The file, JSON::

    {
        "version": 1,
        "credentials": [
            {
                "key_id": "k-3f9c…",
                "role": "agent",
                "name": "node-17",
                "secret": "<64 hex digits>",
                "created_ns": 1790000000000000000,
            }
        ],
    }

Optional fields: ``public_key`` (hex) and ``revoked_ns``. The engine's file holds the credentials of all
hosts, a host's file its own. ``tocsin.schemas.credential_store`` reads and writes them.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeVar

from tocsin.schemas.errors import CredentialError, FieldError
from tocsin.schemas.wire.validate import INT64_MAX, check_int, check_name

FILE_VERSION: Final = 1
ANY_NAME: Final = "*"
"""Name of a credential for every host; with role ``agent`` it is accepted on the engine's own machine only."""
SECRET_BYTES: Final = 32
MIN_SECRET_BYTES: Final = 16
MAX_SECRET_BYTES: Final = 256
MAX_CREDENTIALS: Final = 200_000
_T = TypeVar("_T")
_KEY_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FIELDS: Final = frozenset({"key_id", "role", "name", "secret", "public_key", "created_ns", "revoked_ns"})


class Role(StrEnum):
    """Rights that a credential gives its holder."""

    AGENT = "agent"
    """Sends telemetry of its own host only."""
    PLAYER = "player"
    """Plays a recording, so sends telemetry of any host; only where the engine is set to accept one."""
    SCHEDULER = "scheduler"
    """Sends the scheduler's events about any host, signs what a job controller says of its jobs, and nothing else."""
    READER = "reader"
    """Sends nothing; reads only."""
    OPERATOR = "operator"
    """Sends no records; asks like a reader, and plans work, judges verdicts and closes incidents."""
    EXECUTOR = "executor"
    """Carries out actions: reads them, signs what it says of them, and sends no telemetry."""
    CHECKER = "checker"
    """Checks the host whose name it has, where an action asks for it: signs acks and results of that host only."""
    CONTROLLER = "controller"
    """Decides about actions and signs them with a private key; executors hold only the public key."""
    TRAINER = "trainer"
    """Announces models, and nothing else."""
    ENGINE = "engine"
    """Signs verdicts with a private key; consumers hold only the public key."""


SIGNING_ROLES: Final = frozenset(
    {Role.ENGINE, Role.CONTROLLER, Role.EXECUTOR, Role.CHECKER, Role.OPERATOR, Role.SCHEDULER}
)
"""Roles whose credentials are key pairs: what they say beside a connection is signed."""


@dataclass(frozen=True, slots=True)
class Credential:
    """One key and its holder.

    Attributes:
        key_id: public name of the key.
        role: what the holder may do.
        name: the host (or service) that it belongs to, ``*`` for any.
        secret: shared secret that the holder proves to know, b"" for none; not shown in ``repr``.
        public_key: Ed25519 key that verifies the holder's signatures, b"" for none.
        created_ns: time when it was issued, Unix nanoseconds.
        revoked_ns: time from which it is invalid, Unix nanoseconds; 0 for never.
    """

    key_id: str
    role: Role
    name: str
    secret: bytes = field(default=b"", repr=False)
    public_key: bytes = b""
    created_ns: int = 0
    revoked_ns: int = 0

    def is_valid(self, now_ns: int) -> bool:
        """Return whether the credential is not revoked at this time."""
        return not self.revoked_ns or now_ns < self.revoked_ns

    def speaks_for(self, host: str) -> bool:
        """Return whether the credential's name covers a host; its role is not checked."""
        return self.name in (ANY_NAME, host)


def new_credential(role: Role, name: str, created_ns: int) -> Credential:
    """Return a credential with a fresh random secret and key id.

    Raises:
        FieldError: the name is not allowed.
    """
    key_id = f"k-{secrets.token_hex(8)}"
    return Credential(key_id, role, check_holder(name, "name"), secrets.token_bytes(SECRET_BYTES), b"", created_ns)


def check_holder(value: object, field_name: str) -> str:
    """Return the name of a host or service if it is one line of printable text.

    Raises:
        FieldError: it is not.
    """
    name = check_name(value, field_name)
    if not name.isprintable() or name != name.strip():
        raise FieldError(field_name, value, "printable, without spaces at its ends")
    return name


def check_key_id(value: object, field_name: str) -> str:
    """Return a key id if it is well formed.

    Raises:
        FieldError: it is not 1 to 64 letters, digits, dots, dashes and underscores.
    """
    if type(value) is not str or not _KEY_ID.fullmatch(value):
        raise FieldError(field_name, value, "1 to 64 of A-Z a-z 0-9 . _ -, first a letter or digit")
    return value


def format_credentials(credentials: Iterable[Credential]) -> str:
    """Return the text of a credential file, with one credential per line so that two versions are easy to compare."""
    lines = [json.dumps(_values(credential)) for credential in credentials]
    body = ",\n  ".join(lines)
    return f'{{"version": {FILE_VERSION}, "credentials": [\n  {body}\n]}}\n' if lines else _EMPTY


_EMPTY: Final = f'{{"version": {FILE_VERSION}, "credentials": []}}\n'


def parse_credentials(text: str, file: str) -> tuple[Credential, ...]:
    """Return the credentials in a file's text.

    Args:
        text: content of the file.
        file: name of the file, for errors.

    Raises:
        CredentialError: the text is malformed; the error names file, entry and field, and never shows a secret.
    """
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        where = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise CredentialError(file, f"JSON{where}") from None
    if not isinstance(values, dict) or type(values.get("version")) is not int:
        raise CredentialError(file, "an object with version and credentials")
    if values["version"] != FILE_VERSION:
        raise CredentialError(file, f"{FILE_VERSION}: this program reads no other", field="version")
    entries = values.get("credentials")
    if not isinstance(entries, list) or len(entries) > MAX_CREDENTIALS:
        raise CredentialError(file, f"an array of at most {MAX_CREDENTIALS}", field="credentials")
    found: dict[str, Credential] = {}
    for index, entry in enumerate(entries):
        credential = _credential(entry, file, index)
        if credential.key_id in found:
            raise CredentialError(file, f"the only {credential.key_id}", entry=index, field="key_id")
        found[credential.key_id] = credential
    return tuple(found.values())


def _values(credential: Credential) -> dict[str, Any]:
    """Return the JSON object of a credential."""
    values: dict[str, Any] = {"key_id": credential.key_id, "role": credential.role.value, "name": credential.name}
    for name, data in (("secret", credential.secret), ("public_key", credential.public_key)):
        if data:
            values[name] = data.hex()
    values["created_ns"] = credential.created_ns
    if credential.revoked_ns:
        values["revoked_ns"] = credential.revoked_ns
    return values


def _credential(entry: object, file: str, index: int) -> Credential:
    """Read one entry of a credential file."""
    if not isinstance(entry, dict):
        raise CredentialError(file, "an object", entry=index)
    unknown = sorted(str(name) for name in entry if name not in _FIELDS)
    if unknown:
        raise CredentialError(file, f"one of {' '.join(sorted(_FIELDS))}", entry=index, field=unknown[0][:64])
    reader = _CredentialLine(entry, file, index)
    secret, public_key = reader.key("secret"), reader.key("public_key")
    if not secret and not public_key:
        raise CredentialError(file, "there (or public_key)", entry=index, field="secret")
    return Credential(
        reader.checked("key_id", lambda value: check_key_id(value, "key_id")),
        reader.checked("role", _role),
        reader.checked("name", lambda value: check_holder(value, "name")),
        secret,
        public_key,
        reader.checked("created_ns", lambda value: check_int(value, "created_ns", 0, INT64_MAX)),
        reader.checked("revoked_ns", lambda value: check_int(value, "revoked_ns", 0, INT64_MAX), 0),
    )


def _role(value: object) -> Role:
    """Return the role with this value; raise ``FieldError`` without one."""
    for role in Role:
        if role.value == value:
            return role
    raise FieldError("role", value, "one of " + " ".join(Role))


class _CredentialLine:
    """Reader of the fields of one entry; its errors name file, entry and field."""

    def __init__(self, values: dict[str, Any], file: str, index: int) -> None:
        self._values, self._file, self._index = values, file, index

    def checked(self, name: str, check: Callable[[object], _T], default: object = None) -> _T:
        """Return a field's value after ``check``; its error is raised as a ``CredentialError``."""
        try:
            return check(self._values.get(name, default))
        except FieldError as error:
            must = str(error).partition(": must be ")[2]
            raise CredentialError(self._file, must, entry=self._index, field=name) from None

    def key(self, name: str) -> bytes:
        """Return the bytes of a field of hex digits, b"" if the field is missing."""
        text = self._values.get(name)
        if text is None:
            return b""
        must = f"hex digits of {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes (not shown)"
        try:
            data = bytes.fromhex(text) if type(text) is str else b""
        except ValueError:
            data = b""
        if not MIN_SECRET_BYTES <= len(data) <= MAX_SECRET_BYTES:
            raise CredentialError(self._file, must, entry=self._index, field=name)
        return data
