"""``tocsin executor``: an executor on a TCP address of an engine that acts, with a target made for the test."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from tests.cli.test_actions import CONTROLLER, ActingLife
from tests.pipeline.actions.executors.world import STEPS, StepTarget
from tests.pipeline.waiting import until
from tocsin.cli import executor
from tocsin.cli.main import main
from tocsin.pipeline.actions.executors.client import ExchangeTrouble, ExecutorClient, ExecutorKeys
from tocsin.pipeline.actions.executors.core import ExecutorConfig
from tocsin.pipeline.identity.action_signatures import AckSigner, ActionChecker
from tocsin.pipeline.identity.message_signatures import new_signing_key, public_half
from tocsin.pipeline.lab.testing import JobShape
from tocsin.schemas.action_events import ActionEvent, MachineFacts
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action
from tocsin.schemas.credential_store import write_credentials
from tocsin.schemas.credentials import Credential, Role
from tocsin.schemas.errors import ConfigError, TargetRefusedError
from tocsin.schemas.verdicts import ActionKind

HOSTS = [f"n{index:02}" for index in range(8)]
KINDS = frozenset({ActionKind.RESTART, ActionKind.EVICT})


@pytest.fixture
def life(tmp_path: Path) -> Iterator[ActingLife]:
    made = ActingLife(tmp_path, JobShape(leaf_hosts_count=4))
    made.run(25)
    yield made
    made.end()


def _client(life: ActingLife, target: StepTarget, controller: Credential = CONTROLLER) -> ExecutorClient:
    credential = life.holders[Role.EXECUTOR]
    keys = ExecutorKeys(AckSigner(credential), ActionChecker([public_half(controller)]))
    config = ExecutorConfig(life.job.job.cluster, credential.name, KINDS, effect_seconds=2.0)
    return ExecutorClient([config], life.executor(), keys, target, lambda: life.job.now_ns)


def _state(life: ActingLife) -> list[ActionState]:
    return [one.state for one in life.actions_follower.shown if one.kind is not ActionKind.NOTIFY]


def _connected(client: ExecutorClient) -> list[float]:
    (family,) = [one for one in client.families() if one.name == "tocsin_executor_connected"]
    return [sample.value for sample in family.samples]


def _go_on(life: ActingLife, client: ExecutorClient, steps: int) -> None:
    for _ in range(steps):
        client.step()
        life.run(1)


def test_a_fault_is_carried_out_to_its_end(life: ActingLife) -> None:
    target = StepTarget([0], KINDS)
    client = _client(life, target)
    assert _connected(client) == [], "a replica that waits for its turn is not disconnected"
    client.step()
    life.job.kill(3)
    life.run(10)
    assert _state(life) == [ActionState.APPROVED]
    _go_on(life, client, 10)
    assert target.effects == list(STEPS)
    assert _state(life) == [ActionState.DONE]
    assert _connected(client) == [1]
    assert not client.troubles
    told = list(dict.fromkeys(one.state for one in life.changes if one.action.kind is ActionKind.RESTART))
    # it waits while its verdict is open
    assert told == [
        ActionState.WAITING,
        ActionState.APPROVED,
        ActionState.CLAIMED,
        ActionState.STARTED,
        ActionState.DONE,
    ]


def test_a_target_is_told_of_every_state_and_its_facts_reach_the_controller(life: ActingLife) -> None:
    class ShowingTarget(StepTarget):
        shown: ClassVar[list[ActionState]] = []
        turns: ClassVar[list[int]] = []
        uids: ClassVar[set[str]] = set()

        def on_action(self, action: Action) -> None:
            if action.kind is not ActionKind.NOTIFY:
                self.shown.append(action.state)
                self.uids.update(one.node_uid for one in action.target.machines)

        def on_time(self) -> None:
            self.turns.append(len(self.shown))

        def facts(self, cluster: str) -> list[ActionEvent]:
            return [MachineFacts(cluster, one, life.job.now_ns, node_uid=f"uid-{one}") for one in HOSTS]

    target = ShowingTarget([0], frozenset())  # it does no kind itself
    client = _client(life, target)
    client.step()
    life.job.kill(3)
    life.run(10)
    _go_on(life, client, 3)
    assert target.shown[0] is ActionState.APPROVED
    assert target.turns[-1] == len(target.shown)
    assert all(uid.startswith("uid-") for uid in target.uids)
    assert target.uids


def test_actions_of_a_controller_that_is_not_known_are_not_done(life: ActingLife) -> None:
    target = StepTarget([0], KINDS)
    other = new_signing_key(Role.CONTROLLER, "engine", 1)
    client = _client(life, target, other)
    client.step()
    life.job.kill(3)
    life.run(10)
    _go_on(life, client, 6)
    assert target.effects == []
    assert _state(life) == [ActionState.APPROVED]
    assert client.troubles[ExchangeTrouble.FORGED] > 0


def test_an_engine_that_is_away_changes_nothing_and_is_found_again(life: ActingLife) -> None:
    target = StepTarget([0], KINDS)
    client = _client(life, target)
    client.step()
    life.job.kill(3)
    life.run(10)
    _go_on(life, client, 2)
    life.network.close()
    begun = list(target.effects)
    for _ in range(3):
        client.step()
    assert (client.is_connected, target.effects) == (False, begun)
    assert client.troubles[ExchangeTrouble.ENGINE_AWAY] == 3
    life.kill()
    life.run(3)
    life.start()
    life.run(2)
    client._channel = life.executor()  # noqa: SLF001  # another port than before
    _go_on(life, client, 12)
    assert target.effects == list(STEPS)
    assert _state(life) == [ActionState.DONE]


def test_the_command_needs_an_engine_a_credential_and_the_controllers_key(
    life: ActingLife, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = tmp_path / "controller-public.json"
    flags = ["--url", "http://127.0.0.1:1", "--controller-keys", str(keys)]
    assert main(["executor", "job", *flags]) == 2
    assert "tocsin token issue NAME --role executor" in capsys.readouterr().err
    flags += ["--engine", life.network.address, "--token-file", str(life.file(Role.EXECUTOR))]
    write_credentials(keys, (life.holders[Role.EXECUTOR],))
    assert main(["executor", "job", *flags]) == 2
    assert "a file with a public key of role controller" in capsys.readouterr().err
    write_credentials(keys, (public_half(CONTROLLER),))
    assert main(["executor", "job", *flags, "--url", "localhost"]) == 2
    assert "--url = 'localhost'" in capsys.readouterr().err


def test_the_loop_ends_in_order_and_says_what_is_left(life: ActingLife) -> None:
    client = _client(life, StepTarget([0], KINDS))
    stop = threading.Event()
    thread = threading.Thread(target=executor.work, args=(client, stop))
    thread.start()
    until(lambda: client.is_connected is True)
    stop.set()
    thread.join(60)
    assert not thread.is_alive()
    names = {family.name for family in client.families()}
    assert "tocsin_executor_connected" in names


def test_each_registered_system_is_made_from_its_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(executor, "signer_of", lambda *_: new_signing_key(Role.EXECUTOR, "some-executor", 1))
    monkeypatch.setattr(executor, "reader_of", lambda *_: object())
    keys, proto = tmp_path / "controller-public.json", tmp_path / "health_event.proto"
    write_credentials(keys, (public_half(CONTROLLER),))
    parser = argparse.ArgumentParser()
    executor.add_arguments(parser)

    def kinds(*words: str) -> frozenset[ActionKind]:
        args = parser.parse_args([*words, "--controller-keys", str(keys), "--cluster", "a", "--cluster", "b"])
        client = executor.client_of(args)
        assert [one.cluster for one in client._configs] == ["a", "b"]  # noqa: SLF001
        return client._configs[0].kinds  # noqa: SLF001

    assert ActionKind.DRAIN in kinds("slurm", "--slurm-user", "slurm")
    assert kinds("job", "--url", "http://127.0.0.1:1") == {ActionKind.RESTART, ActionKind.EVICT, ActionKind.ROLLBACK}
    checks = ("preflight", "--state-dir", str(tmp_path))
    assert kinds(*checks) == {ActionKind.PROBE}
    for wrong in (("--via", "kubectl"), ("--port", "0"), ("--each", "long"), ("--without", "no_such_check")):
        with pytest.raises(ConfigError, match="--image" if "--via" in wrong else wrong[0]):
            kinds(*checks, *wrong)
    proto.write_text("message HealthEvent {\n  string agent = 1;\n}\n")
    with pytest.raises(TargetRefusedError, match="would carry out what is only to be stored"):
        kinds("nvsentinel", "--proto", str(proto))
    with pytest.raises(ConfigError, match="--proto"):
        kinds("nvsentinel")
    assert capsys.readouterr().out == ""
