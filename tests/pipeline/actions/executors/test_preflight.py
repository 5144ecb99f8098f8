"""Checks under load as a target: results are told before the action is done, and a silent host proves nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.pipeline.actions.executors.made import made_action
from tests.pipeline.actions.kit import CLUSTER, Stage, verdict_on
from tocsin.pipeline.actions.executors.check_runs import CheckRun
from tocsin.pipeline.actions.executors.core import ExecutorConfig, ExecutorCore
from tocsin.pipeline.actions.executors.preflight import PreflightTarget, PreflightTargetConfig
from tocsin.pipeline.actions.executors.reasons import ExecutorReason
from tocsin.pipeline.actions.executors.target import Stage as LookStage
from tocsin.pipeline.actions.executors.worker import ExecutorWorker
from tocsin.schemas.action_events import Ack, ActionEvent, CheckResult, ExecutorHeard
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action
from tocsin.schemas.preflight import CheckName, CheckReason, HostAnswer, failed, passed
from tocsin.schemas.verdicts import ActionKind

OK = (passed(CheckName.COMPUTATION, CheckReason.EXACT), passed(CheckName.MEMORY_BANDWIDTH, CheckReason.EXACT))
WRONG = (failed(CheckName.COMPUTATION, CheckReason.WRONG_RESULT, "core 5: 12 of 2901"),)
SILENT = (failed(CheckName.ANSWER, CheckReason.NO_ANSWER),)


class FakeRuns:
    """Checks that end when the test says so, with the answers that it names."""

    def __init__(self) -> None:
        self.runs: dict[str, CheckRun] = {}
        self.begun: list[tuple[str, ...]] = []

    def begin(self, action: Action, nodes: Sequence[str]) -> None:
        assert action.action_id not in self.runs, "checked twice"
        self.begun.append(tuple(nodes))
        self.runs[action.action_id] = CheckRun(is_running=True)

    def read(self, action_id: str) -> CheckRun | None:
        return self.runs.get(action_id)

    def end(self, action: Action, trouble: str = "", **answers: tuple[object, ...]) -> None:
        found = tuple(HostAnswer(host, checks, 60.0, f"boot-{host}") for host, checks in answers.items())  # type: ignore[arg-type]
        self.runs[action.action_id] = CheckRun(False, found, 5, trouble)


@pytest.fixture
def runs() -> FakeRuns:
    return FakeRuns()


def _probe(*hosts: str, verdict: str = "v1") -> Action:
    return made_action(ActionKind.PROBE, *hosts, verdict=verdict)


def _ended(runs: FakeRuns, trouble: str = "", **answers: tuple[object, ...]) -> tuple[PreflightTarget, Action]:
    """A target whose checks were begun and have ended."""
    action, target = _probe(*(answers or {"n1": ()})), PreflightTarget(PreflightTargetConfig(), runs)
    target.make(action, target.look(action))
    runs.end(action, trouble, **answers)
    return target, action


def test_the_results_are_told_before_the_action_is_done(runs: FakeRuns) -> None:
    action, target = _probe("n1", "n2"), PreflightTarget(PreflightTargetConfig({"n1": "node-a"}), runs)
    look = target.look(action)
    assert look.stage is LookStage.UNTOUCHED
    target.make(action, look)
    assert runs.begun == [("node-a", "n2")]
    assert target.look(action).stage is LookStage.WAITING
    assert target.facts("ci") == []
    runs.end(action, **{"node-a": OK, "n2": WRONG})  # type: ignore[arg-type]
    assert target.look(action).stage is LookStage.WAITING, "nothing was told yet"
    assert target.facts("another cluster") == []
    told = [one for one in target.facts("ci") if isinstance(one, CheckResult)]
    assert [(one.host, one.is_passed, one.is_under_load, one.verdict_id, one.ts_ns) for one in told] == [
        ("n1", True, True, "v1", 5),
        ("n2", False, True, "v1", 5),
    ]
    assert [one.boot_id for one in told] == ["boot-node-a", "boot-n2"]
    look = target.look(action)
    assert (look.stage, look.reason) == (LookStage.DONE, ExecutorReason.CHECKS_FAILED)
    assert "n2 failed computation: wrong_result core 5" in look.detail
    assert target.facts("ci") == [], "told once"


def test_a_successor_tells_the_results_again_and_checks_nothing_again(runs: FakeRuns) -> None:
    first, action = _ended(runs, n1=OK)
    first.look(action)
    assert len(first.facts("ci")) == 1
    second = PreflightTarget(PreflightTargetConfig(), runs)
    assert second.look(action).stage is LookStage.WAITING
    assert len(second.facts("ci")) == 1
    assert (second.look(action).stage, len(runs.begun)) == (LookStage.DONE, 1)


def test_a_host_without_an_answer_is_not_reported_and_the_action_has_failed(runs: FakeRuns) -> None:
    target, action = _ended(runs, n1=OK, n2=SILENT)
    target.look(action)
    assert [one.host for one in target.facts("ci") if isinstance(one, CheckResult)] == ["n1"]
    look = target.look(action)
    assert (look.stage, look.reason) == (LookStage.FAILED, ExecutorReason.CHECKS_WITHOUT_ANSWER)
    assert "n2" in look.detail


@pytest.mark.parametrize(("trouble", "answers"), [("srun: error", {}), ("", {"n1": SILENT})])
def test_checks_that_nobody_answered_tell_nothing(
    runs: FakeRuns, trouble: str, answers: dict[str, tuple[object, ...]]
) -> None:
    target, action = _ended(runs, trouble, **answers)
    looks = [target.look(action), target.look(action)]
    assert target.facts("ci") == []
    assert looks[-1].stage is LookStage.FAILED


def test_a_machine_is_checked_for_one_action_at_a_time(runs: FakeRuns) -> None:
    first, second, other = _probe("n1", "n2"), _probe("n2", "n3", verdict="v2"), _probe("n4", verdict="v3")
    target = PreflightTarget(PreflightTargetConfig(), runs)
    target.make(first, target.look(first))
    look = target.look(second)
    assert (look.stage, look.reason, look.host) == (LookStage.BLOCKED, ExecutorReason.CHECKED_FOR_OTHER, "n2")
    assert target.look(other).stage is LookStage.UNTOUCHED
    runs.end(first, n1=OK, n2=OK)
    assert target.look(second).stage is LookStage.UNTOUCHED


def test_what_names_no_machine_or_too_many_is_refused(runs: FakeRuns) -> None:
    target = PreflightTarget(PreflightTargetConfig(), runs)
    assert target.look(_probe()).reason is ExecutorReason.NO_MACHINE
    assert target.look(_probe(*(f"h{index}" for index in range(1025)))).reason is ExecutorReason.TOO_MANY_MACHINES
    assert target.look(made_action(ActionKind.DRAIN, "n1")).reason is ExecutorReason.KIND_NOT_DONE_HERE


class CheckedSite:
    """A controller, and an executor that checks machines; what both say is in one order."""

    def __init__(self, runs: FakeRuns) -> None:
        self.stage, self.runs, self.read = Stage(), runs, 0
        self.target = PreflightTarget(PreflightTargetConfig(), runs)
        self.stage.tell(ExecutorHeard(CLUSTER, "checks", tuple(self.target.kinds), self.stage.now_ns))
        self.core = ExecutorCore(ExecutorConfig(CLUSTER, "checks", self.target.kinds))
        self.worker = ExecutorWorker(self.core, self.target, lambda: self.stage.now_ns, self.say)
        self.order: list[str] = []

    def say(self, told: Sequence[Ack | ActionEvent]) -> None:
        for one in told:
            self.order.append(one.kind.value if isinstance(one, Ack) else type(one).__name__)
            self.stage.published += self.stage.controller.on_told(one, self.stage.now_ns)[0]

    def go(self, seconds: range) -> None:
        for second in seconds:
            self.stage.at(second)
            for action in self.stage.published[self.read :]:
                self.read += 1
                self.say(self.core.on_action(action, self.stage.now_ns))
            self.say(self.target.facts(CLUSTER))
            self.worker.work()


def test_checks_of_a_job_are_made_on_all_its_machines_and_end_once(runs: FakeRuns) -> None:
    site = CheckedSite(runs)
    site.stage.judge(verdict_on(name="v7", action=ActionKind.PROBE))  # a verdict that names no machine
    site.go(range(1, 8))
    (action,) = [one for one in site.stage.controller.actions() if one.kind is ActionKind.PROBE]
    assert runs.begun == [tuple(sorted(site.stage.hosts))]
    assert action.state is ActionState.STARTED
    site.go(range(8, 100))
    assert site.stage.action(action.action_id).state is ActionState.STARTED, "its lease is prolonged meanwhile"
    runs.end(action, **dict.fromkeys(site.stage.hosts, OK))  # type: ignore[arg-type]
    site.go(range(100, 115))
    assert site.stage.action(action.action_id).state is ActionState.DONE
    assert site.order.index("CheckResult") < site.order.index("done")
    assert (site.order.count("CheckResult"), len(runs.begun)) == (40, 1)
    site.stage.judge(verdict_on(name="v7", action=ActionKind.PROBE, update=1))
    site.go(range(115, 125))
    assert len(runs.begun) == 1
