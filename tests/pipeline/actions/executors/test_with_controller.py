"""The real controller, the core of executors and a fake Slurm together: an evict, its undo, deaths, epochs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.pipeline.actions.executors.fake_slurm import USER, FakeSlurm
from tests.pipeline.actions.kit import CLUSTER, JOB, Stage, verdict_on
from tocsin.pipeline.actions.executors.core import ExecutorConfig, ExecutorCore
from tocsin.pipeline.actions.executors.slurm import SlurmTarget, SlurmTargetConfig
from tocsin.pipeline.actions.executors.slurm_cluster import SlurmCluster
from tocsin.pipeline.actions.executors.worker import ExecutorWorker
from tocsin.schemas.action_events import Ack, Cancel, ExecutorHeard, JobFacts
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import ActionKind

STEPS = ["update NodeName", "update JobId", "requeuehold 7", "update JobId", "release 7"]


class Site:
    """A controller, a Slurm with a job on all its nodes, and executors that read what the controller publishes."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.slurm = FakeSlurm(*self.stage.hosts)
        self.job = self.slurm.add_job(7, *self.stage.hosts)
        self.stage.tell(JobFacts(JOB, self.stage.now_ns + 1, self.stage.hosts, slurm_job_id="7", spare_count=8))
        self.workers: dict[str, tuple[ExecutorCore, ExecutorWorker]] = {}
        self.read: dict[str, int] = {}

    def start(self, name: str, kinds: Sequence[ActionKind] = (ActionKind.EVICT, ActionKind.DRAIN)) -> None:
        """Start an executor, or another process in its place; it reads all messages anew."""
        self.stage.tell(ExecutorHeard(CLUSTER, name, tuple(kinds), self.stage.now_ns))
        core = ExecutorCore(ExecutorConfig(CLUSTER, name, frozenset(kinds)))
        target = SlurmTarget(SlurmTargetConfig(USER), SlurmCluster(self.slurm))
        self.workers[name] = core, ExecutorWorker(core, target, lambda: self.stage.now_ns, self.say)
        self.read[name] = 0

    def say(self, acks: list[Ack]) -> None:
        for ack in acks:
            self.stage.published += self.stage.controller.on_ack(ack, self.stage.now_ns)

    def go(self, name: str) -> None:
        """A second passes; the executor reads and works."""
        self.stage.at((self.stage.now_ns - self.stage.published[0].issued_ns) / NS_PER_SECOND + 1)
        core, worker = self.workers[name]
        for action in self.stage.published[self.read[name] :]:
            self.read[name] += 1
            self.say(core.on_action(action, self.stage.now_ns))
        worker.work()

    def until(self, state: ActionState, *names: str, kind: ActionKind = ActionKind.EVICT) -> None:
        for _ in range(200):
            if self.stage.on_host("n1", kind).state is state:
                return
            for name in names:
                self.go(name)
        raise AssertionError(f"no end: {self.stage.on_host('n1', kind)}, {self.stage.controller.left_out}")

    def steps(self) -> list[str]:
        return [effect.split("=")[0] for effect in self.slurm.effects]


@pytest.fixture
def site() -> Site:
    made = Site()
    made.stage.judge(verdict_on("n1"))
    return made


def test_an_evict_is_done_once_and_its_cancel_gives_the_machine_back(site: Site) -> None:
    for name in ("e1", "e2"):
        site.start(name)
    site.until(ActionState.DONE, "e1", "e2")
    action = site.stage.on_host("n1")
    assert site.steps() == STEPS
    assert site.slurm.nodes["n1"].reason == f"[HC] tocsin gpu_ecc {action.action_id}"
    assert (site.job.restarts, site.job.excluded) == (1, "n1")
    site.stage.tell(Cancel(CLUSTER, action.action_id, "uid:0", site.stage.now_ns))
    site.until(ActionState.UNDONE, "e1", "e2")
    assert not site.slurm.takes_no_work("n1")
    assert len(site.slurm.effects) == len(STEPS) + 1


@pytest.mark.parametrize("count", range(1, len(STEPS) + 1))
def test_an_executor_that_dies_after_any_effect_is_followed_after_its_lease(site: Site, count: int) -> None:
    site.start("e1")
    while len(site.slurm.effects) < count:
        site.slurm.away_after_effect = len(site.slurm.effects) == count - 1  # its last answer is lost
        site.go("e1")
    site.start("e2")
    site.until(ActionState.DONE, "e2")
    assert site.steps() == STEPS
    assert site.stage.on_host("n1").holder == "e2"


def test_a_new_controller_gives_the_action_anew_and_nothing_is_done_before(site: Site) -> None:
    site.start("e1")
    while not site.slurm.effects:
        site.go("e1")
    before = len(site.slurm.effects)
    site.stage.crash()
    other = verdict_on("n2", name="v2")
    published, site.stage.published = site.stage.published, []
    site.stage.controller.begin_epoch(5, site.stage.now_ns)  # what it published is not read yet
    site.stage.published = published
    site.stage.judge(other)
    for action in site.stage.published[site.read["e1"] :]:
        site.say(site.workers["e1"][0].on_action(action, site.stage.now_ns))
    site.workers["e1"][1].work()
    assert len(site.slurm.effects) == before
    site.stage.published += site.stage.controller.begin_epoch(6, site.stage.now_ns)
    site.until(ActionState.DONE, "e1")
    assert site.steps()[: len(STEPS)].count("requeuehold 7") == 1


def test_a_cancel_before_the_begin_leaves_the_machine_alone(site: Site) -> None:
    site.start("e1")
    while site.stage.on_host("n1").state is not ActionState.CLAIMED:
        site.go("e1")
    site.stage.tell(Cancel(CLUSTER, site.stage.on_host("n1").action_id, "uid:0", site.stage.now_ns))
    for _ in range(5):
        site.go("e1")
    assert site.stage.on_host("n1").state is ActionState.CANCELLED
    assert site.slurm.effects == []
