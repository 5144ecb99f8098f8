"""Start-up stages in the entries of MLPerf's logs.

========== ============================== =====================================
stage      begins                         ends
========== ============================== =====================================
env_setup  first entry of the log         ``init_start``
model_init ``init_start``                 ``init_stop``
first_step ``run_start``                  first report of a step, its loss or its throughput
========== ============================== =====================================

Where at least four processes with a name wrote the end of a stage, it is a stage of each of them. Otherwise it is one
stage of the whole job. Entries without a name that many processes write are groups of stamps: they say that somebody
was late, never who.

The first entry of the log is another process's than most. So a process whose clock differs is not compared in
``env_setup``; its other stages are its own, and are put back on its peers' clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Final

from tocsin.models.startup.clocks import ClockShift, clock_shifts
from tocsin.models.startup.durations import NS, StageTable, stage_tables
from tocsin.models.startup.stragglers import DEFAULT, StragglerConfig, limit_seconds
from tocsin.schemas.formats.mllog import Stamp, StampKind
from tocsin.schemas.startup import Edge, StageMark, StartupStage

CACHE_CLEAR: Final = "cache_clear"
INIT_START: Final = "init_start"
INIT_STOP: Final = "init_stop"
RUN_START: Final = "run_start"
RUN_STOP: Final = "run_stop"
BENCHMARK: Final = "submission_benchmark"
_REPORTS: Final = ("train_loss", "tracked_stats", "throughput")
_GROUPS: Final = (CACHE_CLEAR, INIT_START, INIT_STOP, RUN_START)
"""Keys that each process or each node may write once in a start, in their order."""


@dataclass(frozen=True, slots=True)
class NamedStamp:
    """An entry of a log, and the node of its process.

    Attributes:
        stamp: the entry.
        node: the name that is compared with its peers, "" if unknown.
    """

    stamp: Stamp
    node: str = ""


@dataclass(frozen=True, slots=True)
class StampGroup:
    """Entries with one key that several processes wrote without their names.

    Attributes:
        key: the entries' key.
        count: number of entries.
        spread_seconds: last minus first.
        late_count: entries that come late.
        late_seconds: how long after the median the last of them comes, 0 if none is late.
        least_late_seconds: how long after the median the first of the late ones comes.
        waiting_seconds: time that all processes together waited for the last entry.
    """

    key: str
    count: int
    spread_seconds: float
    late_count: int
    late_seconds: float
    least_late_seconds: float
    waiting_seconds: float


@dataclass(frozen=True, slots=True)
class LoggedStart:
    """One start of a job, as its logs tell it.

    Attributes:
        benchmark: name of the benchmark, "" if the log does not say.
        first_ns: the first entry.
        last_ns: the last entry.
        train_ns: begin of training, None if it did not begin.
        process_count: most processes that wrote one entry.
        tables: its stages.
        groups: stamps without names.
        told: its stages as the stamps tell them, before those of shifted nodes are put back.
        shifts: nodes whose clock differs from their peers'.
    """

    benchmark: str
    first_ns: int
    last_ns: int
    train_ns: int | None
    process_count: int
    tables: tuple[StageTable, ...]
    groups: tuple[StampGroup, ...]
    told: tuple[StageTable, ...]
    shifts: tuple[ClockShift, ...] = ()


def runs_of(stamps: Iterable[Stamp]) -> list[tuple[Stamp, ...]]:
    """Return the entries of each run in one log, ordered by time: a log may be continued by the job's next start.

    A run ends with its last ``run_stop`` before another ``init_start``.
    """
    ordered = sorted(stamps, key=lambda stamp: stamp.ts_ns)
    starts = [at for at, stamp in enumerate(ordered) if stamp.key == INIT_START]
    cuts, stopped = [0], 0
    for at, stamp in enumerate(ordered):
        if stamp.key == RUN_STOP and any(start > at for start in starts[-1:]):
            stopped = at
        elif stopped and stamp.key in (CACHE_CLEAR, INIT_START, BENCHMARK) and stamp.ts_ns > ordered[stopped].ts_ns:
            cuts.append(at)
            stopped = 0
    return [tuple(ordered[begin:end]) for begin, end in pairwise([*cuts, len(ordered)]) if end > begin]


def logged_start(stamps: Sequence[NamedStamp], config: StragglerConfig = DEFAULT) -> LoggedStart | None:
    """Return the start in the entries of one run; None if they show no stage."""
    if not stamps:
        return None
    shifts = clock_shifts((((one.stamp.key,), one.node, one.stamp.ts_ns) for one in stamps), config)
    shifted, told = frozenset(one.node for one in shifts), stamps
    stamps = _put_back(told, shifts)
    by_key = _by_key(stamps)
    first_ns, last_ns = (pick(one.stamp.ts_ns for one in stamps) for pick in (min, max))
    train_ns = min((one.stamp.ts_ns for one in by_key[RUN_START]), default=None)
    tables = tuple(stage_tables(_marks(stamps, first_ns, shifted)))
    if not tables:
        return None
    names = (one.stamp.value for one in stamps if one.stamp.key == BENCHMARK)
    return LoggedStart(
        next(names, ""),
        first_ns,
        last_ns,
        train_ns,
        max(len(by_key[key]) for key in _GROUPS),
        tables,
        tuple(_groups(by_key, first_ns, train_ns, config)),
        tuple(stage_tables(_marks(told, _told_first(told, shifted, first_ns), shifted))) if shifts else tables,
        tuple(shifts),
    )


def _put_back(stamps: Sequence[NamedStamp], shifts: Iterable[ClockShift]) -> list[NamedStamp]:
    """Return entries with those of shifted nodes on their peers' clock.

    A node that seems ahead may have been late. So where its first entry comes before those of all its peers, entries
    with a key that nobody else wrote stay: they may tell when the start began, and when training did.
    """
    shift_ns = {one.node: one.shift_ns for one in shifts}
    alone = _alone(stamps)
    peers_ns = min((one.stamp.ts_ns for one in stamps if one.node not in shift_ns), default=0)
    stay = {one.node for one in stamps if one.stamp.ts_ns < peers_ns and shift_ns.get(one.node, 0) > 0}
    return [
        replace(one, stamp=replace(one.stamp, ts_ns=one.stamp.ts_ns - shift_ns[one.node]))
        if one.node in shift_ns and not (one.node in stay and one.stamp.key in alone)
        else one
        for one in stamps
    ]


def _told_first(told: Sequence[NamedStamp], shifted: frozenset[str], first_ns: int) -> int:
    """Return the first entry by the clocks of the stamps; ``first_ns`` where one before its peers' shows none."""
    alone = _alone(told)
    peers_ns = min((one.stamp.ts_ns for one in told if one.node not in shifted), default=first_ns)
    own_ns = min((one.stamp.ts_ns for one in told if one.node in shifted and one.stamp.key in alone), default=peers_ns)
    return own_ns if own_ns < peers_ns else first_ns


def _alone(stamps: Iterable[NamedStamp]) -> set[str]:
    """Return the keys that one node wrote, and no other."""
    writers: dict[str, set[str]] = {}
    for one in stamps:
        writers.setdefault(one.stamp.key, set()).add(one.node)
    return {key for key, nodes in writers.items() if len(nodes) == 1}


def _by_key(stamps: Iterable[NamedStamp]) -> dict[str, list[NamedStamp]]:
    """Return the entries of each key that begins or ends a stage, or a run."""
    return {key: [one for one in stamps if one.stamp.key == key] for key in (*_GROUPS, RUN_STOP)}


def _marks(stamps: Sequence[NamedStamp], first_ns: int, shifted: frozenset[str]) -> list[StageMark]:
    """Return the begins and ends of all stages; without a node where a stage belongs to the whole job.

    Nodes that are ``shifted`` by their clock have no ``env_setup``, which begins with another node's stamp.
    """
    by_key = _by_key(stamps)
    train_ns = min((one.stamp.ts_ns for one in by_key[RUN_START]), default=None)
    starts, stops = [one for one in by_key[INIT_START] if _before(one, train_ns)], by_key[INIT_STOP]
    marks: list[StageMark] = []
    if starts:
        told = [one for one in starts if one.node not in shifted]
        origins = [
            NamedStamp(Stamp(first_ns, StampKind.POINT, ""), node) for node in dict.fromkeys(one.node for one in told)
        ]
        if told and first_ns < min(one.stamp.ts_ns for one in starts):
            marks += _stage(StartupStage.ENV_SETUP, origins, told)
        marks += _stage(StartupStage.MODEL_INIT, starts, stops)
    if train_ns is not None:
        reports = [one for one in stamps if one.stamp.key in _REPORTS and one.stamp.ts_ns > train_ns]
        first = min(reports, key=lambda one: one.stamp.ts_ns, default=None)
        marks += _stage(StartupStage.FIRST_STEP, by_key[RUN_START], [] if first is None else [first])
    return marks


def _before(one: NamedStamp, limit_ns: int | None) -> bool:
    """Return whether an entry comes before a time or at it; later ones repeat what was said."""
    return limit_ns is None or one.stamp.ts_ns <= limit_ns


def _stage(stage: StartupStage, begins: Sequence[NamedStamp], ends: Sequence[NamedStamp]) -> list[StageMark]:
    """Return the marks of one stage: of each process if enough of them have a name, else of the job."""
    begun, ended = ({one.node for one in some if one.node} for some in (begins, ends))
    is_named = len(ended) >= DEFAULT.least_peer_count and 2 * len(ended & begun) >= len(begun)
    marks = []
    for edge, some in ((Edge.BEGIN, begins), (Edge.END, ends)):
        for one in some:
            if one.node or not is_named:
                node = one.node if is_named else ""
                marks.append(StageMark(one.stamp.ts_ns, stage, edge, node))
    return marks


def _groups(
    by_key: dict[str, list[NamedStamp]], first_ns: int, train_ns: int | None, config: StragglerConfig
) -> Iterable[StampGroup]:
    """Yield the groups of entries without names, each judged from the median of the one before it."""
    origin_ns = first_ns
    for key in _GROUPS:
        limit_ns = train_ns if key in (CACHE_CLEAR, INIT_START) else None
        times = [one.stamp.ts_ns for one in by_key[key] if _before(one, limit_ns)]
        is_named = len({one.node for one in by_key[key] if one.node}) >= config.least_peer_count
        if len(times) > config.least_peer_count and not is_named:
            yield _group(key, times, min(origin_ns, *times), config)
        if times:
            origin_ns = int(median(times))


def _group(key: str, times: Sequence[int], origin_ns: int, config: StragglerConfig) -> StampGroup:
    """Return a group of entries, with those that come late after the median."""
    since = [(time - origin_ns) / NS for time in times]
    middle, limit = median(since), limit_seconds(since, config)
    late = [one - middle for one in since if one > limit]
    last = max(since)
    return StampGroup(
        key,
        len(times),
        last - min(since),
        len(late),
        max(late, default=0.0),
        min(late, default=0.0),
        sum(last - one for one in since),
    )
