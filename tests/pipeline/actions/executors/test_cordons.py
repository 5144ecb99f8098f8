"""What people do to machines reaches the controller through a running executor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.pipeline.actions.executors.fake_slurm import USER, FakeSlurm
from tests.pipeline.actions.executors.made import SECOND_NS, made_action
from tests.pipeline.actions.kit import CLUSTER, JOB, verdict_on
from tests.pipeline.runtime.embedded.actions.acting import EXECUTOR_KEY, PUBLIC, Acting
from tocsin.pipeline.actions.config import ControllerConfig
from tocsin.pipeline.actions.executors.client import ExecutorClient, ExecutorKeys
from tocsin.pipeline.actions.executors.cordons import LOOK_SECONDS, CordonWatch
from tocsin.pipeline.actions.executors.core import ExecutorConfig
from tocsin.pipeline.actions.executors.slurm import SlurmTarget, SlurmTargetConfig
from tocsin.pipeline.actions.executors.slurm_cluster import SlurmCluster
from tocsin.pipeline.identity.action_signatures import AckSigner, ActionChecker
from tocsin.pipeline.runtime.embedded.control_socket import ACTOR
from tocsin.schemas.action_events import Cancel, CordonOwner, CordonSeen, HumanChange, JobFacts
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.verdicts import ActionKind

LIVE = ControllerConfig(is_dry_run=False, spare_count=9, may_shrink=True)
DRAIN = frozenset({ActionKind.DRAIN})


class Site:
    """An engine, a Slurm and an executor that exchange as over the network."""

    def __init__(self, folder: Path) -> None:
        self.acting = Acting(folder, LIVE)
        self.slurm = FakeSlurm("n1", "n2")
        self.restart_executor()
        self.run(3)

    def call(self, cmd: str, **args: object) -> dict[str, Any]:
        """Ask the engine as the executor ``slurm``."""
        answer = self.acting.requests.for_executors()[cmd]({**args, ACTOR: "executor:slurm"})
        assert isinstance(answer, dict)
        return answer

    def restart_executor(self) -> None:
        """Another process takes the executor's place, without any memory."""
        keys = ExecutorKeys(AckSigner(EXECUTOR_KEY), ActionChecker(PUBLIC))
        target = SlurmTarget(SlurmTargetConfig(USER, DRAIN), SlurmCluster(self.slurm))
        config = ExecutorConfig(CLUSTER, "slurm", DRAIN)
        self.client = ExecutorClient([config], self, keys, target, lambda: self.acting.now_ns)

    def run(self, seconds: int) -> None:
        """Let time pass."""
        for _ in range(seconds):
            self.acting.follower.tell(JobFacts(JOB, self.acting.now_ns, hosts=("n1", "n2")))
            self.acting.tick()
            self.client.step()

    def judge(self, name: str, *, at_seconds: float) -> None:
        """The engine names the machine ``n1``."""
        self.acting.tick(verdict_on("n1", name=name, action=ActionKind.DRAIN, at_seconds=at_seconds))
        self.run(12)

    def found(self) -> list[tuple[str, str]]:
        """State and reason of all actions that are no pages, oldest first."""
        return [(state, reason) for _, state, reason in self.acting.states()]


def test_a_node_that_a_person_resumed_is_not_drained_again_for_the_same_cause(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.judge("v1", at_seconds=5)
    assert site.found() == [("done", "done")]
    site.restart_executor()
    site.run(15)
    node = site.slurm.nodes["n1"]
    node.flags, node.reason = set(), ""
    site.run(30)
    assert site.found() == [("undone", "returned_by_person")]
    site.judge("v2", at_seconds=65)
    assert site.found()[1:] == [("waiting", "vetoed")]
    assert len(site.slurm.effects) == 1


def test_a_node_that_somebody_else_drained_is_left_to_them(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.slurm.nodes["n1"].flags = {"DRAIN"}
    site.slurm.nodes["n1"].reason = "fan is loud"
    site.acting.is_settled = False  # the action waits, so that the executor looks before anybody may begin
    site.run(10)
    site.judge("v1", at_seconds=12)
    site.acting.is_settled = True
    site.run(5)
    assert site.found() == [("waiting", "cordoned_by_other")]
    assert not site.slurm.effects


def test_a_node_that_the_executor_gives_back_was_not_given_back_by_a_person(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.judge("v1", at_seconds=5)
    action = site.acting.wanted()[0]
    site.acting.follower.tell(Cancel(CLUSTER, action.action_id, "operator:ann", site.acting.now_ns))
    site.run(40)
    assert site.found() == [("undone", "undone")]
    assert not site.slurm.takes_no_work("n1")


class Read:
    """Says who keeps work off every machine."""

    owner = CordonOwner.TOCSIN

    def cordon_of(self, host: str) -> CordonOwner | None:
        return self.owner if host == "n1" else None


def test_that_a_person_gave_a_machine_back_is_believed_when_it_was_seen_twice() -> None:
    reader = Read()
    watch = CordonWatch("ci", reader)
    watch.on_action(made_action(ActionKind.DRAIN, "n1", state=ActionState.DONE))
    told: list[list[type]] = []
    for turn, owner in enumerate(
        [reader.owner, *[CordonOwner.NOBODY, CordonOwner.TOCSIN] * 2, *[CordonOwner.NOBODY] * 3]
    ):
        reader.owner = owner
        told.append([type(one) for one in watch.look(int(turn * LOOK_SECONDS) * SECOND_NS)])
    assert told == [[CordonSeen], [], [], [], [], [], [HumanChange], []]
