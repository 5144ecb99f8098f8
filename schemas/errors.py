"""Every error that tocsin raises on purpose.

The tree::

    TocsinError
    +-- SchemaError                 data from another process does not follow its schema
    |   +-- FieldError              one field of a record has a wrong value (field, value)
    |   +-- DecodeError             bytes that are no record (reason)
    |       +-- TruncatedError      bytes end before the record does
    |       +-- VersionError        a wire version that this program does not read
    |       +-- UnknownKindError    a record kind that this program does not know
    |   +-- ModelRefusedError       an announced model is not used (reason)
    |   +-- TooManyError            a peer exceeds a limit: jobs, hosts, ranks, bytes held (reason)
    +-- ConfigError                 a setting or an argument is wrong (setting, value)
    |   +-- ManySettingsError       several settings of one file are (errors)
    +-- CollectorError              a source on the training host failed
    |   +-- NothingHere             the source does not exist on this host: not a failure
    +-- TransportError              the transport from an agent to the engine failed
    |   +-- ClockAheadError         the receiver refused a record from the future
    |   +-- SpoolError              the disk spool cannot be used
    |   +-- IdentityError           a peer's identity is not proven, or its record not permitted (reason)
    +-- CredentialError             a file of credentials cannot be used (file, entry, field)
    +-- RecordingError              a recording's file violates the format (file, column, row)
    +-- RegistryError               the model registry: a file or a request is not valid (reason, file)
    +-- StoreError                  the incident database
    |   +-- DatabaseNewerError      its schema is newer than this program
    |   +-- DatabaseOlderError      its schema is older: it must be migrated first
    |   +-- DatabaseLockedError     another process holds the chDB folder
    |   +-- StoreAwayError          the server does not answer or is busy: try again, nothing is lost
    |   +-- StoreRefusedError       credentials, rights, certificate or address: a person has to act
    |   +-- RowRefusedError         the database cannot take a value: trying again does not help
    +-- EngineError                 the engine cannot be reached, or refuses to start
    |   +-- TakenOverError          another process is the active one now
    +-- SnapshotError               an operator's state cannot be restored
    +-- TargetError                 a system on which actions are done (Slurm): see the executors
        +-- TargetAwayError         it does not answer: try again, and read first what came of the last try
        +-- TargetRefusedError      it answers that it will not do so: trying again does not help
        +-- TargetAnswerError       its answer cannot be read

Every class carries a message that a person can act on; ``reason`` is the short
name used as a log field and as a metric label.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


class TocsinError(Exception):
    """Root of all errors raised on purpose."""

    reason: str = "error"


class SchemaError(TocsinError):
    """Data that crosses a process boundary does not follow its schema."""

    reason = "schema"


class FieldError(SchemaError):
    """One field of a record has a value that is not allowed.

    Attributes:
        field: dotted name of the field, e.g. ``steps.duration_seconds[3]``.
        value: the value found.
    """

    reason = "bad_field"

    def __init__(self, field: str, value: object, must: str) -> None:
        """Build the message from the field's name, its value and what it must be."""
        shown = short_form(value)
        super().__init__(f"{field} = {shown}: must be {must}")
        self.field = field
        self.value = value


_SHOWN_CHARACTERS = 120
_SHOWN_NODES = 64
_SHOWN_DEPTH = 6
_SHOWN_BITS = 128


def short_form(value: object) -> str:
    """Return a short text of any value by its type; the cost does not depend on the value's size."""
    try:
        shown = _short(value, [_SHOWN_NODES], _SHOWN_DEPTH)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} that cannot be shown"
    return shown if len(shown) <= _SHOWN_CHARACTERS else shown[: _SHOWN_CHARACTERS - 3] + "..."


def _short(value: object, left: list[int], depth: int) -> str:
    """Return a ``repr`` cut to a number of values and a depth.

    Args:
        value: any value.
        left: one-element list, the number of values that may still be shown; decreased.
        depth: levels of nesting that may still be shown.
    """
    left[0] -= 1
    if left[0] < 0:
        return "..."
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS:
        return f"an integer of {value.bit_length()} bit"
    if isinstance(value, str | bytes | bytearray):
        return repr(value[:_SHOWN_CHARACTERS])
    if isinstance(value, dict | list | tuple | set | frozenset):
        return _short_many(value, left, depth)
    return repr(value)


def _short_many(values: Collection[object], left: list[int], depth: int) -> str:
    """Return the short text of a collection."""
    begin, end = {list: ("[", "]"), tuple: ("(", ")")}.get(type(values), ("{", "}"))
    if not depth:
        return f"{begin}...{end}"
    parts: list[str] = []
    for key in values:
        if left[0] <= 0:
            parts.append("...")
            break
        part = _short(key, left, depth - 1)
        parts.append(f"{part}: {_short(values[key], left, depth - 1)}" if isinstance(values, dict) else part)
    comma = "," if begin == "(" and len(parts) == 1 else ""
    return f"{begin}{', '.join(parts)}{comma}{end}"


class DecodeError(SchemaError):
    """Bytes are no record of the wire format."""

    reason = "undecodable"


class TruncatedError(DecodeError):
    """Bytes end before the record does."""

    reason = "truncated"


class VersionError(DecodeError):
    """A record has a wire version that this program does not read."""

    reason = "wire_version"


class UnknownKindError(DecodeError):
    """A record has a kind that this program does not know."""

    reason = "unknown_kind"


class ModelRefusedError(SchemaError):
    """An announced model is refused; the present one stays in use.

    Attributes:
        reason: value of a ``ModelRefusal``.
    """

    def __init__(self, reason: str, text: str) -> None:
        """Keep the named reason; the text is the message."""
        super().__init__(text)
        self.reason = reason


class TooManyError(SchemaError):
    """A record is well formed, but its sender reached a limit on what the engine keeps for it.

    Attributes:
        reason: ``too_many_`` and the thing counted.
    """

    def __init__(self, what: str, who: str, most: int) -> None:
        """Build the message from the thing counted, the sender and the limit."""
        super().__init__(f"{who} more than {most} {what.replace('_', ' ')}")
        self.reason = f"too_many_{what}"


class ConfigError(TocsinError):
    """A setting, a flag or an environment variable is wrong."""

    reason = "config"

    def __init__(self, setting: str, value: object, must: str) -> None:
        """Build the message from the setting's name, its value and what it must be."""
        super().__init__(f"{setting} = {value!r}: must be {must}")
        self.setting = setting
        self.value = value
        self.must = must


class ManySettingsError(ConfigError):
    """Several settings of one file are wrong; the message has a line for each.

    Attributes:
        errors: each of them, in the order of the file.
    """

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        """Take the errors, at least one."""
        super().__init__(errors[0].setting, errors[0].value, errors[0].must)
        self.args = ("\n".join(map(str, errors)),)
        self.errors = tuple(errors)


class CollectorError(TocsinError):
    """A telemetry source on the training host failed."""

    reason = "collector_failed"


class NothingHere(CollectorError):  # noqa: N818  # it is a statement, not a failure (node_exporter's ErrNoData)
    """A telemetry source does not exist on this host; logged at debug level, not a failure."""

    reason = "nothing_here"


class TransportError(TocsinError):
    """The connection between an agent and the engine failed."""

    reason = "transport"


class ClockAheadError(TransportError):
    """The receiver refused a record whose time stamp is in the future.

    Attributes:
        ahead_ns: how far the record is ahead of the receiver's clock.
    """

    reason = "clock_ahead"

    def __init__(self, ahead_ns: int) -> None:
        """Build the message from how far ahead the record is."""
        super().__init__(f"record is {ahead_ns / 1e9:.3f} s ahead of the receiver's clock")
        self.ahead_ns = ahead_ns


class SpoolError(TransportError):
    """The disk spool cannot be used."""

    reason = "spool"


class IdentityError(TransportError):
    """A peer does not prove its identity, or sends what its credential does not allow.

    Attributes:
        reason: value of an ``IdentityRefusal``.
    """

    def __init__(self, reason: str, text: str) -> None:
        """Keep the named reason; the text is the message."""
        super().__init__(text)
        self.reason = str(reason)  # of an enumeration: plain text from here on


class CredentialError(TocsinError):
    """A credential file cannot be used; values are not shown because they may be secrets.

    Attributes:
        file: the file.
        entry: index of the credential, from 0; None for the whole file.
        field: name of the field, "" for the whole entry.
    """

    reason = "credentials"

    def __init__(self, file: str, must: str, *, entry: int | None = None, field: str = "") -> None:
        """Build the message from file, entry and field and what they must be."""
        place = file + ("" if entry is None else f", entry {entry}") + (f", field {field}" if field else "")
        super().__init__(f"{place}: must be {must}")
        self.file = file
        self.entry = entry
        self.field = field


class RecordingError(TocsinError):
    """A file of a recording does not follow the recording format.

    Attributes:
        file: file name.
        column: name of the column or field, "" for the whole file.
        row: index of the row, from 0; None for no particular row.
    """

    reason = "recording"

    def __init__(self, file: str, text: str, *, column: str = "", row: int | None = None) -> None:
        """Build the message from file, column and row and what is wrong."""
        place = file + (f", column {column}" if column else "") + ("" if row is None else f", row {row}")
        super().__init__(f"{place}: {text}")
        self.file = file
        self.column = column
        self.row = row


class RegistryError(TocsinError):
    """The model registry cannot be read, or refuses what was asked.

    Attributes:
        reason: value of a ``RegistryRefusal``.
        file: the file or version concerned.
    """

    def __init__(self, reason: str, file: str, text: str) -> None:
        """Keep the named reason; build the message from the file and the text."""
        super().__init__(f"{file}: {text}")
        self.reason = reason
        self.file = file


class StoreError(TocsinError):
    """The incident database failed."""

    reason = "store"


class DatabaseNewerError(StoreError):
    """The database's schema is newer than this program."""

    reason = "database_newer"


class DatabaseOlderError(StoreError):
    """The database's schema is older than this program needs."""

    reason = "database_older"


class DatabaseLockedError(StoreError):
    """Another process holds the chDB folder."""

    reason = "database_locked"


class StoreAwayError(StoreError):
    """The database does not answer or is busy; the same call may succeed later."""

    reason = "store_away"


class StoreRefusedError(StoreError):
    """The database refuses this program: wrong credentials, rights, certificate or address."""

    reason = "store_refused"


class RowRefusedError(StoreError):
    """A row has a value that the database cannot store; the same row will fail again."""

    reason = "row_refused"


class EngineError(TocsinError):
    """The engine cannot be reached or refuses to start."""

    reason = "engine"


class TakenOverError(EngineError):
    """This process is not the active one any more; the other one has its state, and nothing is lost."""

    reason = "taken_over"


class SnapshotError(TocsinError):
    """An operator's state cannot be restored from a snapshot."""

    reason = "snapshot"


class TargetError(TocsinError):
    """A system on which actions are done failed; ``reason`` may be a narrower one than the class has."""

    reason = "target"

    def __init__(self, text: str, reason: str = "") -> None:
        """Keep the message and, unless it is "", the reason."""
        super().__init__(text)
        self.reason = str(reason or self.reason)  # of an enumeration: plain text from here on


class TargetAwayError(TargetError):
    """The system does not answer, or not now. What it was asked for may have been done all the same."""

    reason = "target_away"


class TargetRefusedError(TargetError):
    """The system answers that it will not do what it was asked for."""

    reason = "target_refused"


class TargetAnswerError(TargetError):
    """An answer of the system cannot be read; another version of it may have another form."""

    reason = "target_answer"
