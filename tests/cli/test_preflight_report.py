"""What a preflight found reaches the controller of actions of an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.actions.kit import CLUSTER, verdict_on
from tests.pipeline.runtime.embedded.actions.acting import EXECUTOR_KEY, Acting
from tocsin.cli.main import main
from tocsin.cli.preflight_report import CheckReporter, results_of
from tocsin.pipeline.actions.config import ControllerConfig
from tocsin.pipeline.identity.action_signatures import AckSigner
from tocsin.pipeline.identity.message_signatures import new_signing_key
from tocsin.pipeline.runtime.embedded.control_socket import ACTOR
from tocsin.schemas.action_events import Ack, AckKind
from tocsin.schemas.credentials import Role
from tocsin.schemas.errors import EngineError
from tocsin.schemas.preflight import CheckName, CheckReason, HostAnswer, failed, passed
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import ActionKind

LOAD = (CheckName.COMPUTATION, CheckName.MEMORY_BANDWIDTH)
OK = tuple(passed(name, CheckReason.EXACT) for name in LOAD)


class Drained:
    """An engine whose executor drained the machine ``n1``."""

    def __init__(self, folder: Path) -> None:
        acting = self.acting = Acting(folder, ControllerConfig(is_dry_run=False, spare_count=9, may_shrink=True))
        acting.tick()
        acting.executor_lives()
        acting.tick(verdict_on("n1", action=ActionKind.DRAIN, at_seconds=2))
        (action,) = acting.fetched()
        for seq, kind in enumerate((AckKind.CLAIMED, AckKind.STARTED, AckKind.DONE), 1):
            lease_ns = acting.now_ns + 30 * NS_PER_SECOND if kind is AckKind.CLAIMED else 0
            ids = action.action_id, action.target.job, kind, "slurm", action.epoch, seq, acting.now_ns, lease_ns
            acting.exchange(Ack(*ids))
            acting.tick()

    def call(self, cmd: str, **args: object) -> dict[str, Any]:
        answer = self.acting.requests.for_executors()[cmd]({**args, ACTOR: "executor:slurm"})
        assert isinstance(answer, dict)
        return answer

    def report(self, *checks: Any, host: str = "n1", gpu_count: int = 8, key: Any = EXECUTOR_KEY) -> tuple[str, str]:
        """A preflight of now reports; return state and reason of the action then."""
        answers = [HostAnswer(host, tuple(checks), 60.0, gpu_count=gpu_count)]
        CheckReporter(self, AckSigner(key), "slurm").send(results_of(answers, CLUSTER, "", self.acting.now_ns))
        self.acting.tick()
        (action,) = self.acting.wanted()
        return action.state.value, action.reason


def test_a_machine_that_passed_under_load_comes_back(tmp_path: Path) -> None:
    assert Drained(tmp_path).report(*OK) == ("undoing", "check_passed")


def test_a_machine_of_a_broken_gpu_that_passed_without_a_gpu_stays_out(tmp_path: Path) -> None:
    assert Drained(tmp_path).report(*OK, gpu_count=0) == ("done", "done")


@pytest.mark.parametrize(
    "checks", [OK[:1], (), (*OK, failed(CheckName.DISK_WRITE_BANDWIDTH, CheckReason.WRONG_RESULT))]
)
def test_a_machine_that_failed_or_was_not_under_load_stays_out(tmp_path: Path, checks: tuple[Any, ...]) -> None:
    assert Drained(tmp_path).report(*checks) == ("done", "done")


def test_another_machine_that_passed_changes_nothing(tmp_path: Path) -> None:
    assert Drained(tmp_path).report(*OK, host="n2") == ("done", "done")


def test_a_forged_result_is_refused(tmp_path: Path) -> None:
    unknown = new_signing_key(Role.EXECUTOR, "slurm", 1)
    with pytest.raises(EngineError, match="refuses"):
        Drained(tmp_path).report(*OK, key=unknown)


def test_a_report_without_a_controller_is_an_error_before_anything_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["preflight", "--report", "--folder", str(tmp_path)]) == 2
    assert "--report" in capsys.readouterr().err
