"""NVSentinel as a target of actions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.pipeline.actions.executors.nvsentinel_kit import ListeningConnector, action_on
from tocsin.pipeline.actions.executors.nvsentinel import EnvelopeFile, NvSentinelConfig, NvSentinelTarget
from tocsin.pipeline.actions.executors.nvsentinel_events import EventSettings
from tocsin.pipeline.actions.executors.nvsentinel_peer import GrpcConnector
from tocsin.pipeline.actions.executors.reasons import ExecutorReason
from tocsin.pipeline.actions.executors.target import Stage
from tocsin.schemas.actions import Action
from tocsin.schemas.errors import TargetAwayError
from tocsin.schemas.formats.nvsentinel import HealthEvent, ProcessingStrategy
from tocsin.schemas.verdicts import ActionKind

EXECUTE = NvSentinelConfig(EventSettings(ProcessingStrategy.EXECUTE_REMEDIATION))


class _Kept:
    """A connector that keeps its events, or is away."""

    def __init__(self) -> None:
        self.events: list[HealthEvent] = []
        self.is_away = False

    def send(self, events: tuple[HealthEvent, ...]) -> None:
        """See ``Connector.send``."""
        if self.is_away:
            raise TargetAwayError("nobody there")
        self.events.extend(events)


def _carry_out(target: NvSentinelTarget, action: Action) -> None:
    """Look and make until it is done."""
    while (look := target.look(action)).stage is not Stage.DONE:
        target.make(action, look)


def test_each_machine_is_told_once() -> None:
    connector = _Kept()
    target = NvSentinelTarget(EXECUTE, connector)
    action = action_on("n1", "n2")
    _carry_out(target, action)
    _carry_out(target, action)
    assert [one.node_name for one in connector.events] == ["n1", "n2"]
    assert target.look(action).reason is ExecutorReason.TOLD_NVSENTINEL


def test_another_process_sends_the_same_bytes_again(tmp_path: Path) -> None:
    peer = ListeningConnector()
    with peer.listening(tmp_path / "s") as address:
        for _life in range(2):
            with GrpcConnector(address, 5) as connector:
                _carry_out(NvSentinelTarget(EXECUTE, connector), action_on("n1"))
    first, second = peer.received
    assert first == second


def test_by_default_nothing_hard_is_done() -> None:
    target = NvSentinelTarget(NvSentinelConfig(), _Kept())
    assert target.kinds == {ActionKind.NOTIFY}
    look = target.look(action_on("n1", kind=ActionKind.EVICT))
    assert (look.stage, look.reason) == (Stage.REFUSED, ExecutorReason.KIND_NOT_DONE_HERE)


@pytest.mark.parametrize("kind", [ActionKind.RESTART, ActionKind.ROLLBACK, ActionKind.REPLAY])
def test_what_concerns_the_job_is_refused(kind: ActionKind) -> None:
    look = NvSentinelTarget(EXECUTE, _Kept()).look(action_on("n1", kind=kind))
    assert (look.stage, look.reason) == (Stage.REFUSED, ExecutorReason.KIND_NOT_DONE_HERE)


@pytest.mark.parametrize("config", [EXECUTE, NvSentinelConfig()])
def test_a_probe_whose_result_nobody_tells_is_not_claimed(config: NvSentinelConfig) -> None:
    target = NvSentinelTarget(config, _Kept())
    assert ActionKind.PROBE not in target.kinds
    look = target.look(action_on("n1", kind=ActionKind.PROBE))
    assert (look.stage, look.reason) == (Stage.REFUSED, ExecutorReason.RESULT_NOT_TOLD)
    assert "tocsin executor preflight" in look.detail


def test_a_connector_that_is_away_leaves_the_action_untouched() -> None:
    connector = _Kept()
    target = NvSentinelTarget(EXECUTE, connector)
    action = action_on("n1")
    connector.is_away = True
    with pytest.raises(TargetAwayError):
        target.make(action, target.look(action))
    assert target.look(action).stage is Stage.UNTOUCHED
    connector.is_away = False
    _carry_out(target, action)
    assert len(connector.events) == 1


def test_an_undoing_is_told_once_and_is_healthy() -> None:
    connector = _Kept()
    target = NvSentinelTarget(EXECUTE, connector)
    action = action_on("n1")
    _carry_out(target, action)
    while (look := target.look_back(action)).stage is not Stage.DONE:
        target.make(action, look)
    assert [one.is_healthy for one in connector.events] == [False, True]
    assert target.look_back(action).stage is Stage.DONE


def test_each_event_that_was_taken_is_an_envelope_in_the_file_with_an_id_of_its_own(tmp_path: Path) -> None:
    connector, file = _Kept(), tmp_path / "events.jsonl"
    target = NvSentinelTarget(EXECUTE, connector, EnvelopeFile(file))
    connector.is_away = True
    action = action_on("n1", "n2")
    with pytest.raises(TargetAwayError):
        target.make(action, target.look(action))
    assert not file.exists(), "nobody took it"
    connector.is_away = False
    _carry_out(target, action)
    found = [json.loads(line) for line in file.read_text().splitlines()]
    assert [one["data"]["healthEvent"]["nodeName"] for one in found] == ["n1", "n2"]
    assert len({one["id"] for one in found}) == 2


def test_a_file_that_cannot_be_written_holds_the_action_up(tmp_path: Path) -> None:
    target = NvSentinelTarget(EXECUTE, _Kept(), EnvelopeFile(tmp_path))
    action = action_on("n1")
    with pytest.raises(TargetAwayError, match=str(tmp_path)):
        target.make(action, target.look(action))
