"""How much processor time ``tocsin policy replay`` takes, and that it grows with the number of lines.

A verdict a second, nine of ten of one class that floods, the others of five classes that are no flood at first. Two
floods of different length are replayed, both longer than the first hour, in which the breakers hold nearly all and a
line is cheaper: the time of a line must not grow.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from tests.pipeline.actions.policy.samples import JOB, A, ladder, verdict
from tocsin.pipeline.actions.policy.controller_judge import ControllerJudge
from tocsin.pipeline.actions.policy.replay import DecisionOutcome, replay
from tocsin.schemas.verdicts import Verdict

COUNTS = (10_000, 30_000)
MOST_GROWTH_RATIO = 1.5
"""Greatest ratio of the times of a line; other programs on the machine make it differ by a tenth or two."""
REAL = (
    ("gpu_card_drop", A.EVICT),
    ("ecc_error", A.EVICT),
    ("machine_unreachable", A.EVICT),
    ("thermal_throttle", A.DRAIN),
    ("process_frozen", A.RESTART),
)


def lines(count: int) -> Iterator[Verdict]:
    """Yield a flood, one verdict a second, on 3,000 hosts and 50 jobs."""
    for number in range(count):
        cause, action = REAL[number // 10 % len(REAL)] if number % 10 == 0 else ("nvlink_error", A.EVICT)
        job, host = replace(JOB, job_id=f"j{number % 50}"), f"n{number * 7 % 3000}"
        yield verdict(cause, (host,), float(number), name=f"v{number}", job=job, action=action)


def run(count: int) -> tuple[float, float, int]:
    """Return the processor seconds to make the lines and to replay them, and the number of machines taken."""
    begin = time.process_time()
    found = list(lines(count))
    made = time.process_time()
    taken = {
        one.target
        for one in replay(found, [], ControllerJudge(ladder()))
        if one.outcome is DecisionOutcome.ACT and one.kind is not A.RESTART
    }
    return made - begin, time.process_time() - made, len(taken)


def main() -> None:
    """Replay both floods and compare the time of a line.

    Raises:
        AssertionError: a line of the longer flood takes much more time.
    """
    each = []
    for count in COUNTS:
        _, seconds, taken_count = run(count)
        each.append(seconds / count)
        text = f"{count} verdicts of {count / 3600:.1f} hours: {seconds:.1f} s of processor time"
        print(f"{text}, {1000 * each[-1]:.2f} ms a verdict; machines taken: {taken_count}")
    ratio = each[-1] / each[0]
    print(f"a verdict of the longer flood takes {ratio:.2f} times as long (at most {MOST_GROWTH_RATIO:g})")
    if ratio > MOST_GROWTH_RATIO:
        raise AssertionError(f"the time of a line grows: {ratio:.2f} times")
