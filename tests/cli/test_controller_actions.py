"""``tocsin controller --act`` on a real broker: a verdict is carried out, whoever is killed or forges a word."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kafka import KafkaProducer

from tests.collectors.peer import wait_until
from tests.kafka_kit import headers, make_topics, read_count
from tests.pipeline.actions.executors.world import STEPS, StepTarget
from tests.pipeline.actions.kit import CLUSTER, JOB, KINDS, T0, verdict_on
from tests.pipeline.kafka.action_kit import ANN, CONTROLLER, EXECUTOR, status_of
from tocsin.cli import executor
from tocsin.cli.cluster.broker import Broker
from tocsin.cli.cluster.process import Child, Program
from tocsin.cli.main import main
from tocsin.pipeline.actions.executors.client import ExecutorClient, ExecutorKeys
from tocsin.pipeline.actions.executors.core import ExecutorConfig
from tocsin.pipeline.identity.action_signatures import AckSigner, ActionChecker
from tocsin.pipeline.identity.message_signatures import public_half
from tocsin.pipeline.identity.verdict_signatures import VerdictSigner, new_engine_key
from tocsin.pipeline.kafka.action_exchange import KafkaExchange
from tocsin.schemas.action_codec import encode_ack, encode_event
from tocsin.schemas.action_events import Ack, AckKind, ActionEvent, ExecutorHeard
from tocsin.schemas.actions import Action
from tocsin.schemas.cloudevents import encode_verdict
from tocsin.schemas.credential_store import write_credentials
from tocsin.schemas.credentials import Credential
from tocsin.schemas.kafka.settings import kafka_settings
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.signatures import SIGNATURE_HEADER
from tocsin.schemas.verdicts import ActionKind

ENGINE = new_engine_key("fleet", 1)
Captured = pytest.CaptureFixture[str]


class Ground:
    """A broker, an engine's pen, an executor, and controllers that are killed."""

    def __init__(self, broker: Broker, prefix: str, folder: Path) -> None:
        self.prefix, self.folder, self.broker = prefix, folder, broker
        make_topics(broker, prefix)
        self.know(EXECUTOR)
        write_credentials(folder / "controller.json", (CONTROLLER,))
        write_credentials(folder / "ann.json", (ANN,))
        self.producer = KafkaProducer(bootstrap_servers=broker.address, linger_ms=0)
        self.exchange = KafkaExchange(kafka_settings(broker.address), prefix)
        self.flags = ["--kafka", broker.address, "--topic-prefix", prefix]
        self.controllers: list[Child] = []
        self._seq = 0

    def know(self, *executors: Credential) -> None:
        """Write the file of all public keys, with these of executors."""
        write_credentials(self.folder / "all.json", tuple(map(public_half, (CONTROLLER, *executors, ANN, ENGINE))))

    def dead(self, count: int) -> list[str]:
        """Reasons of the first dead letters, once there are so many."""
        letters = read_count(self.broker.address, [f"{self.prefix}.dead-letter"], count)
        return [headers(one)["reason"].decode() for one in letters[:count]]

    def start(self, *flags: str) -> None:
        """A controller begins."""
        keys, own = str(self.folder / "all.json"), str(self.folder / "controller.json")
        command = [sys.executable, "-m", "tocsin", "controller", "--act", *self.flags, "--controller-key", own]
        command += ["--credentials", keys, "--verdict-keys", keys, *flags]
        name = f"controller{len(self.controllers)}"
        self.controllers.append(Child(Program(name, command, self.folder / f"{name}.log", folder=self.folder)))
        self.controllers[-1].start()

    def judge(self, name: str, cause: str = "process_frozen", action: ActionKind = ActionKind.RESTART) -> None:
        """The engine names a process that is frozen, or something else."""
        at_seconds = (time.time_ns() - T0) / NS_PER_SECOND
        verdict = verdict_on("n1", name=name, action=action, cause=cause, at_seconds=at_seconds)
        self._write("verdicts", encode_verdict(verdict))

    def _write(self, topic: str, value: bytes) -> None:
        signature = [(SIGNATURE_HEADER, VerdictSigner(ENGINE).header(value))]
        self.producer.send(f"{self.prefix}.{topic}", value, b"k", signature).get(60)

    def tell(self, told: Ack | ActionEvent, *, is_signed: bool = True) -> tuple[bytes, bytes]:
        value = encode_ack(told) if isinstance(told, Ack) else encode_event(told)
        message = value, AckSigner(EXECUTOR).header(value) if is_signed else b""
        self.exchange.send([message], "slurm")
        return message

    def ack(self, action: Action, kind: AckKind, *, is_signed: bool = True) -> tuple[bytes, bytes]:
        self._seq += 1
        now_ns = time.time_ns()
        lease_ns = now_ns + 60 * NS_PER_SECOND if kind is AckKind.CLAIMED else 0
        ids = (action.action_id, action.target.job, kind, "slurm", action.epoch, self._seq, now_ns, lease_ns)
        return self.tell(Ack(*ids), is_signed=is_signed)

    def alive(self) -> None:
        """The engine and the executor say that they live."""
        now_ns = time.time_ns()
        self._write("job-status", status_of(now_ns))
        self.tell(ExecutorHeard(CLUSTER, "slurm", KINDS, now_ns))

    def action(self) -> Action | None:
        """The action as it is now, its signature checked; the engine and the executor live meanwhile."""
        self.alive()
        now_ns = time.time_ns()
        checker = ActionChecker([public_half(CONTROLLER)])
        found = [checker.admit(one.value, one.signature, now_ns) for one in self.exchange.fetch()]
        return next((one for one in found if one.kind is not ActionKind.NOTIFY), None)

    def until(self, state: str) -> Action:
        """Wait until the action is in a state."""
        found: list[Action] = []

        def is_there() -> bool:
            action = self.action()
            found[:] = [] if action is None else [action]
            return bool(found) and found[0].state.value == state

        wait_until(is_there, 60)
        return found[0]


@pytest.fixture
def ground(kafka_broker: Broker, topic_prefix: str, tmp_path: Path) -> Iterator[Ground]:
    made = Ground(kafka_broker, topic_prefix, tmp_path)
    yield made
    made.exchange.close()
    made.producer.close()
    for one in made.controllers:
        one.kill()


def test_a_verdict_is_carried_out_whoever_is_killed_and_nobody_forges_a_word(ground: Ground, capsys: Captured) -> None:
    ground.start()
    ground.action()
    ground.judge("v1")
    approved = ground.until("approved")
    assert (approved.kind, approved.target.job) == (ActionKind.RESTART, JOB)

    ground.controllers[-1].kill()
    ground.ack(approved, AckKind.CLAIMED, is_signed=False)
    ground.start()
    wait_until(lambda: ground.until("approved").epoch > approved.epoch, 60)
    assert ground.until("approved").action_id == approved.action_id
    assert ground.dead(1) == ["unsigned"]
    ground.ack(replace(approved, action_id="f" * 32), AckKind.DONE)
    assert ground.dead(2) == ["unsigned", "action_unknown"]
    assert ground.until("approved").action_id == approved.action_id

    claim = ground.ack(ground.until("approved"), AckKind.CLAIMED)
    ground.ack(ground.until("claimed"), AckKind.STARTED)
    ground.ack(ground.until("started"), AckKind.DONE)
    done = ground.until("done")

    ground.exchange.send([claim], "slurm")  # an old signed word, played again
    assert main(["actions", "list", "--all", "--json", *ground.flags]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["state"] for one in lines if one["kind"] != "notify"] == ["done"]
    assert ground.until("done").revision == done.revision


def test_an_executor_carries_it_out_over_the_topics(ground: Ground) -> None:
    write_credentials(ground.folder / "slurm.json", (EXECUTOR,))
    keys = ["--token-file", str(ground.folder / "slurm.json"), "--controller-keys", str(ground.folder / "all.json")]
    parser = argparse.ArgumentParser()
    executor.add_arguments(parser)
    made = executor.client_of(parser.parse_args(["slurm", *ground.flags, *keys, "--cluster", CLUSTER]))
    assert made.exchange(), "the flags lead to the topics"
    target = StepTarget([0], frozenset({ActionKind.RESTART}))
    own = ExecutorKeys(AckSigner(EXECUTOR), ActionChecker([public_half(CONTROLLER)]))
    config = ExecutorConfig(CLUSTER, "slurm", target.kinds, effect_seconds=2.0)
    client = ExecutorClient([config], ground.exchange, own, target, time.time_ns)
    ground.start()
    ground.action()
    ground.judge("v2")
    ground.until("approved")

    def is_done() -> bool:
        client.step()
        action = ground.action()
        return action is not None and action.state.value == "done"

    wait_until(is_done, 60)
    assert target.effects == list(STEPS)
    assert not client.troubles
