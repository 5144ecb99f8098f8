"""What a round that counts effects carries out: verdicts about one cluster on Slurm, one with a job controller."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tests.pipeline.actions.kit import T0, verdict_on
from tocsin.schemas.action_events import JobFacts, MachineFacts
from tocsin.schemas.job_key import JobKey
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import ActionKind, Verdict, VerdictState

SLURM: Final = "slurm"
JOB: Final = "job"
CLUSTERS: Final = (SLURM, JOB)
"""Each cluster has one executor, which is called as the cluster."""
PEERS: Final = ("peer0", "peer1")
MACHINE_COUNT: Final = 160
"""Of each cluster, so that budgets, which are shares, leave room for what is told here."""
_SHORT_SECONDS: Final = 8
_FIRST_JOB: Final = 7000
_KINDS: Final = {
    SLURM: (ActionKind.RESTART, ActionKind.EVICT, ActionKind.RESTART, ActionKind.DRAIN),
    JOB: (ActionKind.RESTART, ActionKind.ROLLBACK, ActionKind.EVICT, ActionKind.RESTART),
}
_CAUSES: Final = {
    ActionKind.RESTART: "process_frozen",
    ActionKind.EVICT: "ecc_error",
    ActionKind.DRAIN: "thermal_throttle",
    ActionKind.ROLLBACK: "nan_gradient",
}


@dataclass(frozen=True)
class ActionStory:
    """A job on machines of its own, and a verdict about one of them.

    Attributes:
        number: of the story, from 0.
        begin_ns: when the verdict is confirmed.
        is_cancelled: a person takes the action back as soon as it is shown; how far it is by then is chance.
        is_short: its verdict expires after a few seconds; whether the action is begun before is chance, and where the
            controller was away for so long there is none.
        is_withdrawn: the engine cancels the verdict when an executor is about to begin; who is first is chance.
        is_undone: a person takes the action back after it was done.
    """

    number: int
    begin_ns: int
    is_cancelled: bool = False
    is_short: bool = False
    is_withdrawn: bool = False
    is_undone: bool = False

    @property
    def cluster(self) -> str:
        return CLUSTERS[self.number % 2]

    @property
    def kind(self) -> ActionKind:
        return _KINDS[self.cluster][self.number // 2 % 4]

    @property
    def is_chance(self) -> bool:
        """Whether runs may differ in what is carried out."""
        return self.is_cancelled or self.is_short or self.is_withdrawn

    @property
    def name(self) -> str:
        return f"v{self.number}"

    @property
    def host(self) -> str:
        return f"n{self.number}"

    @property
    def slurm_job(self) -> int:
        return _FIRST_JOB + self.number

    @property
    def job(self) -> JobKey:
        return JobKey(self.cluster, str(self.slurm_job), 0)

    @property
    def hosts(self) -> tuple[str, ...]:
        return (self.host, *PEERS)

    def facts(self) -> list[MachineFacts | JobFacts]:
        """Return what is known of machine and job. Each machine has a driver of its own, so each verdict is a class."""
        boot = MachineFacts(self.cluster, self.host, self.begin_ns, driver=f"5{self.number}.0", leaf=f"l{self.number}")
        slurm_id = str(self.slurm_job) if self.cluster == SLURM else ""
        return [boot, JobFacts(self.job, self.begin_ns, self.hosts, slurm_job_id=slurm_id)]

    def verdict(self) -> Verdict:
        at_seconds = (self.begin_ns - T0) / NS_PER_SECOND
        seconds = _SHORT_SECONDS if self.is_short else 600
        return verdict_on(
            self.host,
            name=self.name,
            action=self.kind,
            cause=_CAUSES[self.kind],
            at_seconds=at_seconds,
            job=self.job,
            expires_ns=self.begin_ns + seconds * NS_PER_SECOND,
        )

    def is_stale(self, now_ns: int) -> bool:
        """Whether its verdict has expired."""
        return now_ns >= self.verdict().expires_ns

    def withdrawal(self, now_ns: int) -> Verdict:
        """Return the update with which the engine takes its verdict back."""
        cancelled = replace(self.verdict(), update=1, state=VerdictState.CANCELLED, reason="monitoring_lost")
        return replace(cancelled, detected_ns=max(now_ns, cancelled.detected_ns))


def story_of(number: int, begin_ns: int) -> ActionStory:
    """The story of a number: of sixteen four are withdrawn, one is cancelled at once, two are short.

    What is carried out of the other nine is no matter of chance. Every second eviction is undone.
    """
    kind, place = ActionStory(number, 0).kind, number % 16
    return ActionStory(
        number,
        begin_ns,
        is_cancelled=place == 6,
        is_short=place in {8, 9},
        is_withdrawn=place in {3, 4, 12, 15},
        is_undone=kind is ActionKind.EVICT and place < 8,
    )
