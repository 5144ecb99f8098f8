"""Verdicts that people upheld or denied, and how a detector set's answers compare with what they said.

``tocsin feedback --export FILE`` writes one JSON object a line; ``read_judged`` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tocsin.pipeline.recording.score import AFTER_END_NS, EARLY_NS
from tocsin.pipeline.recording.tables import Manifest
from tocsin.schemas.errors import ConfigError, FieldError
from tocsin.schemas.wire.validate import INT64_MAX, check_int, check_name

_MAX_FILE_BYTES: Final = 1 << 30
_MAX_SHOWN_CHARACTERS: Final = 80


@dataclass(frozen=True, slots=True)
class JudgedVerdict:
    """A verdict that a person judged.

    Attributes:
        verdict_id: its id.
        cluster: its cluster.
        job_id: its job.
        attempt: the job's attempt.
        fault: kind of the fault.
        suspects: names of who was accused; empty: nobody was.
        onset_ns: begin of the fault, Unix ns.
        changed_ns: time of the verdict's last line, Unix ns.
        is_true: whether the person upheld it.
    """

    verdict_id: str
    cluster: str
    job_id: str
    attempt: int
    fault: str
    suspects: tuple[str, ...]
    onset_ns: int
    changed_ns: int
    is_true: bool


@dataclass(frozen=True, slots=True)
class FeedbackTally:
    """Numbers of verdicts that people judged, and of those that a detector set tells again.

    Attributes:
        upheld_count: verdicts that people upheld.
        found_count: those of them that the set tells, too.
        denied_count: verdicts that people denied.
        repeated_count: those of them that the set tells, too.
        unjudged_count: verdicts of the set on which nobody said anything.
    """

    upheld_count: int = 0
    found_count: int = 0
    denied_count: int = 0
    repeated_count: int = 0
    unjudged_count: int = 0

    def __add__(self, other: FeedbackTally) -> FeedbackTally:
        """Return the sums."""
        return FeedbackTally(
            self.upheld_count + other.upheld_count,
            self.found_count + other.found_count,
            self.denied_count + other.denied_count,
            self.repeated_count + other.repeated_count,
            self.unjudged_count + other.unjudged_count,
        )

    def to_object(self) -> dict[str, int]:
        """Return the numbers as a JSON object."""
        return {
            "upheld": self.upheld_count,
            "found": self.found_count,
            "denied": self.denied_count,
            "repeated": self.repeated_count,
            "unjudged": self.unjudged_count,
        }


def read_judged(path: Path) -> tuple[JudgedVerdict, ...]:
    """Return the judged verdicts of a file; of several lines on one verdict the last counts.

    Args:
        path: file that ``tocsin feedback --export`` wrote.

    Raises:
        ConfigError: it cannot be read, or a line is no judged verdict; the error names line, field and value.
    """
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise ConfigError("--feedback", str(path), f"a file of at most {_MAX_FILE_BYTES} bytes")
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ConfigError("--feedback", str(path), f"a file that can be read ({error.strerror or error})") from error
    found: dict[tuple[str, str], JudgedVerdict] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            judged = _judged(json.loads(line))
        except (FieldError, ValueError, RecursionError) as error:
            must = f"a file of tocsin feedback --export; line {number}: {error}"
            raise ConfigError("--feedback", str(path), must) from error
        found[judged.cluster, judged.verdict_id] = judged
    return tuple(found.values())


def _judged(values: object) -> JudgedVerdict:
    """Return the judged verdict of a JSON object; raise ``FieldError`` if it is none."""
    if not isinstance(values, dict):
        raise FieldError("line", str(values)[:_MAX_SHOWN_CHARACTERS], "an object")
    is_true, suspects = values.get("is_true"), values.get("suspects")
    if not isinstance(is_true, bool):
        raise FieldError("is_true", is_true, "true or false")
    if not isinstance(suspects, list):
        raise FieldError("suspects", suspects, "a list of names")
    return JudgedVerdict(
        check_name(values.get("verdict_id"), "verdict_id"),
        check_name(values.get("cluster"), "cluster"),
        check_name(values.get("job_id"), "job_id"),
        check_int(values.get("attempt"), "attempt", 0, INT64_MAX),
        check_name(values.get("fault"), "fault"),
        tuple(check_name(one, f"suspects[{at}]") for at, one in enumerate(suspects)),
        check_int(values.get("onset_ns"), "onset_ns", 0, INT64_MAX),
        check_int(values.get("changed_ns"), "changed_ns", 0, INT64_MAX),
        is_true,
    )


def judged_in(judged: Iterable[JudgedVerdict], manifest: Manifest) -> list[JudgedVerdict]:
    """Return the judged verdicts of a recording's attempt whose fault began while it was recorded."""
    key = manifest.cluster, manifest.job_id, manifest.attempt
    return [
        one
        for one in judged
        if (one.cluster, one.job_id, one.attempt) == key
        and manifest.start_ns - EARLY_NS <= one.onset_ns <= manifest.end_ns
    ]


def tally_of(lines: Sequence[Mapping[str, Any]], judged: Sequence[JudgedVerdict]) -> FeedbackTally:
    """Compare a detector set's verdicts with what people said of a recording's.

    A verdict of the set is the judged one if it has its id. Otherwise it must name the same suspects (where nobody is
    named: the same fault) between two seconds before the judged one's onset and two minutes after its last line.
    Verdicts that the set took back, and those of a degraded job, do not count.

    Args:
        lines: the set's verdict updates, in order.
        judged: the judged verdicts of the recording.
    """
    told = _told(lines)
    matched: set[str] = set()
    again: dict[bool, list[bool]] = {True: [], False: []}
    for one in judged:
        same = [name for name, (detected_ns, last) in told.items() if _is_same(one, name, detected_ns, last)]
        matched.update(same)
        again[one.is_true].append(bool(same))
    upheld, denied = again[True], again[False]
    return FeedbackTally(len(upheld), sum(upheld), len(denied), sum(denied), len(told) - len(matched))


def _told(lines: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, Mapping[str, Any]]]:
    """Return id -> (when it was told first in ns, last line) of the verdicts that were not taken back."""
    found: dict[str, tuple[int, Mapping[str, Any]]] = {}
    for line in lines:
        name = str(line["id"])
        first_ns = found[name][0] if name in found else int(line["detected_ns"])
        found[name] = first_ns, line
    return {
        name: (first_ns, last)
        for name, (first_ns, last) in found.items()
        if last["state"] != "cancelled" and last["fault"] != "degraded"
    }


def _is_same(one: JudgedVerdict, verdict_id: str, detected_ns: int, last: Mapping[str, Any]) -> bool:
    """Return whether a told verdict is the judged one."""
    if verdict_id == one.verdict_id:
        return True
    names = {str(suspect["name"]) for suspect in last["suspects"]}
    if names != set(one.suspects) or (not names and last["fault"] != one.fault):
        return False
    return one.onset_ns - EARLY_NS <= detected_ns <= one.changed_ns + AFTER_END_NS
