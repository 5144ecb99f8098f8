"""Every error that tocsin raises on purpose.

The tree::

    TocsinError
    +-- SchemaError                 what crosses a process boundary is not as agreed
    |   +-- FieldError              one field of a record has a wrong value (field, value)
    |   +-- DecodeError             bytes that are no record (reason)
    |       +-- TruncatedError      bytes end before the record does
    |       +-- VersionError        a wire version that this program does not read
    |       +-- UnknownKindError    a record kind that this program does not know
    |   +-- ModelRefusedError       an announced model is not used (reason)
    |   +-- TooManyError            a peer speaks of more than one may: jobs, hosts, ranks, bytes held (reason)
    +-- ConfigError                 a setting or an argument is wrong (setting, value)
    +-- CollectorError              a source on the training host failed
    |   +-- NothingHere             the source does not exist on this host: not a failure
    +-- TransportError              the way from an agent to the engine
    |   +-- ClockAheadError         the receiver refused a record from the future
    |   +-- SpoolError              the disk spool cannot be used
    |   +-- IdentityError           a peer does not prove who it is, or may not say what it says (reason)
    +-- CredentialError             a file of credentials cannot be used (file, entry, field)
    +-- RecordingError              a recording's file is not as the format says (file, column, row)
    +-- RegistryError               the model registry: a file, or what was asked of it (reason, file)
    +-- StoreError                  the incident database
    |   +-- DatabaseNewerError      its schema is newer than this program
    |   +-- DatabaseOlderError      its schema is older: it must be migrated first
    |   +-- DatabaseLockedError     another process holds the chDB folder
    |   +-- StoreAwayError          nobody answers, or the server is busy: try again, nothing is lost
    |   +-- StoreRefusedError       credentials, rights, certificate or address: a person has to act
    |   +-- RowRefusedError         the database cannot take a value: trying again does not help
    +-- EngineError                 the engine cannot be reached, or refuses to start
    +-- SnapshotError               an operator's state cannot be restored

Every class carries a message that a person can act on; ``reason`` is the short
name used as a log field and as a metric label.
"""

from __future__ import annotations

from collections.abc import Collection


class TocsinError(Exception):
    """Root of all errors raised on purpose."""

    reason: str = "error"


class SchemaError(TocsinError):
    """What crosses a process boundary is not as agreed."""

    reason = "schema"


class FieldError(SchemaError):
    """One field of a record has a value that it may not have.

    Attributes:
        field: dotted name of the field, e.g. ``steps.duration_seconds[3]``.
        value: the value found.
    """

    reason = "bad_field"

    def __init__(self, field: str, value: object, must: str) -> None:
        """Name the field, show the value, say what it must be."""
        shown = short_form(value)
        super().__init__(f"{field} = {shown}: must be {must}")
        self.field = field
        self.value = value


_SHOWN_CHARACTERS = 120
_SHOWN_NODES = 64
_SHOWN_DEPTH = 6
_SHOWN_BITS = 128


def short_form(value: object) -> str:
    """A short form of any value, by its type; how large the value is makes it no dearer."""
    try:
        shown = _short(value, [_SHOWN_NODES], _SHOWN_DEPTH)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} that cannot be shown"
    return shown if len(shown) <= _SHOWN_CHARACTERS else shown[: _SHOWN_CHARACTERS - 3] + "..."


def _short(value: object, left: list[int], depth: int) -> str:
    """Like ``repr``, of so many values (``left``) and so deep at most."""
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
    """Bytes that are no record of ours."""

    reason = "undecodable"


class TruncatedError(DecodeError):
    """The bytes end before the record does."""

    reason = "truncated"


class VersionError(DecodeError):
    """A wire version that this program does not read."""

    reason = "wire_version"


class UnknownKindError(DecodeError):
    """A record kind that this program does not know."""

    reason = "unknown_kind"


class ModelRefusedError(SchemaError):
    """An announced model is not used; the one before goes on.

    Attributes:
        reason: a ``ModelRefusal``.
    """

    def __init__(self, reason: str, text: str) -> None:
        """Keep the named reason, say the rest."""
        super().__init__(text)
        self.reason = reason


class TooManyError(SchemaError):
    """A record is well formed, and it is one too many: its sender made the engine remember as much as it may.

    Attributes:
        reason: ``too_many_`` and of what.
    """

    def __init__(self, what: str, who: str, most: int) -> None:
        """Name what there is too much of, who does it, and the bound."""
        super().__init__(f"{who} more than {most} {what.replace('_', ' ')}")
        self.reason = f"too_many_{what}"


class ConfigError(TocsinError):
    """A setting, a flag or an environment variable is wrong."""

    reason = "config"

    def __init__(self, setting: str, value: object, must: str) -> None:
        """Name the setting, show the value, say what it must be."""
        super().__init__(f"{setting} = {value!r}: must be {must}")
        self.setting = setting
        self.value = value
        self.must = must


class CollectorError(TocsinError):
    """A source on the training host failed."""

    reason = "collector_failed"


class NothingHere(CollectorError):  # noqa: N818  # it is a statement, not a failure (node_exporter's ErrNoData)
    """The source does not exist on this host: said at debug level, no failure."""

    reason = "nothing_here"


class TransportError(TocsinError):
    """The way from an agent to the engine is broken."""

    reason = "transport"


class ClockAheadError(TransportError):
    """The receiver refused a record that is stamped in the future.

    Attributes:
        ahead_ns: how far the record is ahead of the receiver's clock.
    """

    reason = "clock_ahead"

    def __init__(self, ahead_ns: int) -> None:
        """Keep how far ahead the record is."""
        super().__init__(f"record is {ahead_ns / 1e9:.3f} s ahead of the receiver's clock")
        self.ahead_ns = ahead_ns


class SpoolError(TransportError):
    """The disk spool cannot be used."""

    reason = "spool"


class IdentityError(TransportError):
    """A peer does not prove who it is, or says what its credential does not let it say.

    Attributes:
        reason: an ``IdentityRefusal``.
    """

    def __init__(self, reason: str, text: str) -> None:
        """Keep the named reason, say the rest."""
        super().__init__(text)
        self.reason = str(reason)  # of an enumeration: plain text from here on


class CredentialError(TocsinError):
    """A file of credentials cannot be used; values are not shown: they may be secrets.

    Attributes:
        file: the file.
        entry: which credential, from 0; None = the whole file.
        field: its field, "" = the whole entry.
    """

    reason = "credentials"

    def __init__(self, file: str, must: str, *, entry: int | None = None, field: str = "") -> None:
        """Name file, entry and field, then say what they must be."""
        place = file + ("" if entry is None else f", entry {entry}") + (f", field {field}" if field else "")
        super().__init__(f"{place}: must be {must}")
        self.file = file
        self.entry = entry
        self.field = field


class RecordingError(TocsinError):
    """A file of a recording is not as the format says.

    Attributes:
        file: file name.
        column: its column or field, "" = the whole file.
        row: from 0, None = no row in particular.
    """

    reason = "recording"

    def __init__(self, file: str, text: str, *, column: str = "", row: int | None = None) -> None:
        """Name file, column and row, then say what is wrong."""
        place = file + (f", column {column}" if column else "") + ("" if row is None else f", row {row}")
        super().__init__(f"{place}: {text}")
        self.file = file
        self.column = column
        self.row = row


class RegistryError(TocsinError):
    """The model registry cannot be read, or cannot do what was asked.

    Attributes:
        reason: a ``RegistryRefusal``.
        file: the file or the version that it is about.
    """

    def __init__(self, reason: str, file: str, text: str) -> None:
        """Keep the named reason, name the file, say the rest."""
        super().__init__(f"{file}: {text}")
        self.reason = reason
        self.file = file


class StoreError(TocsinError):
    """The incident database failed."""

    reason = "store"


class DatabaseNewerError(StoreError):
    """The database was written by a newer program."""

    reason = "database_newer"


class DatabaseOlderError(StoreError):
    """The database lacks what this program needs."""

    reason = "database_older"


class DatabaseLockedError(StoreError):
    """Another process holds the chDB folder."""

    reason = "database_locked"


class StoreAwayError(StoreError):
    """The database does not answer, or cannot take rows now; the same call may succeed later."""

    reason = "store_away"


class StoreRefusedError(StoreError):
    """The database refuses this program: its credentials, rights, certificate or address are wrong."""

    reason = "store_refused"


class RowRefusedError(StoreError):
    """A row has a value that the database cannot take; the same row fails again."""

    reason = "row_refused"


class EngineError(TocsinError):
    """The engine cannot be reached, or refuses to start."""

    reason = "engine"


class SnapshotError(TocsinError):
    """An operator's state cannot be restored."""

    reason = "snapshot"
