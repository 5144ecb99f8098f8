"""H5: a host that stops its job and says that it went on, alone or while another host's agent is away."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tests.attacks.registry import Outcome, attack
from tocsin.pipeline.lab.testing import FakeJob, JobShape
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.schemas import events
from tocsin.schemas.records import NS_PER_SECOND, CollectiveBatch, CollectiveRecord, Event, JobRecord
from tocsin.schemas.verdicts import Verdict, VerdictState

HOST_COUNT, LIAR, ABSENT = 16, 4, 5
FORMS: dict[str, tuple[tuple[str, str], ...]] = {
    "past its pair": (("completion", "tp"), ("state", "dp")),
    "past its replicas": (("completion", "tp"), ("completion", "dp"), ("state", "world")),
    "past all": (("completion", "tp"), ("completion", "dp"), ("completion", "world")),
    "past the world": (("completion", "world"),),
    "waits as all do": (("state", "tp"),),
}
"""What the liar says again and again: of which of its groups it finished the collective in which all others stand."""
_STOPS_SECOND, _SECONDS, _TOLD_SECONDS = 40, 140, 5
_MS = NS_PER_SECOND // 1000
_COSTLY = frozenset({"restart", "rollback", "drain", "evict", "replay"})


@dataclass(frozen=True, slots=True)
class Judged:
    """What was said of machines that are not the liar's.

    Attributes:
        costly: actions that cost more than a look, proposed at a time when all agents spoke.
        standing: verdicts that still accuse an innocent machine at the end.
    """

    costly: tuple[str, ...]
    standing: tuple[str, ...]


def judged(form: str, away_seconds: int = 0) -> Judged:
    """Play a job that the liar stops.

    Args:
        form: a key of ``FORMS``.
        away_seconds: for how long another host's agent is away, from 3 s before the job stops; 0: not at all.
    """
    engine = EmbeddedEngine(EngineConfig(history=None))
    job = FakeJob(JobShape(rank_count=HOST_COUNT))
    verdicts: dict[str, Verdict] = {}
    costly: list[str] = []
    back_second = _STOPS_SECOND - 3 + away_seconds
    for second in range(_SECONDS):
        if second == _STOPS_SECOND - 3 and away_seconds:
            job.kill_agent(ABSENT)
        if second == _STOPS_SECOND:
            job.freeze(LIAR, seen=False)
        if second == back_second and away_seconds:
            job.ranks[ABSENT].agent_alive = True
        records = [*job.second(), *(_lies(job, FORMS[form]) if second > _STOPS_SECOND else ())]
        for record in records:
            engine.take_record(record)
        for verdict in engine.tick(job.now_ns).verdicts:
            verdicts[verdict.verdict_id] = verdict
        if not away_seconds or second < _STOPS_SECOND or second > back_second + 2 * _TOLD_SECONDS:
            costly += [f"{one.action.value} {_names(one)}" for one in _live(verdicts.values()) if _accuses(one)]
    standing = [f"{one.cause} {_names(one)}" for one in _live(verdicts.values()) if _accuses(one)]
    return Judged(tuple(sorted(set(costly))), tuple(standing))


def _lies(job: FakeJob, form: Sequence[tuple[str, str]]) -> Iterator[JobRecord]:
    if job.now_ns // NS_PER_SECOND % _TOLD_SECONDS:
        return
    own = {group.kind.value: group.comm_id for group in job.groups if LIAR in group.ranks}
    stamp = job.now_ns - _MS
    rows = []
    for record, kind in form:
        seq, is_done = job.step + 1, record == "completion"
        begin_ns, end_ns = (0, stamp - _MS) if is_done else (stamp - 2 * NS_PER_SECOND, 0)
        reported: Literal["completion", "state"] = "completion" if is_done else "state"
        rows.append(CollectiveRecord(stamp, reported, LIAR, own[kind], "all_reduce", seq, 4096, begin_ns, end_ns))
    rows.sort(key=lambda row: (row.ts_ns, row.rank, row.comm_id, row.op_seq))
    yield CollectiveBatch(job.job, job.ranks[LIAR].host, stamp, tuple(rows))


def _live(verdicts: Iterable[Verdict]) -> list[Verdict]:
    return [one for one in verdicts if one.state in (VerdictState.OPEN, VerdictState.CONFIRMED)]


def _accuses(verdict: Verdict) -> bool:
    return verdict.action.value in _COSTLY and any(s.component.name != f"n{LIAR:02d}" for s in verdict.suspects)


def _names(verdict: Verdict) -> str:
    return ", ".join(suspect.component.name for suspect in verdict.suspects)


@attack("H5", "a host that stops its job says that it finished the collective")
def finished_alone() -> Outcome:
    """Nobody else did: those that wait for it are not taken for the ones that hold it up."""
    found = {form: reported for form in FORMS if (reported := judged(form).costly)}
    return Outcome(len(FORMS), f"innocents to be restarted: {found}", not found)


@attack("H5", "the same while another host's agent is away for most of a minute")
def finished_while_away() -> Outcome:
    """What its silence said is taken back as soon as its rank is heard again."""
    found = {}
    for form in FORMS:
        for away_seconds in (42, 51, 60):
            reported = judged(form, away_seconds)
            if reported.costly or reported.standing:
                found[form, away_seconds] = reported
    return Outcome(3 * len(FORMS), f"innocents accused with all agents there: {found}", not found)


@attack("H5", "a rank is killed and its host tells nobody")
def death_untold() -> Outcome:
    """All others leave with lost connections: the one that is left is named."""
    wrong = {}
    for host_count in (4, 16):
        engine = EmbeddedEngine(EngineConfig(history=None))
        job = FakeJob(JobShape(rank_count=host_count))
        names: set[str] = set()
        for second in range(75):
            if second == _STOPS_SECOND:
                job.kill(1)
            for record in job.second():
                if not (isinstance(record, Event) and record.name == events.EXIT and record.rank == 1):
                    engine.take_record(record)
            for verdict in engine.tick(job.now_ns).verdicts:
                names |= {suspect.component.name for suspect in verdict.suspects}
        if names != {"n01"}:
            wrong[host_count] = sorted(names)
    return Outcome(2, f"named otherwise than n01 alone: {wrong}", not wrong)
