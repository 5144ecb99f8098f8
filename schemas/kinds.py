"""Enumerated words of records: kinds of groups, sources and severities of events."""

from __future__ import annotations

from enum import StrEnum


class GroupKind(StrEnum):
    """Kind of a communication group (``other``: announced without a known kind)."""

    WORLD = "world"
    DP = "dp"
    PP = "pp"
    TP = "tp"
    EP = "ep"
    CP = "cp"
    OTHER = "other"


class Severity(StrEnum):
    """Severity of an event by itself."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    FATAL = "fatal"


class EventSource(StrEnum):
    """Component that saw an event."""

    KERNEL = "kernel"
    PROCESS = "process"
    STARTUP = "startup"
    LOADER = "loader"
    JOB = "job"
    SCHEDULER = "scheduler"


STUCK_DUMP = "stuck"
"""``request_id`` of a Flight Recorder dump that a hook wrote without a request, because its rank is stalled."""
LEFT_DUMP = "left_behind"
"""``request_id`` of a dump that a recording holds as a file, written by the job's own watchdog without a request. The
record's time only says by when the file was there; it is no sign of life of its host."""
