"""``tocsin executor kubernetes --kafka``: a signed action on a real broker becomes an eviction, and is taken back."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_controller_actions import Ground
from tests.cli.test_executor_kubernetes import kube_config
from tests.collectors.peer import wait_until
from tests.kafka_kit import read_until
from tests.pipeline.actions.executors.fake_kube import FakeKube, serving_kube
from tests.pipeline.actions.executors.kube_world import KubeWorld
from tests.pipeline.actions.kit import CLUSTER, JOB
from tests.pipeline.kafka.action_kit import EXECUTOR, HOSTS, status_of
from tocsin.cli.cluster.broker import Broker
from tocsin.cli.cluster.process import Child, Program
from tocsin.cli.main import main
from tocsin.pipeline.identity.message_signatures import new_signing_key
from tocsin.pipeline.kafka.state_parts import POSITIONS, StateParts, unpack_positions
from tocsin.schemas.action_events import JobFacts, Pod
from tocsin.schemas.credential_store import write_credentials
from tocsin.schemas.credentials import Role
from tocsin.schemas.kafka.topics import ACTION_ACKS, CONTROLLER_STATE
from tocsin.schemas.verdicts import ActionKind

KUBE = new_signing_key(Role.EXECUTOR, "kube", 1)
NODE = ["PATCH /api/v1/nodes/n1", "PATCH /api/v1/nodes/n1/status"]
EVICTION = "POST /api/v1/namespaces/default/pods/p/eviction"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/ops/leases/mine"


class KubeGround(Ground):
    """A broker and controllers as there; an API server with a job's pod on n1, and the executor's command."""

    def __init__(self, broker: Broker, prefix: str, folder: Path, kube: FakeKube, world: KubeWorld) -> None:
        super().__init__(broker, prefix, folder)
        self.kube, self.world = kube, world
        self.know(EXECUTOR, KUBE)
        write_credentials(folder / "kube.json", (KUBE,))
        world.add_node("n1", boot_id="boot-n1")
        self.pod_uid = world.add_pod("p", "n1")

    def alive(self) -> None:
        """The engine lives, and the job's own executor tells its pods; it carries nothing out."""
        now_ns = time.time_ns()
        self._write("job-status", status_of(now_ns))
        self.tell(JobFacts(JOB, now_ns, hosts=HOSTS, pods=(Pod("n1", self.pod_uid),), spare_count=8))

    def start_executor(self) -> None:
        """The executor of Kubernetes begins."""
        config = kube_config(self.folder, self.world)
        command = [sys.executable, "-m", "tocsin", "executor", "kubernetes", "--kubeconfig", config]
        command += ["--lease", "ops/mine", "--cluster", CLUSTER, *self.flags]
        command += ["--token-file", str(self.folder / "kube.json"), "--controller-keys", str(self.folder / "all.json")]
        self.controllers.append(Child(Program("executor", command, self.folder / "executor.log", folder=self.folder)))
        self.controllers[-1].start()

    def settle(self) -> None:
        """Wait until the controller has taken the job's pods, and what the executor told of the node."""
        self.alive()
        acks, uid = f"{self.prefix}.{ACTION_ACKS}", self.world.node("n1")["metadata"]["uid"].encode()
        told = read_until(
            self.broker.address, [acks], lambda found: any(b'"%b"' % uid in one.value for one in found), 60
        )
        state = f"{self.prefix}.{CONTROLLER_STATE}"
        read_until(self.broker.address, [state], lambda found: taken_count(found) >= len(told), 60)

    def effects(self) -> list[str]:
        """What was changed on the node and its pods, the Lease left out."""
        return [one for one in self.kube.effects if "/leases" not in one]


def taken_count(records: Iterable[Any]) -> int:
    """How many messages of the executors a controller has taken, by the records of its state."""
    parts = StateParts()
    for record in records:
        parts.take(record.key, record.value)
    state = parts.parts()
    return unpack_positions(state[POSITIONS]).get((ACTION_ACKS, 0), 0) if POSITIONS in state else 0


@pytest.fixture
def ground(kafka_broker: Broker, topic_prefix: str, tmp_path: Path) -> Iterator[KubeGround]:
    with serving_kube() as (kube, world):
        made = KubeGround(kafka_broker, topic_prefix, tmp_path, kube, world)
        yield made
        made.exchange.close()
        made.producer.close()
        for one in made.controllers:
            one.kill()


@pytest.mark.timeout(420)
def test_a_pod_is_evicted_over_the_topics_and_a_cancel_gives_its_node_back(ground: KubeGround) -> None:
    ground.start()
    ground.start_executor()
    ground.settle()
    ground.judge("v1", "ecc_error", ActionKind.EVICT)
    started = ground.until("started")
    assert (started.kind, started.holder, started.target.hosts) == (ActionKind.EVICT, "kube", ("n1",))
    [machine] = started.target.machines
    assert (machine.node_uid, machine.pod_uid) == (ground.world.node("n1")["metadata"]["uid"], ground.pod_uid)

    wait_until(lambda: ground.world.pods()["p"], 60)
    ground.world.remove_pod("p")
    assert ground.until("done").action_id == started.action_id
    assert ground.effects() == [*NODE, EVICTION]
    assert ground.world.is_cordoned("n1")
    assert ground.world.api().call("GET", LEASE)["spec"]["holderIdentity"]

    token = ["--token-file", str(ground.folder / "ann.json")]
    assert main(["actions", "cancel", started.action_id, *token, *ground.flags]) == 0
    ground.until("undone")
    assert ground.effects()[3:] == NODE[::-1]
    assert not ground.world.is_cordoned("n1")
