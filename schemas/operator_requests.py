"""What people ask of tocsin over Kafka: planned work, its end, judgements of verdicts, closing of incidents.

A request is a JSON object, the value of a message on the topic ``operator-notes``. Who asks signs the value with a
credential of role ``operator``, in the header ``signature: KEY_ID HEX``. It is a message authentication code, as that
of a record (``tocsin.schemas.signatures``), under a context of its own. The signed time and id are what a copy of an
old request is known by.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tocsin.schemas.credentials import Credential
from tocsin.schemas.errors import FieldError
from tocsin.schemas.operator_notes import MAX_ACTOR_CHARACTERS, OperatorNote, note_from, note_object
from tocsin.schemas.reasons import NamedReason
from tocsin.schemas.wire.validate import ObjectReader, check_name, load_json

PLAN: Final = "maintenance"
END: Final = "maintenance_end"
JUDGE: Final = "feedback"
CLOSE: Final = "incident_close"
COMMANDS: Final = (PLAN, END, JUDGE, CLOSE)
"""The requests, by the names that they have on the control socket."""
MAX_BYTES: Final = 16_384
"""Greatest size of a request."""
VERSION: Final = 1
_CODE_BYTES: Final = 32
_KEY_BYTES: Final = 64
_PERSON: Final = b"tocsin note 1"
_ID: Final = re.compile(r"[0-9a-f]{32}")
Value = str | int | bool | None
"""A value of a request."""


class NoteRefusal(NamedReason):
    """Reason for which a request of a person is refused before anybody looks at what it asks."""

    STALE = (
        "stale",
        "Signed more than ten minutes before or after the broker took it: it is a copy, or a clock is wrong.",
    )
    REPEATED = "repeated", "A request with this id was taken before."
    UNKNOWN_COMMAND = "unknown_command", "No request has this name."
    NO_TICKS = "no_ticks", "The topic of events has had no tick for ten minutes, so that nothing can be closed."


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    """One request of a person.

    Attributes:
        request_id: 32 hexadecimal digits, drawn by who asks.
        command: one of ``COMMANDS``.
        values: what is asked, by name, as on the control socket.
        by: who asks, as they say; it counts only where nobody has to prove it.
        ts_ns: when it was asked, by the asker's clock.
    """

    request_id: str
    command: str
    values: Mapping[str, Value]
    by: str
    ts_ns: int


def new_request_id() -> str:
    """Return a fresh id."""
    return secrets.token_hex(16)


def encode_request(request: OperatorRequest) -> bytes:
    """Return the value of a request's message.

    Raises:
        FieldError: it is too long.
    """
    fields = {
        "version": VERSION,
        "request": request.request_id,
        "command": request.command,
        "values": dict(request.values),
        "by": request.by,
        "ts_ns": request.ts_ns,
    }
    value = json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace")
    if len(value) > MAX_BYTES:
        raise FieldError("request", f"{len(value)} bytes", f"at most {MAX_BYTES} bytes")
    return value


def decode_request(value: bytes) -> OperatorRequest:
    """Return the request of a message.

    Raises:
        SchemaError: it is none; the error names field and value.
    """
    if len(value) > MAX_BYTES:
        raise FieldError("request", f"{len(value)} bytes", f"at most {MAX_BYTES} bytes")
    said = ObjectReader(load_json(value, "request"), "request")
    said.integer("version", VERSION, VERSION)
    request_id = check_request_id(said.value("request"))
    values = values_of(said.value("values"))
    by = said.name("by")
    if len(by) > MAX_ACTOR_CHARACTERS:
        raise FieldError("request.by", by, f"at most {MAX_ACTOR_CHARACTERS} characters")
    return OperatorRequest(request_id, said.name("command"), values, by, said.integer("ts_ns", 0))


def check_request_id(value: object) -> str:
    """Return an id of a request unchanged.

    Raises:
        FieldError: it is none.
    """
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise FieldError("request.request", value, "32 hexadecimal digits")
    return value


def values_of(said: object) -> dict[str, Value]:
    """Return the values of a request unchanged.

    Raises:
        FieldError: they are no texts, integers and truth values by name.
    """
    if not isinstance(said, dict) or not all(one is None or isinstance(one, str | int) for one in said.values()):
        raise FieldError("request.values", said, "an object of texts, integers and truth values")
    return said


def request_signature(value: bytes, credential: Credential) -> bytes:
    """Return the signature header of a request's message.

    Raises:
        FieldError: the credential has no secret.
    """
    if not credential.secret:
        raise FieldError("credential.secret", "", f"there: the key {credential.key_id} signs no request")
    return f"{credential.key_id} {_code(value, credential).hex()}".encode()


def key_id_in(header: bytes) -> str:
    """Return the key id that a signature header names, "": it names none."""
    return header.partition(b" ")[0].decode("ascii", "backslashreplace")


def is_request_signed_by(value: bytes, header: bytes, credential: Credential) -> bool:
    """Return whether a request's signature was made with this credential's secret."""
    return bool(credential.secret) and hmac.compare_digest(header, request_signature(value, credential))


def _code(value: bytes, credential: Credential) -> bytes:
    """Return the authentication code of a value."""
    secret = credential.secret
    key = secret if len(secret) <= _KEY_BYTES else hashlib.blake2b(secret).digest()
    return hashlib.blake2b(value, digest_size=_CODE_BYTES, key=key, person=_PERSON).digest()


@dataclass(frozen=True, slots=True)
class NoteTaken:
    """A note that counts, as the controller tells all others.

    Attributes:
        note: the note.
        hosts: of work on a leaf switch: the hosts behind it, sorted; else nothing.
    """

    note: OperatorNote
    hosts: tuple[str, ...] = ()


def encode_taken(taken: NoteTaken) -> bytes:
    """Return the value of a message of the topic ``notes-taken``."""
    return json.dumps({**note_object(taken.note), "hosts": list(taken.hosts)}, ensure_ascii=False).encode()


def decode_taken(value: bytes) -> NoteTaken:
    """Return the note of a message of the topic ``notes-taken``.

    Raises:
        SchemaError: it is none; the error names field and value.
    """
    said = load_json(value, "note")
    note = note_from(said)
    hosts = said.get("hosts", []) if isinstance(said, dict) else []
    if not isinstance(hosts, list):
        raise FieldError("note.hosts", hosts, "a list of names")
    return NoteTaken(note, tuple(check_name(host, "note.hosts") for host in hosts))
