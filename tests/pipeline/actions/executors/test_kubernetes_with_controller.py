"""The real controller, the core of executors and a fake API server together: an evict, budgets, an API that is away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.pipeline.actions.executors.fake_kube import FakeKube, serving_kube
from tests.pipeline.actions.executors.kube_world import KubeWorld
from tests.pipeline.actions.kit import CLUSTER, JOB, Stage, verdict_on
from tocsin.pipeline.actions.executors.core import ExecutorConfig, ExecutorCore
from tocsin.pipeline.actions.executors.kubernetes import KINDS
from tocsin.pipeline.actions.executors.worker import ExecutorWorker
from tocsin.schemas.action_events import Ack, Cancel, ExecutorHeard, JobFacts, Pod
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.records import NS_PER_SECOND

STEPS = ["PATCH /api/v1/nodes/n1", "PATCH /api/v1/nodes/n1/status"]
EVICTION = "POST /api/v1/namespaces/default/pods/p/eviction"


class Site:
    """A controller, an API server with a job's pod on n1, and an executor."""

    def __init__(self, kube: FakeKube, world: KubeWorld) -> None:
        self.stage = Stage()
        self.kube, self.world = kube, world
        world.add_node("n1", boot_id="boot-n1")
        pods = (Pod("n1", world.add_pod("p", "n1")),)
        self.stage.tell(JobFacts(JOB, self.stage.now_ns + 1, self.stage.hosts, pods=pods, spare_count=8))
        self.stage.judge(verdict_on("n1"))
        self.start()

    def start(self) -> None:
        """Start the executor, or another process in its place."""
        self.stage.tell(ExecutorHeard(CLUSTER, "e1", tuple(sorted(KINDS)), self.stage.now_ns))
        self.core = ExecutorCore(ExecutorConfig(CLUSTER, "e1", KINDS))
        self.worker = ExecutorWorker(self.core, self.world.target(), lambda: self.stage.now_ns, self.say)
        self.read_count = 0

    def say(self, acks: list[Ack]) -> None:
        for ack in acks:
            self.stage.published += self.stage.controller.on_ack(ack, self.stage.now_ns)

    def go(self, seconds: float = 1.0) -> None:
        """Time passes; the executor reads and works."""
        begin_ns = self.stage.published[0].issued_ns
        self.stage.at((self.stage.now_ns - begin_ns) / NS_PER_SECOND + seconds)
        self.world.clock_ns[0] = self.stage.now_ns
        for action in self.stage.published[self.read_count :]:
            self.read_count += 1
            self.say(self.core.on_action(action, self.stage.now_ns))
        self.worker.work()

    def until(self, state: ActionState) -> None:
        for _ in range(60):
            if self.stage.on_host("n1").state is state:
                return
            self.go(5)
        raise AssertionError(f"no end: {self.stage.on_host('n1')}")


@pytest.fixture
def site() -> Iterator[Site]:
    with serving_kube() as (kube, world):
        yield Site(kube, world)


def test_an_evict_is_done_and_its_cancel_gives_the_node_back(site: Site) -> None:
    while not site.world.pods()["p"]:
        site.go()
    site.world.remove_pod("p")
    site.until(ActionState.DONE)
    assert site.kube.effects == [*STEPS, EVICTION]
    site.stage.tell(Cancel(CLUSTER, site.stage.on_host("n1").action_id, "uid:0", site.stage.now_ns))
    site.until(ActionState.UNDONE)
    assert site.kube.effects[3:] == STEPS[::-1]
    assert not site.world.is_cordoned("n1")


def test_an_api_server_that_is_away_for_an_hour_is_paged_and_nothing_is_lost_or_done_twice(site: Site) -> None:
    site.kube.lost, site.kube.is_away_after_it = 1, True
    while not site.kube.effects:
        site.go()
    for _ in range(240):
        site.go(15)
        if site.stage.on_host("n1").state is ActionState.BLOCKED and site.read_count % 2:
            site.start()  # it is restarted now and then, and reads all messages anew
    assert site.stage.on_host("n1").state is ActionState.BLOCKED
    assert site.stage.pages().count("blocked_by_target") == 1
    assert site.kube.effects == STEPS[:1]
    site.kube.is_away, site.kube.lost = False, 0
    while not site.world.pods()["p"]:
        site.go()
    site.world.remove_pod("p")
    site.until(ActionState.DONE)
    assert site.kube.effects == [*STEPS, EVICTION]


def test_a_budget_that_never_allows_is_blocked_and_paged_once_and_an_eviction_follows_when_it_allows(
    site: Site,
) -> None:
    site.world.add_budget("p", 0)
    for _ in range(100):
        site.go(15)
    assert site.stage.on_host("n1").state is ActionState.BLOCKED
    assert site.stage.pages().count("blocked_by_target") == 1
    assert site.world.pods() == {"p": False}
    site.world.allow("p", 1)
    for _ in range(10):
        site.go(15)
    assert site.world.pods() == {"p": True}
    assert site.kube.effects == [*STEPS, EVICTION]


def test_credentials_that_expired_lose_nothing(site: Site) -> None:
    site.kube.expired.add("executor-token")
    for _ in range(20):
        site.go(5)
    assert site.kube.effects == []
    assert site.stage.on_host("n1").state is not ActionState.FAILED
    site.kube.expired.clear()
    while not site.world.pods()["p"]:
        site.go()
    assert site.kube.effects == [*STEPS, EVICTION]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_an_executor_that_dies_after_any_effect_repeats_nothing(site: Site, count: int) -> None:
    site.kube.lost = count
    while not site.kube.effects:
        site.go()
    assert len(site.kube.effects) == count
    site.start()
    for _ in range(30):
        site.go(5)
    assert site.kube.effects == [*STEPS, EVICTION]
