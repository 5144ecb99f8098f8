"""A host checks itself where a signed action asks for it, and nothing else makes it do anything."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.actions.executors.made import made_action
from tests.pipeline.actions.executors.test_preflight import OK, WRONG, FakeRuns
from tests.pipeline.actions.kit import CLUSTER, LIVE, verdict_on
from tests.pipeline.runtime.embedded.actions.acting import CHECKER_KEY, CONTROLLER_KEY, EXECUTOR_KEY, Acting
from tocsin.pipeline.actions.executors.client import ExchangeTrouble, ExecutorClient, ExecutorKeys
from tocsin.pipeline.actions.executors.core import ExecutorConfig, ExecutorCore, LeftOut
from tocsin.pipeline.actions.executors.preflight import PreflightTarget, PreflightTargetConfig
from tocsin.pipeline.identity.action_signatures import AckSigner, ActionChecker, ActionSigner, executor_name
from tocsin.pipeline.identity.message_signatures import new_signing_key, public_half
from tocsin.pipeline.runtime.embedded.control_socket import ACTOR
from tocsin.schemas.action_codec import decode_action, encode_action
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action, action_id_of
from tocsin.schemas.credentials import Credential, Role
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import ActionKind

NAME = executor_name(CHECKER_KEY)


class Host:
    """The host ``n1`` beside an engine: its executor asks over the listener's request, with its own credential.

    Attributes:
        acting: the engine.
        runs: the checks of the host.
        client: what asks for actions.
        lines: lines that somebody puts before those of the engine.
    """

    def __init__(self, folder: Path, controller: Credential = CONTROLLER_KEY) -> None:
        self.acting = Acting(folder, LIVE)
        self.acting.tick()
        self.runs = FakeRuns()
        self.lines: list[dict[str, Any]] = []
        keys = ExecutorKeys(AckSigner(CHECKER_KEY), ActionChecker([public_half(controller)]))
        config = ExecutorConfig(CLUSTER, NAME, PreflightTarget.kinds, frozenset({"n1"}))
        target = PreflightTarget(PreflightTargetConfig(), self.runs)
        self.client = ExecutorClient([config], self, keys, target, lambda: self.acting.now_ns)

    def call(self, cmd: str, **args: object) -> dict[str, Any]:
        answer = self.acting.requests.for_executors()[cmd]({**args, ACTOR: f"checker:{CHECKER_KEY.name}"})
        assert isinstance(answer, dict)
        lines, self.lines = self.lines, []
        return {**answer, "actions": [*lines, *answer["actions"]]}

    def asked(self, host: str = "n1") -> Action:
        """The engine wants a host checked, and all have some seconds for it."""
        self.go()
        seconds = self.acting.now_ns // NS_PER_SECOND - 1_800_000_000
        self.acting.tick(verdict_on(host, action=ActionKind.PROBE, at_seconds=seconds))
        self.go(6)
        return self.action()

    def go(self, seconds: int = 1) -> None:
        for _ in range(seconds):
            self.client.step()
            self.acting.tick()

    def action(self) -> Action:
        (action,) = self.acting.wanted()
        return action


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.acting.close()


@pytest.mark.parametrize(("checks", "reason"), [(OK, "n1 passed"), (WRONG, "n1 failed computation")])
def test_a_signed_request_of_the_engine_has_the_host_checked_once_and_the_result_told(
    host: Host, checks: Any, reason: str
) -> None:
    asked = host.asked()
    assert (asked.state, asked.holder, host.runs.begun) == (ActionState.STARTED, NAME, [("n1",)])
    host.runs.end(asked, n1=checks)
    host.go(8)

    done = host.action()
    assert (done.state, done.detail.startswith(reason)) == (ActionState.DONE, True)
    assert host.runs.begun == [("n1",)]
    assert {one.executor for one in host.acting.acks} == {NAME}
    assert (host.acting.letters, host.acting.left_out) == ([], [])


def test_nobody_checks_another_host(host: Host) -> None:
    asked = host.asked("n2")

    assert (asked.state, asked.reason, host.runs.begun) == (ActionState.WAITING, "no_executor", [])


def test_a_host_that_is_not_asked_for_leaves_the_action_to_others() -> None:
    core = ExecutorCore(ExecutorConfig("ci", NAME, frozenset({ActionKind.PROBE}), frozenset({"n1"})))
    for hosts in (("n2",), ("n1", "n2"), ()):
        assert core.on_action(made_action(ActionKind.PROBE, *hosts), 0) == []
    assert core.left_out == {LeftOut.OTHER_HOST: 3}
    assert [one.executor for one in core.on_action(made_action(ActionKind.PROBE, "n1"), 0)] == [NAME]


def _line(action: Action, signer: Credential | None, seq: int = 1) -> dict[str, Any]:
    """An action as the listener hands it on, signed by somebody."""
    value = encode_action(action)
    header = b"" if signer is None else ActionSigner(signer).header(value)
    return {"seq": seq, "value": base64.b64encode(value).decode(), "signature": base64.b64encode(header).decode()}


@pytest.mark.parametrize("signer", [None, new_signing_key(Role.CONTROLLER, "other", 1)], ids=["unsigned", "forged"])
def test_a_request_that_the_controller_did_not_sign_has_no_effect(host: Host, signer: Credential | None) -> None:
    now_ns = host.acting.now_ns
    action = made_action(ActionKind.PROBE, "n1", now_ns=now_ns, state=ActionState.STARTED, holder=NAME)
    target = replace(action.target, job=replace(action.target.job, cluster=CLUSTER))
    action_id, lease_ns = action_id_of("v1", ActionKind.PROBE, target), now_ns + 60 * NS_PER_SECOND
    host.lines = [_line(replace(action, action_id=action_id, target=target, lease_ns=lease_ns), signer)]
    host.go(3)

    assert host.client.troubles == {ExchangeTrouble.FORGED: 1}
    assert (host.runs.begun, host.acting.acks) == ([], [])


def test_an_old_request_that_is_played_again_has_no_effect(host: Host) -> None:
    asked = host.asked()
    host.runs.end(asked, n1=OK)
    host.go(8)
    old = host.acting.log.history(asked.action_id)
    begun, host.runs.runs = list(host.runs.begun), {}
    host.lines = [_line(decode_action(one.value), CONTROLLER_KEY) for one in old]
    host.go(100)

    assert host.runs.begun == begun


def test_a_checkers_credential_takes_no_other_action(host: Host) -> None:
    host.go()
    heard = host.client.keys.signer
    assert heard.credential.role is Role.CHECKER
    host.acting.executor_lives()
    host.acting.tick(verdict_on("n1", action=ActionKind.RESTART, at_seconds=3))
    host.client._cores[0]._config = replace(  # noqa: SLF001  # a thief of the credential changes the program
        host.client._cores[0]._config,  # noqa: SLF001
        kinds=frozenset({ActionKind.RESTART}),
        hosts=frozenset(),
    )
    host.go(3)

    assert host.action().holder == ""
    assert set(host.acting.left_out) == {"kind_not_announced"}


def test_an_executors_name_is_no_checkers(host: Host) -> None:
    assert executor_name(EXECUTOR_KEY) == "slurm"
    assert NAME == "checker:n1"
