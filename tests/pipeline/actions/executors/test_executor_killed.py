"""An executor and the controller killed at any moment: the effects on Slurm are those of an undisturbed run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline.actions.executors.fake_slurm import FakeNode
from tests.pipeline.actions.executors.test_with_controller import STEPS, Site
from tests.pipeline.actions.kit import CLUSTER, verdict_on
from tocsin.pipeline.actions.executors.commands import CommandResult
from tocsin.schemas.action_events import Ack, Cancel, JobFacts, MachineFacts
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.job_key import JobKey
from tocsin.schemas.verdicts import ActionKind

OTHER_JOB = JobKey(CLUSTER, "779", 0)
ENDED = {ActionState.DONE, ActionState.UNDONE, ActionState.CANCELLED}


class Killed(BaseException):
    """kill -9 as far as the executor can tell: nothing of it runs any more."""


class MortalSite(Site):
    """An executor that dies before or after a message, a look or an effect, and a controller that dies as often.

    Attributes:
        wrong: effects that were begun although their action had not begun, was over or was taken back.
    """

    def __init__(self, deaths: Sequence[int], controller_deaths: Sequence[int]) -> None:
        super().__init__()
        self.deaths, self.controller_deaths = set(deaths), set(controller_deaths)
        self.count = self.epoch = 0
        self.wrong: list[str] = []
        self.run_command = self.slurm.run
        self.slurm.run = self.run  # type: ignore[method-assign]
        self.slurm.nodes["m1"] = FakeNode("m1")
        self.slurm.add_job(8, "m1")
        self.stage.tell(MachineFacts(CLUSTER, "m1", self.stage.now_ns, boot_id="boot-m1", leaf="leaf2"))
        self.stage.tell(
            JobFacts(OTHER_JOB, self.stage.now_ns, ("m1", "peer0", "peer1"), slurm_job_id="8", spare_count=8)
        )
        self.start("e1")

    def tick(self) -> None:
        """A moment in which somebody may die."""
        self.count += 1
        if self.count in self.controller_deaths:
            self.epoch += 1
            self.stage.crash()
            self.stage.published += self.stage.controller.begin_epoch(self.epoch, self.stage.now_ns)
        if self.count in self.deaths:
            raise Killed

    def say(self, acks: list[Ack]) -> None:
        for ack in acks:
            self.tick()
            super().say([ack])
            self.tick()

    def run(self, arguments: Sequence[str]) -> CommandResult:
        """Run a command of Slurm, and die before or after it."""
        self.tick()
        before = len(self.slurm.effects)
        answer = self.run_command(arguments)
        if len(self.slurm.effects) > before and not self.is_begun(self.slurm.effects[-1]):
            self.wrong.append(self.slurm.effects[-1])
        self.tick()
        return answer

    def is_begun(self, effect: str) -> bool:
        """Whether the controller lets an effect's action be carried out now; effects on the job are of n1's."""
        host = next((name for name in ("m1", "n3") if f"NodeName={name}" in effect), "n1")
        may = {ActionState.STARTED, ActionState.UNDOING}
        found = [one for one in self.stage.controller.actions() if one.target.hosts == (host,)]
        return any(one.state in may and self.stage.now_ns < one.lease_ns for one in found)

    def work(self) -> None:
        """Work until every action is over; whoever is killed is followed by another process of its name."""
        for _ in range(40):
            try:
                self.go("e1")
            except Killed:
                self.start("e1")
            found = [one.state for one in self.stage.controller.actions() if one.kind is not ActionKind.NOTIFY]
            if ENDED.issuperset(found):
                return
        raise AssertionError(f"no end: {self.stage.states()}, {self.stage.controller.left_out}")

    def cancel(self, host: str, kind: ActionKind) -> None:
        action = self.stage.on_host(host, kind)
        self.stage.tell(Cancel(CLUSTER, action.action_id, "uid:0", self.stage.now_ns))

    def tell_story(self) -> Counter[str]:
        """An eviction that is undone later, a drain that stands, a drain that is taken back before it begins."""
        self.stage.judge(verdict_on("n1"))
        self.stage.judge(verdict_on("m1", name="v2", action=ActionKind.DRAIN, cause="nic_dropout", job=OTHER_JOB))
        self.stage.judge(verdict_on("n3", name="v3", action=ActionKind.DRAIN, cause="thermal_throttle"))
        self.cancel("n3", ActionKind.DRAIN)
        self.work()
        self.cancel("n1", ActionKind.EVICT)
        self.work()
        return Counter(self.slurm.effects)


def test_what_an_undisturbed_run_does() -> None:
    site = MortalSite([], [])
    effects = site.tell_story()
    evicted, drained = site.stage.on_host("n1"), site.stage.on_host("m1", ActionKind.DRAIN)
    assert effects.total() == len(STEPS) + 2
    assert [one.state.value for one in (evicted, drained)] == ["undone", "done"]
    assert [name for name in site.slurm.nodes if site.slurm.takes_no_work(name)] == ["m1"]
    assert site.count > 40, "there are moments to die in"


@cache
def wanted() -> Counter[str]:
    return MortalSite([], []).tell_story()


@settings(max_examples=12, deadline=None)
@given(st.lists(st.integers(1, 120), max_size=6), st.lists(st.integers(1, 120), max_size=4))
def test_killed_at_any_moment_the_effects_are_the_same(deaths: list[int], controller_deaths: list[int]) -> None:
    site = MortalSite(deaths, controller_deaths)
    assert site.tell_story() == wanted()
    assert site.wrong == []
