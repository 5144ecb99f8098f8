"""Words that records use: kinds of groups, sources and severities of events."""

from __future__ import annotations

from enum import StrEnum


class GroupKind(StrEnum):
    """Kinds of communication groups (``other``: announced without a known kind)."""

    WORLD = "world"
    DP = "dp"
    PP = "pp"
    TP = "tp"
    EP = "ep"
    CP = "cp"
    OTHER = "other"


class Severity(StrEnum):
    """How bad an event is by itself."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    FATAL = "fatal"


class EventSource(StrEnum):
    """Where an event was seen."""

    KERNEL = "kernel"
    PROCESS = "process"
    STARTUP = "startup"
    LOADER = "loader"
    JOB = "job"
    SCHEDULER = "scheduler"


STUCK_DUMP = "stuck"
"""``request_id`` of a Flight Recorder dump that a hook wrote unasked, because its rank stands."""
LEFT_DUMP = "left_behind"
"""``request_id`` of a dump that a recording holds as a file: the job's own watchdog left it, nobody asked, and the
record's time says only by when it was there. No sign of life of its host."""
