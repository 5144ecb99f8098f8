"""What learned detectors add: ``make bench ARGS=learned``. The engine without and with each, on cases of three sets.

``minder``: the 60 long cases of ``bench_comparison``. ``held``: 120 fresh jobs of the ``held`` half. ``drills``:
recordings of ``tocsin drill --record`` below ``TOCSIN_BENCH_DRILLS``, none of those that teach the models that ship.
First the verdicts: without learned detectors, with all as evidence, and with each allowed to accuse alone. Then what
each detector's anomalies say by themselves: of how many faults it names the machine before the verdict does, or where
no verdict does, and how many other machines it names.

``TOCSIN_BENCH_SETS`` (drills,held,minder), ``TOCSIN_BENCH_CASES`` (of each simulated set), ``TOCSIN_BENCH_PROCESSES``.
``TOCSIN_BENCH_SECONDS``: after so long the figures of the cases that are done are printed. ``TOCSIN_BENCH_KEEP``: file
of results; cases that are in it are not judged again, so that a run goes on where the last one stopped.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from pathlib import Path

from tests.bench import bench_comparison
from tests.bench.learned_cases import Judged, Order, Said, Verdicts, judge_case
from tocsin.pipeline.detect.learned.registry import LEARNED
from tocsin.pipeline.lab.simulation.case import HEALTHY
from tocsin.pipeline.lab.training.simulated import CASE_SECONDS, long_cases
from tocsin.pipeline.recording.under import recordings_under

DRILLS, HELD, LONG = "drills", "held", "minder"
HELD_SEED, HELD_COUNT, HELD_HOSTS = 9_800_000, 120, (4, 16)


def orders() -> list[Order]:
    """All cases of the sets that are asked for, drills first, then the simulated sets in turns."""
    sets = os.environ.get("TOCSIN_BENCH_SETS", f"{DRILLS},{HELD},{LONG}").split(",")
    asked = os.environ.get("TOCSIN_BENCH_CASES")
    drawn = {
        HELD: lambda: _held(int(asked or HELD_COUNT)),
        LONG: lambda: _long(int(asked or bench_comparison.CASE_COUNT)),
    }
    simulated = [list(drawn[name]()) for name in drawn if name in sets]
    in_turns = [order for order in chain.from_iterable(zip_longest(*simulated)) if order is not None]
    return [*(_drills() if DRILLS in sets else ()), *in_turns]


def _held(count: int) -> Iterator[Order]:
    """Fresh jobs, half of them with a fault."""
    for seed in range(HELD_SEED, HELD_SEED + count // 2):
        for kind in (None, HEALTHY):
            yield Order(HELD, f"{seed} {kind or 'fault'}", seed=seed, kind=kind, hosts=HELD_HOSTS)


def _long(count: int) -> Iterator[Order]:
    """The cases of ``bench_comparison``: half an hour each, faults of 13 minutes and more."""
    hosts = bench_comparison.HOSTS
    for case in long_cases(count, "held", hosts, bench_comparison.FIRST_SEED):
        kind = HEALTHY if case.kind == HEALTHY else None
        name = f"{case.seed} {kind or 'fault'}"
        yield Order(LONG, name, seed=case.seed, kind=kind, hosts=hosts, duration_seconds=CASE_SECONDS)


def _drills() -> list[Order]:
    """The recordings of drills."""
    named = os.environ.get("TOCSIN_BENCH_DRILLS")
    if not named:
        return []
    return [Order(DRILLS, folder.name, folder) for folder in recordings_under([Path(named)])]


def judged(wanted: Sequence[Order]) -> list[Judged]:
    """All cases, those of the file of results first; where the time is over, those that are done until then."""
    known = _known()
    found = [known[order.key] for order in wanted if order.key in known]
    left = [order for order in wanted if order.key not in known]
    seconds, begin = float(os.environ.get("TOCSIN_BENCH_SECONDS", "inf")), time.monotonic()
    processes = int(os.environ.get("TOCSIN_BENCH_PROCESSES", os.cpu_count() or 1))
    # spawn: numpy's threads do not survive a fork
    with multiprocessing.get_context("spawn").Pool(min(processes, max(1, len(left)))) as pool:
        answers = pool.imap(judge_case, left)
        for _ in left:
            try:
                one = answers.next(timeout=max(0.0, min(seconds - (time.monotonic() - begin), 1e9)))
            except multiprocessing.TimeoutError:
                print(f"time is over: {len(found)} of {len(wanted)} cases", flush=True)
                break
            found.append(one)
            keep(one)
    return found


def _known() -> Mapping[str, Judged]:
    """The results of earlier runs, by case."""
    file = os.environ.get("TOCSIN_BENCH_KEEP")
    if not file or not Path(file).is_file():
        return {}
    all_known = [Judged.from_object(json.loads(line)) for line in Path(file).read_text().splitlines()]
    return {one.order: one for one in all_known}


def keep(one: Judged) -> None:
    """Add a result to the file, if one is named."""
    file = os.environ.get("TOCSIN_BENCH_KEEP")
    if file:
        with Path(file).open("a") as kept:
            kept.write(json.dumps(one.to_object()) + "\n")


def verdict_line(way: str, cases: Sequence[Judged]) -> str:
    """A row of the table of verdicts."""
    own = [(case.fault, _of_way(case, way)) for case in cases]
    faults = [one for fault, one in own if fault]
    delays = [one.delay_seconds for one in faults if one.delay_seconds is not None]
    false, ever = (sum(getattr(one, name) for _, one in own) for name in ("false_count", "ever_wrong_count"))
    in_healthy = sum(one.ever_wrong_count for fault, one in own if not fault)
    middle = f"{statistics.median(delays):.1f}" if delays else "-"
    return f"{way:18}{len(faults):>7}{len(delays):>6}{middle:>10}{false:>7}{ever:>12}{in_healthy:>12}"


def _of_way(case: Judged, way: str) -> Verdicts:
    """What the verdicts of one way say."""
    return next(one for one in case.verdicts if one.way == way)


def said_line(name: str, cases: Sequence[Judged]) -> str:
    """What one detector's anomalies say by themselves."""
    own = [(case, _of_detector(case, name)) for case in cases]
    faults = [(case, one) for case, one in own if case.fault]
    hits = [(case, one.after_seconds) for case, one in faults if one.after_seconds is not None]
    verdict_after = [(after, case.verdicts[0].delay_seconds) for case, after in hits]
    alone = [case.fault for case, _ in hits if case.verdicts[0].delay_seconds is None]
    sooner = sum(after < (verdict if verdict is not None else 0.0) for after, verdict in verdict_after)
    middle = f"{statistics.median(after for _, after in hits):.0f}" if hits else "-"
    which = f" ({', '.join(sorted(alone))})" if alone else ""
    return (
        f"{name}: names the machine of {len(hits)} of {len(faults)} faults, median {middle} s; {len(alone)} of them no"
        f" verdict names{which}, {sooner} it names before the verdict; others: {sum(one.others for _, one in own)}"
        f" machines, {sum(one.others for case, one in own if not case.fault)} in healthy jobs"
    )


def _of_detector(case: Judged, name: str) -> Said:
    """What one detector's anomalies say of a case."""
    return next(one for one in case.said if one.detector == name)


def print_set(name: str, cases: Sequence[Judged], count: int) -> None:
    """The tables of one set of cases."""
    faulty, days = sum(bool(case.fault) for case in cases), sum(case.machine_days for case in cases)
    print(f"\n{name}: {len(cases)} of {count} cases, {faulty} with a fault, {days:.2f} machine-days")
    if not cases:
        return
    print(f"{'':18}{'faults':>7}{'hits':>6}{'median s':>10}{'false':>7}{'ever wrong':>12}{'in healthy':>12}")
    for one in cases[0].verdicts:
        print(verdict_line(one.way, cases))
    for detector in LEARNED:
        print(said_line(detector, cases))


def main() -> None:
    """Print the tables of each set."""
    wanted = orders()
    found = judged(wanted)
    for name in dict.fromkeys(order.group for order in wanted):
        own = {order.key for order in wanted if order.group == name}
        print_set(name, [one for one in found if one.order in own], len(own))
