import hashlib
import json
import os
import pwd
from pathlib import Path

import pytest

from tests.collectors.fakes import Agent, FakeGroup
from tocsin.collectors.hook._collectives import CollectiveTracker
from tocsin.collectors.hook._identity import Identity, from_environment, scheduler_facts
from tocsin.collectors.hook._lines import Communicator
from tocsin.collectors.hook._recorder import Recorder
from tocsin.collectors.hook._sender import Sender
from tocsin.collectors.hook._torch import (
    FlightSampler,
    Group,
    comm_id_of,
    kind_of,
    op_name_of,
)

ME = pwd.getpwuid(os.getuid()).pw_name
HASH = hashlib.sha256(b"h:1").hexdigest()[:8]


@pytest.mark.parametrize(
    ("env", "job", "rank"),
    [
        ({}, ("default", f"{ME}-train-local", 0), 0),
        ({"MASTER_ADDR": "h", "MASTER_PORT": "1", "RANK": "4"}, ("default", f"{ME}-train-{HASH}", 0), 4),
        (
            {"SLURM_JOB_ID": "77", "SLURM_PROCID": "1", "RANK": "9", "SLURM_CLUSTER_NAME": "c"},
            ("c", f"{ME}-train-77", 0),
            9,
        ),
        ({"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "2"}, ("default", f"{ME}-train-local", 2), 0),
        (
            {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1", "TORCHELASTIC_RESTART_COUNT": "2"},
            ("default", f"{ME}-train-7", 1002),
            0,
        ),
        ({"TOCSIN_JOB_ID": "mine", "SLURM_JOB_ID": "7", "TOCSIN_ATTEMPT": "5"}, ("default", "mine", 5), 0),
        ({"RANK": "abc", "SLURM_PROCID": "6"}, ("default", f"{ME}-train-local", 0), 6),
    ],
)
def test_identity_by_precedence(env: dict[str, str], job: tuple[str, str, int], rank: int) -> None:
    identity = from_environment(env, "train")

    assert (identity.job, identity.rank) == (job, rank)


def test_the_gpu_is_the_visible_one_of_the_local_rank() -> None:
    env = {"CUDA_VISIBLE_DEVICES": "4,5", "LOCAL_RANK": "1"}

    assert from_environment(env).gpu == 5
    assert from_environment({"CUDA_VISIBLE_DEVICES": "GPU-8a", "LOCAL_RANK": "3"}).gpu_uuid == "GPU-8a"
    assert from_environment({"LOCAL_RANK": "3"}).gpu == -1


@pytest.mark.parametrize(
    ("description", "kind"),
    [
        ("dp", "dp"),
        ("dp0", "dp"),
        ("mesh_tp", "tp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
        ("EXPERT_DATA_PARALLEL_GROUP", "ep"),
        ("CONTEXT_PARALLEL_GROUP", "cp"),
        ("EMBEDDING_GROUP", "other"),
        ("cpu_group", "other"),
        ("undefined", "other"),
    ],
)
def test_kind_of_a_group_by_its_description(description: str, kind: str) -> None:
    assert kind_of(description, is_default=False) == kind
    assert kind_of(description, is_default=True) == "world"


def test_operations_have_one_name_whoever_saw_them() -> None:
    assert op_name_of("gloo:all_reduce") == "all_reduce"
    assert op_name_of("nccl:_all_gather_base") == op_name_of("all_gather_into_tensor") == "all_gather"
    assert op_name_of("nccl:_reduce_scatter_base") == op_name_of("reduce_scatter_tensor") == "reduce_scatter"
    assert op_name_of("nccl:send 0->1") == "send"


def test_the_id_of_a_communicator_depends_on_its_members() -> None:
    assert comm_id_of("5", (0, 1)) == comm_id_of("5", [0, 1])
    assert comm_id_of("5", (0, 1)) != comm_id_of("5", (0, 2))


def test_the_sampler_reads_entries_only_when_a_group_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[bool] = []
    counters = {"last_enqueued_collective": "5", "last_completed_collective": "4"}
    entry = {"pg_id": 0, "process_group": ["0", "default_pg"], "profiling_name": "gloo:all_reduce"}
    entry |= {"is_p2p": False, "input_sizes": [[2, 3]], "input_dtypes": ["Float"], "time_created_ns": 9}

    def read(entries: bool, _only_active: bool) -> bytes:
        reads.append(entries)
        rows = [{**entry, "collective_seq_id": seq, "retired": seq < 5} for seq in (4, 5)]
        return json.dumps({"pg_status": {"0": counters}, "entries": rows if entries else []}).encode()

    monkeypatch.setattr("tocsin.collectors.hook._torch._recorder_function", lambda _: read)
    sampler = FlightSampler()
    sampler.learn({"0": Group("0/abc", "world", (0, 1))})
    second = 10**9

    for now in (100 * second, 100 * second + second // 4):
        sampler.sample(now)
    assert reads == [False, False]
    for tick in range(4):
        sampler.sample(101 * second + tick)

    assert reads.count(True) == 1, "once an episode"
    state = sampler.states["0/abc"]
    assert state.pending == [("all_reduce", 5, 24, 9)]
    assert state.op_name == "all_reduce"
    counters["last_completed_collective"] = "5"
    sampler.sample(102 * second)
    assert sampler.states["0/abc"].pending == []


def test_a_communicator_takes_the_groups_own_sequence_numbers() -> None:
    group = FakeGroup(41)
    communicator = Communicator(group, "0/abc", [0, 1])

    assert communicator.next_seq() == 42
    group.seq = 50  # DistributedDataParallel has reduced in between
    assert communicator.next_seq() == 51
    assert communicator.line(0, 1).next_seq() == 1


def test_a_step_keeps_the_newest_collectives(tmp_path: Path) -> None:
    agent = Agent(tmp_path / "agent.sock")
    recorder = Recorder(Identity("east", "job", 0, 0), Sender(agent.path))
    recorder.sender.connect()
    tracker = CollectiveTracker(recorder)
    group = FakeGroup()
    communicator = Communicator(group, "0/abc", [0, 1])
    recorder.begin_step(0)

    for seq in range(600):
        group.seq = seq
        operation, timed = tracker.begin(communicator, "barrier", 0)
        tracker.finish(operation, communicator, timed=timed)
    recorder.end_step()

    [step] = agent.of("step")
    assert [row[2] for row in step["coll"]] == list(range(89, 601))
    agent.close()


def test_the_schedulers_names_come_from_the_environment_and_what_is_not_set_is_left_out() -> None:
    assert scheduler_facts({"SLURM_JOB_ID": "77", "SLURM_RESTART_COUNT": "1", "POD_UID": "u"}) == {
        "slurm_job_id": "77",
        "slurm_restart_count": "1",
        "pod_uid": "u",
    }
    assert scheduler_facts({"HOSTNAME": "train-0"}) == {}
    assert scheduler_facts({"HOSTNAME": "train-0", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}) == {"pod_name": "train-0"}
    assert scheduler_facts({"POD_NAME": "x" * 300, "NODE_NAME": ""}) == {}
    places = {"POD_NAME": "train-0", "POD_NAMESPACE": "ml", "NODE_NAME": "gpu-7", "SLURMD_NODENAME": "node7"}
    assert scheduler_facts(places) == {
        "pod_name": "train-0",
        "pod_namespace": "ml",
        "node_name": "gpu-7",
        "slurm_node_name": "node7",
    }
