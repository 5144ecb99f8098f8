"""``tocsin actions`` and an executor, against an engine that acts: from a fault of a job to the end of the action."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.runtime.embedded.noted_life import NotedLife
from tests.pipeline.waiting import until
from tocsin.cli.engine_reader import EngineReader
from tocsin.cli.main import main
from tocsin.pipeline.actions.config import ControllerConfig
from tocsin.pipeline.actions.policy.policy_file import load_policy
from tocsin.pipeline.identity.action_signatures import AckSigner, ActionChecker
from tocsin.pipeline.identity.gate import GateConfig
from tocsin.pipeline.identity.message_signatures import new_signing_key, public_half
from tocsin.pipeline.lab.testing import JobShape
from tocsin.pipeline.runtime.embedded.actions.action_attach import ActionSettings, attach_actions
from tocsin.pipeline.runtime.embedded.listener.listener import AgentServer
from tocsin.pipeline.runtime.embedded.listener.listener_config import ServerConfig
from tocsin.pipeline.stores.base import ActionChange
from tocsin.schemas.action_codec import encode_ack, encode_event
from tocsin.schemas.action_events import Ack, AckKind, ActionEvent, ExecutorHeard
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action
from tocsin.schemas.credential_store import CredentialStore, write_credentials
from tocsin.schemas.credentials import Credential, Role
from tocsin.schemas.errors import EngineError
from tocsin.schemas.records import NS_PER_SECOND, Event, EventSource, Severity
from tocsin.schemas.verdicts import ActionKind
from tocsin.schemas.wire.codec import encode

CONTROLLER = new_signing_key(Role.CONTROLLER, "engine", 1)
CONFIG = ControllerConfig(is_dry_run=False, spare_count=4, approval_kinds=frozenset({ActionKind.EVICT}))
Captured = pytest.CaptureFixture[str]


class ActingLife(NotedLife):
    """An engine that acts, whose requests are also answered on a TCP address."""

    config = CONFIG

    def attached(self) -> None:
        super().attached()
        now_ns = time.time_ns()
        if self.starts == 1:
            self.holders = {
                role: new_signing_key(role, f"some-{role.value}", now_ns) for role in (Role.EXECUTOR, Role.OPERATOR)
            }
        for role, one in self.holders.items():
            write_credentials(self.file(role), (one,))
        write_credentials(self.folder / "engine.json", tuple(self.holders.values()))
        store = CredentialStore(self.folder / "engine.json")
        self.changes: list[ActionChange] = []
        settings = ActionSettings(
            load_policy(), self.config, CONTROLLER, store.all, self.changes.append, self.fleet.facts
        )
        self.service.memory.proposals.started_ns = 0
        self.actions_follower = attach_actions(self.service, self.folder, self.notes, settings)
        self.network = AgentServer(
            self.service.engine, "127.0.0.1:0", time.time_ns, config=ServerConfig(gate=GateConfig(store))
        )
        ours, theirs = self.service.server.readers, self.network.readers
        theirs.answerers, theirs.changers, theirs.for_executors = ours.answerers, ours.changers, ours.for_executors
        self.network.start()

    def end(self) -> None:
        self.network.close()
        super().end()

    def file(self, role: Role) -> Path:
        return self.folder / f"{role.value}.json"

    def executor(self, credential: Credential | None = None) -> EngineReader:
        known = credential or self.holders[Role.EXECUTOR]
        return EngineReader(self.network.address, str(self.file(known.role)), known)

    def exchange(self, *told: Ack | ActionEvent, after: int = 0) -> dict[str, Any]:
        """The executor sends what it says and asks for actions."""
        signer = AckSigner(self.holders[Role.EXECUTOR])
        values = [encode_ack(one) if isinstance(one, Ack) else encode_event(one) for one in told]
        messages = [
            {"value": base64.b64encode(one).decode(), "signature": base64.b64encode(signer.header(one)).decode()}
            for one in values
        ]
        return self.executor().call("executor_exchange", executor="some-executor", after=after, messages=messages)

    def fetched(self) -> list[Action]:
        """The actions that the executor gets, checked against the controller's public key."""
        checker = ActionChecker([public_half(CONTROLLER)])
        found = [
            checker.admit(base64.b64decode(one["value"]), base64.b64decode(one["signature"]), time.time_ns())
            for one in self.exchange()["actions"]
        ]
        return [one for one in found if one.kind is not ActionKind.NOTIFY]

    def heard(self) -> ExecutorHeard:
        kinds = (ActionKind.EVICT, ActionKind.RESTART, ActionKind.DRAIN)
        return ExecutorHeard(self.job.job.cluster, "some-executor", kinds, self.job.now_ns)


@pytest.fixture
def life(tmp_path: Path) -> Iterator[ActingLife]:
    made = ActingLife(tmp_path, JobShape(leaf_hosts_count=4))
    made.run(25)
    yield made
    made.end()


def _struck(life: ActingLife) -> Action:
    """Strike a host, and return the action that its verdict leads to."""
    life.exchange(life.heard())
    life.job.kill(3)
    life.run(10)
    [action] = life.fetched()
    return action


def _ack(life: ActingLife, action: Action, kind: AckKind, seq: int) -> Ack:
    lease_ns = life.job.now_ns + 30 * NS_PER_SECOND if kind is AckKind.CLAIMED else 0
    return Ack(action.action_id, action.target.job, kind, "some-executor", action.epoch, seq, life.job.now_ns, lease_ns)


def _rows(life: ActingLife) -> list[tuple[str, str, str]]:
    """Kind, state and detail of the table's rows that are no pages."""
    until(lambda: life.service.writer.waiting_count == 0)
    rows = life.store.actions_of(list(life.incidents()))
    return [(r.action.kind.value, r.state.value, r.detail) for r in rows if r.action.kind is not ActionKind.NOTIFY]


def test_a_fault_becomes_an_action_that_an_executor_carries_out(life: ActingLife) -> None:
    action = _struck(life)
    [verdict] = life.service.engine.live_verdicts()
    assert (action.verdict_id, action.kind, action.state) == (
        verdict.verdict_id,
        ActionKind.RESTART,
        ActionState.APPROVED,
    )
    assert action.target.hosts == (verdict.suspects[0].component.name,)
    for seq, kind in enumerate((AckKind.CLAIMED, AckKind.STARTED, AckKind.DONE), 1):
        life.exchange(_ack(life, action, kind, seq))
        life.run(1)
    [done] = life.fetched()
    assert (done.action_id, done.state) == (action.action_id, ActionState.DONE)
    assert [one.kind for one in life.store.action_acks] == [AckKind.CLAIMED, AckKind.STARTED, AckKind.DONE]
    published = [one.state for one in life.store.action_changes if one.action_id == action.action_id]
    assert published[-3:] == [ActionState.CLAIMED, ActionState.STARTED, ActionState.DONE]
    [(kind_of_row, state, detail)] = _rows(life)
    assert (kind_of_row, state) == ("restart", "done")
    assert detail.endswith("executor some-executor")


def test_a_machine_that_booted_after_the_evidence_is_not_acted_on(life: ActingLife) -> None:
    def tell(boot_id: str, booted_ns: int) -> None:
        payload = {"boot_id": boot_id, "booted_ns": booted_ns}
        for host in life.fleet.views[life.job.job.cluster].hosts.leaves():
            told = (life.job.job, host, life.job.now_ns - 1, -1, EventSource.KERNEL, "host_facts", Severity.INFO)
            life.service.engine.take(encode(Event(*told, payload)))

    tell("first", 1)
    life.run(10)
    action = _struck(life)
    assert [one.boot_id for one in action.target.machines] == ["first"]
    tell("second", life.job.now_ns)
    life.run(10)
    life.exchange(_ack(life, action, AckKind.CLAIMED, 1))
    life.run(1)
    [expired] = life.fetched()
    assert (expired.action_id, expired.state, expired.reason) == (action.action_id, ActionState.EXPIRED, "rebooted")


def test_an_engine_killed_between_claim_and_end_goes_on_and_begins_nothing_anew(life: ActingLife) -> None:
    action = _struck(life)
    life.exchange(_ack(life, action, AckKind.CLAIMED, 1))
    life.run(1)
    life.network.close()
    life.kill()
    life.run(3)
    life.start()
    life.run(2)
    [again] = life.fetched()
    assert (again.action_id, again.state, again.holder) == (action.action_id, ActionState.CLAIMED, "some-executor")
    assert again.epoch == action.epoch + 1
    life.exchange(_ack(life, again, AckKind.STARTED, 2))
    life.run(1)
    life.exchange(_ack(life, again, AckKind.DONE, 3))
    life.run(1)
    assert [one.state for one in life.fetched()] == [ActionState.DONE]


class AskingLife(ActingLife):
    """An engine in which a person approves restarts."""

    config = replace(CONFIG, approval_kinds=frozenset({ActionKind.RESTART}))


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[AskingLife]:
    made = AskingLife(tmp_path, JobShape(leaf_hosts_count=4))
    made.run(25)
    yield made
    made.end()


def _words(life: ActingLife, *words: str) -> int:
    """Run ``tocsin actions`` as an operator while the engine ticks."""
    flags = ["--engine", life.network.address, "--token-file", str(life.file(Role.OPERATOR))]
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(main(["actions", *words, *flags])))
    thread.start()
    while thread.is_alive():
        life.run(1)
        thread.join(0.05)
    return codes[0]


def test_a_person_lists_shows_and_approves(asking: AskingLife, capsys: Captured) -> None:
    action = _struck(asking)
    assert action.state is ActionState.WAITING_APPROVAL
    assert _words(asking, "list") == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{action.action_id[:12]}  waiting_approval: restart {action.target.hosts[0]} of job job/0, ")
    assert _words(asking, "approve", action.action_id[:5], "--note", "looked at it") == 0
    assert "approved: restart" in capsys.readouterr().out
    assert _words(asking, "show", action.action_id[:5], "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["action"]["actor"] == "operator:some-operator"
    assert [one["state"] for one in shown["history"]][-2:] == ["waiting_approval", "approved"]
    assert _words(asking, "show", action.action_id) == 0
    assert "by operator:some-operator" in capsys.readouterr().out


def test_a_person_cancels_and_nothing_is_begun(asking: AskingLife, capsys: Captured) -> None:
    action = _struck(asking)
    assert _words(asking, "cancel", action.action_id) == 0
    assert "cancelled: restart" in capsys.readouterr().out
    assert _words(asking, "list") == 0
    assert capsys.readouterr().out == "no action waits, goes on or stands\n"
    assert _words(asking, "approve", action.action_id) == 2
    assert "no effect on an action that is cancelled" in capsys.readouterr().err


def test_only_executors_exchange_and_they_may_ask_nothing_else(life: ActingLife) -> None:
    operator = life.executor(life.holders[Role.OPERATOR])
    for reader, cmd in ((operator, "executor_exchange"), (life.executor(), "actions_list"), (life.executor(), "sql")):
        with pytest.raises(EngineError) as caught:
            reader.call(cmd, executor="some-executor", after=0, messages=[])
        assert caught.value.reason == "role_not_allowed"


def _states(life: ActingLife, capsys: Captured) -> list[str]:
    """What ``tocsin actions list`` says of all actions that are no pages."""
    capsys.readouterr()
    assert _words(life, "list", "--all", "--json") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [one["state"] for one in lines if one["kind"] != "notify"]


def test_forged_unsigned_and_unknown_acks_and_an_executor_that_counts_no_more_change_nothing(
    life: ActingLife, capsys: Captured
) -> None:
    action = _struck(life)
    claim = _ack(life, action, AckKind.CLAIMED, 1)
    value = base64.b64encode(encode_ack(claim)).decode()
    forger = new_signing_key(Role.EXECUTOR, "some-executor", 1)
    forged = base64.b64encode(AckSigner(forger).header(encode_ack(claim))).decode()
    for signature in ("", forged):
        messages = [{"value": value, "signature": signature}]
        life.executor().call("executor_exchange", executor="some-executor", after=0, messages=messages)
    life.exchange(replace(_ack(life, action, AckKind.DONE, 2), action_id="f" * 32))
    life.run(1)
    assert _states(life, capsys) == ["approved"]

    holders = tuple(life.holders.values())
    expired = tuple(replace(one, revoked_ns=1) if one.role is Role.EXECUTOR else one for one in holders)
    write_credentials(life.folder / "engine.json", expired)
    until(lambda: _refusal(life) == "key_revoked")
    write_credentials(life.folder / "engine.json", holders)
    until(lambda: not _refusal(life))
    life.exchange(replace(claim, seq=3))
    life.run(1)
    assert _states(life, capsys) == ["claimed"]


def _refusal(life: ActingLife) -> str:
    """Why the engine does not speak with the executor, "" if it does."""
    try:
        life.exchange()
    except EngineError as error:
        return str(error.reason)
    return ""
