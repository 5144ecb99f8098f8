"""Rules for the payloads of known events, checked when a record is read.

Each known event has a table of the keys that are computed with, compared or printed, each with a rule for its value.
Null or absent is always allowed (unknown), and other keys are ignored, because other collectors write more than is
read here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tocsin.schemas import events
from tocsin.schemas.errors import FieldError
from tocsin.schemas.wire.validate import (
    INT64_MAX,
    MAX_NAME_BYTES,
    MAX_RANKS,
    MAX_SECONDS,
    MAX_STEP,
    is_number,
)

ENDED_NS: Final = "ended_ns"
"""Payload key with the time when a rank ended (Unix ns), in an event that repeats it: see ``collectors.agent.endings``.
"""
MAX_TEXT_CHARACTERS: Final = 1_000_000
"""Most characters of a text that a program wrote: the end of its output."""
MAX_FACT_CHARACTERS: Final = 256
"""Most characters of a version or an id; the memory of a fleet's facts is bounded by it."""
MAX_WORDS: Final = 1_000
MAX_WORK: Final = 1e30
"""Most operations, parameters or tokens of a step; a step of 10^30 operations takes a million GPUs a year."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The allowed values of a payload's key.

    Attributes:
        holds: function that returns whether a value, which is not null, is allowed.
        must: description of the allowed values, for errors.
    """

    holds: Callable[[Any], bool]
    must: str


def _numbers(low: float, high: float, what: str) -> Rule:
    """Return the rule for a number from ``low`` to ``high``, described by ``what``."""

    def holds(value: Any) -> bool:
        return is_number(value) and low <= value <= high

    return Rule(holds, f"{what}, or null")


def _is_word(value: Any) -> bool:
    """Return whether a value is a text of at most ``MAX_NAME_BYTES`` characters."""
    return type(value) is str and len(value) <= MAX_NAME_BYTES


def _are_words(value: Any) -> bool:
    """Return whether a value is a list of at most ``MAX_WORDS`` such texts."""
    return isinstance(value, list | tuple) and len(value) <= MAX_WORDS and all(map(_is_word, value))


NUMBER: Final = _numbers(-INT64_MAX, INT64_MAX, "a number of at most 64 bit")
SECONDS: Final = _numbers(-MAX_SECONDS, MAX_SECONDS, f"a number of seconds, at most {MAX_SECONDS:g}")
STEP: Final = _numbers(-1, MAX_STEP, f"a number from -1 to {MAX_STEP}")
WORLD: Final = _numbers(-1, MAX_RANKS, f"a number from -1 to {MAX_RANKS}")
WORK: Final = _numbers(0, MAX_WORK, f"a number from 0 to {MAX_WORK:g}")
WORD: Final = Rule(_is_word, f"a text of at most {MAX_NAME_BYTES} characters, or null")
TEXT: Final = Rule(
    lambda value: type(value) is str and len(value) <= MAX_TEXT_CHARACTERS,
    f"a text of at most {MAX_TEXT_CHARACTERS} characters, or null",
)
FACT: Final = Rule(
    lambda value: _is_word(value) and "\0" not in value and len(value) <= MAX_FACT_CHARACTERS,
    "a text of at most 256 characters without NUL, or null",
)
TIME: Final = _numbers(0, INT64_MAX, "a time since 1970 in nanoseconds")
FLAG: Final = Rule(lambda value: type(value) in (bool, int) and value in (0, 1), "true or false, or null")
WORDS: Final = Rule(_are_words, f"a list of at most {MAX_WORDS} texts, or null")
SCALAR: Final = Rule(lambda value: _is_word(value) or is_number(value), "a text, a number, or null")

MODEL_NUMBERS: Final = (
    "flops_per_step",
    "parameters",
    "tokens_per_step",
    "layers",
    "hidden_size",
    "sequence_length",
    "rank_parameters",
    "rank_tokens_per_step",
    "peak_flops_per_second",
)
"""Payload keys of a ``model`` event that hold numbers."""
_GPU: Final = {"uuid": WORD, "pci": WORD, "at_start": FLAG}

RULES: Final[Mapping[str, Mapping[str, Rule]]] = {
    events.PCIE_LINK: {**_GPU, "gen": NUMBER, "width": NUMBER, "max_gen": NUMBER, "max_width": NUMBER},
    events.CLOCKS_EVENT: {**_GPU, "reasons": WORDS},
    events.ECC: {**_GPU, "kind": WORD, "count": NUMBER, "device": WORD},
    events.NVLINK_ERROR: {**_GPU, "kind": WORD, "count": NUMBER, "link": NUMBER, "state": WORD},
    events.ROW_REMAP: {**_GPU, "pending": FLAG, "failure": FLAG},
    events.IB_PORT: {
        "port": WORD,
        "state": WORD,
        "at_start": FLAG,
        **dict.fromkeys(("rate_gbps", "max_rate_gbps", "link_downed", "flaps"), NUMBER),
    },
    events.PHASE: {"phase": WORD, "edge": WORD},
    events.AGENT: {"edge": WORD},
    events.XID: {**_GPU, "code": NUMBER, "recovery_action": NUMBER, "architecture": WORD},
    events.SXID: {"code": NUMBER, "severity": WORD, "pci": WORD, "link": NUMBER},
    events.EXIT: {"code": NUMBER, "signal": NUMBER, "stderr_tail": TEXT, ENDED_NS: NUMBER},
    events.PROCESS_GONE: {ENDED_NS: NUMBER},
    events.BYE: {ENDED_NS: NUMBER},
    events.STAGE: {"stage": WORD, "edge": WORD, "start_kind": WORD, "seconds": SECONDS, "cache_hit_ratio": NUMBER},
    events.LOADER: {
        "source": WORD,
        "step": STEP,
        "fetch_seconds": SECONDS,
        "recovery_seconds": SECONDS,
        **dict.fromkeys((*events.LOADER_COUNTS, "duplicate_rows", "skipped_rows"), NUMBER),
    },
    events.NAN: {"step": STEP, "what": WORD, "where": WORD, "value": SCALAR},
    events.INCIDENT_CLOSE: {"id": WORD, "note": WORD, "actor": WORD},
    events.ACTION_CHANGE: {
        **dict.fromkeys(("id", "verdict_id", "kind", "state", "signature"), WORD),
        "changed_ns": TIME,
    },
    events.HOST_FACTS: {
        "booted_ns": TIME,
        **dict.fromkeys(("boot_id", "kernel", "driver", "firmware", "minipod"), FACT),
    },
    events.HELLO: {"world_size": WORLD, **dict.fromkeys(events.JOB_FACT_KEYS, FACT)},
    events.MODEL: {"world_size": WORLD, "gpu_name": FACT, **dict.fromkeys(MODEL_NUMBERS, WORK)},
    events.STOPPED: {"edge": WORD, "seconds": SECONDS, "stopped_ratio": NUMBER},
    events.STALL: {
        "edge": WORD,
        "step": STEP,
        "phase": WORD,
        "in_collective": FLAG,
        "elapsed_seconds": SECONDS,
        "beat_age_seconds": SECONDS,
    },
    # A clock that was never set stands in 1970: these seconds are no duration of anything.
    events.CLOCK_AHEAD: {"ahead_seconds": NUMBER},
    events.CLOCK_STEP: {"step_seconds": NUMBER},
    events.SPOOL_OVERFLOW: {"dropped_count": NUMBER},
    events.KERNEL_LOG_LOST: {"dropped_count": NUMBER},
    events.GPU_LOST: {"uuid": WORD, "pci": WORD},
    events.GPU_RECOVERY: {**_GPU, "action": NUMBER},
    events.OOM: {"process": WORD, "cgroup": FLAG},
    events.SEGFAULT: {"process": WORD, "library": WORD},
    events.FILE_SYSTEM: {"kind": WORD, "device": WORD, "remote": FLAG},
    events.NET_LINK: {"device": WORD, "pci": WORD, "state": WORD},
    events.THERMAL: {"device": WORD, "critical": FLAG},
    events.PCIE_ERROR: {"pci": WORD, "kind": WORD},
}
"""Event name -> payload key -> rule for its value."""

STALL_KEYS: Final = tuple(RULES[events.STALL])
"""Payload keys of a ``stall`` event that are kept."""


def check_payload(name: str, payload: Mapping[str, Any], field: str) -> None:
    """Check the payload of a known event against ``RULES``; other events pass.

    Args:
        name: event name.
        payload: the payload.
        field: dotted name of the payload, for the error.

    Raises:
        FieldError: a key has a value that is not allowed.
    """
    for key, rule in RULES.get(name, {}).items():
        value = payload.get(key)
        if value is not None and not rule.holds(value):
            raise FieldError(f"{field}.{key}", value, rule.must)


def number(payload: Mapping[str, Any], key: str, default: float) -> float:
    """Return a number of a payload; ``default`` if it is null, absent or no number."""
    value = payload.get(key)
    return value if is_number(value) else default
