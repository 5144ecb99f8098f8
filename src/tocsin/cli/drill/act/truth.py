"""What a drill itself measured of its job's time, beside the engine's ledger of effective training time.

The drill measures by its own clock and by what the ranks write down of themselves. It uses nothing that the agents
sent. Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tocsin.cli.drill.checkpoint_files import RankTime, TimeKind
from tocsin.pipeline.stores.attempt_times import UNATTRIBUTED, TimePart
from tocsin.schemas.records import NS_PER_SECOND

MOST_SECONDS: Final = 1.0
"""Most by which a part of the ledger may differ from what the drill measured."""
MOST_UNATTRIBUTED_RATIO: Final = 0.01
WALL: Final = "wall"

AttemptTimes = Sequence[Sequence[RankTime]]
"""For each rank, what it wrote down in one attempt."""


@dataclass(frozen=True, slots=True)
class StruckTimes:
    """When the drill struck and what it heard, by its own clock (Unix ns).

    Attributes:
        struck_ns: the strike.
        named_ns: the first line of the verdict.
        confirmed_ns: the line that confirmed it.
    """

    struck_ns: int
    named_ns: int
    confirmed_ns: int


def true_seconds(attempts: Sequence[AttemptTimes], struck: StruckTimes) -> dict[str, float]:
    """Return part -> seconds, ``wall`` and ``unattributed`` among them, of a job with two attempts or more.

    Steps and checkpoints are means over the ranks. Start-up is from a rank's own begin to the first step. The step that
    the strike broke off is lost work: it is made again. When the first rank has left, the others are waited for.

    Args:
        attempts: what the ranks of each attempt wrote down; a rank that wrote nothing is left out.
        struck: what happened between the first attempt and the second.
    """
    found = dict.fromkeys((part.value for part in TimePart), 0.0)
    made = -1
    for attempt in attempts:
        ranks = [rank for rank in attempt if rank]
        steps = [one for rank in ranks for one in rank if one.kind is TimeKind.STEP]
        for part, is_new in ((TimePart.PRODUCTIVE, True), (TimePart.RECOMPUTED, False)):
            found[part.value] += _seconds(one for one in steps if (one.step > made) is is_new) / len(ranks)
        saved = (one for rank in ranks for one in rank if one.kind is TimeKind.SAVED)
        found[TimePart.IDLE.value] += _seconds(saved) / len(ranks)
        found[TimePart.START_UP.value] += (min(one.begin_ns for one in steps) - _begin_ns(ranks)) / NS_PER_SECOND
        made = max(made, sorted(max((one.step for one in rank), default=-1) for rank in ranks)[len(ranks) // 2])
    found[TimePart.RECOMPUTED.value] += max(0, struck.struck_ns - _last_ns(attempts[0])) / NS_PER_SECOND
    left = [one.end_ns for rank in attempts[-1] for one in rank if one.kind is TimeKind.LEFT]
    found[TimePart.IDLE.value] += (max(left) - min(left)) / NS_PER_SECOND if left else 0.0
    found[TimePart.DETECTION.value] = (struck.named_ns - struck.struck_ns) / NS_PER_SECOND
    found[TimePart.DIAGNOSIS.value] = (struck.confirmed_ns - struck.named_ns) / NS_PER_SECOND
    found[TimePart.SCHEDULING.value] = (_begin_ns(attempts[1]) - struck.confirmed_ns) / NS_PER_SECOND
    wall = (_last_ns(attempts[-1]) - _begin_ns(attempts[0])) / NS_PER_SECOND
    return {WALL: wall, **found, UNATTRIBUTED: wall - sum(found.values())}


def _begin_ns(ranks: AttemptTimes) -> int:
    """Return when the first rank of an attempt began."""
    return min(one.begin_ns for rank in ranks for one in rank)


def _last_ns(ranks: AttemptTimes) -> int:
    """Return when the last rank of an attempt ended what it wrote down last."""
    return max(one.end_ns for rank in ranks for one in rank)


def _seconds(times: Iterable[RankTime]) -> float:
    """Return the sum of some lengths."""
    return sum(one.end_ns - one.begin_ns for one in times) / NS_PER_SECOND


def ledger_seconds(accounts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return part -> seconds of all attempts together, as the ledger says.

    Args:
        accounts: rows of ``ettr_query``.
    """
    names = (WALL, *(part.value for part in TimePart), UNATTRIBUTED)
    return {name: sum(float(one[f"{name}_seconds"]) for one in accounts) for name in names}


def comparison_text(ledger: Mapping[str, float], truth: Mapping[str, float]) -> list[str]:
    """Return a table for people: each part as the ledger and as the drill measured it."""
    head = f"{'PART':12}  {'LEDGER':>8}  {'MEASURED':>8}  {'BETWEEN':>8}"
    rows = ((name, ledger[name], seconds) for name, seconds in truth.items())
    return [head, *(f"{name:12}  {own:7.1f}s  {seconds:7.1f}s  {own - seconds:+7.2f}s" for name, own, seconds in rows)]


def wrong_parts(ledger: Mapping[str, float], truth: Mapping[str, float]) -> str:
    """Return one sentence about what the ledger has wrong, "" if nothing."""
    for name, seconds in truth.items():
        if name != UNATTRIBUTED and abs(ledger[name] - seconds) > MOST_SECONDS:
            return f"the ledger's {name} is {ledger[name]:.1f} s, and the drill measured {seconds:.1f} s"
    if ledger[UNATTRIBUTED] > MOST_UNATTRIBUTED_RATIO * ledger[WALL]:
        return f"{ledger[UNATTRIBUTED]:.2f} s of {ledger[WALL]:.1f} s are unattributed in the ledger"
    return ""
