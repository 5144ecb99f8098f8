"""The hook inside a real torch.distributed job: three ranks over gloo, one agent socket."""

import json
import multiprocessing
import os
import pickle
import socket
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tocsin.collectors import hook

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(400)  # the first test waits for torch to be loaded and for the whole job

RANKS = 3
STEPS = 4
LATE_STEPS = (100, 203)

Message = dict[str, Any]


def train(rank: int, folder: str) -> None:
    """What one rank does: a plain loop, a rank that is late, DistributedDataParallel, messages."""
    os.environ.update(
        TOCSIN_AGENT_SOCKET=f"{folder}/agent.sock",
        TOCSIN_JOB_ID="test",
        TOCSIN_STUCK_DUMP_SECONDS="1",
        TOCSIN_DUMP_DIR=f"{folder}/stuck",
        RANK=str(rank),
        WORLD_SIZE=str(RANKS),
    )
    import torch
    from torch import distributed as dist
    from torch.distributed import isend as isend_imported_before

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    pair = dist.new_group([0, 1], group_desc="dp")
    original = dist.all_reduce
    plain_loop(rank, pair)
    late_rank(rank, folder)
    parallel_loop(rank, folder)
    messages(rank, isend_imported_before)
    while not Path(folder, "asked").exists():
        time.sleep(0.02)
    time.sleep(0.6)  # a tick to answer the request for a dump in
    hook.close()
    assert dist.all_reduce is original, "close() takes the wrappers off"
    dist.barrier()
    dist.destroy_process_group()


def plain_loop(rank: int, pair: Any) -> None:
    import torch
    from torch import distributed as dist

    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in hook.attach(model, optimizer, [torch.ones(4, 8)] * STEPS):
        value = model(batch).square().mean()
        value.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        dist.all_gather([torch.empty(4) for _ in range(RANKS)], torch.ones(4))
        if rank < 2:
            dist.all_reduce(torch.ones(2), group=pair)
        work = dist.broadcast(torch.ones(6), 0, async_op=True)
        assert isinstance(work, dist.Work)
        work.wait()
        optimizer.step()
        hook.loss(value)
    with hook.step():  # ends the loader's last step, and carries its collectives
        pass


def wait_for(path: Path) -> None:
    """Wait until the test has heard enough: however slow the machine is, not a moment less or more."""
    deadline = time.monotonic() + 240
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


def late_rank(rank: int, folder: str) -> None:
    import torch
    from torch import distributed as dist

    with hook.step(100):
        if rank == 2:
            wait_for(Path(folder, "heard100"))
        dist.all_reduce(torch.ones(16))


def parallel_loop(rank: int, folder: str) -> None:
    import torch
    from torch import distributed as dist

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    hook.attach(model)
    for step in range(200, 204):
        with hook.step(step):
            value = model(torch.ones(4, 8)).sum()
            if step >= 202 and rank == 2:
                with hook.phase("optimizer"):
                    if step == 202:
                        time.sleep(0.3)
                    else:
                        wait_for(Path(folder, "heard203"))
            value.backward()
    with hook.step(300):
        dist.barrier()


def messages(rank: int, isend_imported_before: Any) -> None:
    import torch
    from torch import distributed as dist

    with hook.step(400):
        if rank == 0:
            dist.send(torch.ones(3), 1)
            sent = dist.isend(torch.ones(5), dst=1)
            assert sent is not None
            sent.wait()
            ops = [dist.P2POp(isend_imported_before, torch.ones(7), 1), dist.P2POp(dist.isend, torch.ones(9), 1)]
        elif rank == 1:
            dist.recv(torch.ones(3), 0)
            got = dist.irecv(torch.ones(5), group_src=0)
            assert got is not None
            got.wait()
            ops = [dist.P2POp(dist.irecv, torch.ones(size), 0) for size in (7, 9)]
        else:
            return
        for work in dist.batch_isend_irecv(ops):
            work.wait()


@dataclass
class Job:
    """What the agent heard, and the exit codes."""

    messages: list[Message]
    exit_codes: list[int | None]
    folder: Path

    def of(self, kind: str, rank: int) -> list[Message]:
        return [m for m in self.messages if m["t"] == kind and m["rank"] == rank]

    def steps(self, rank: int) -> dict[int, Message]:
        return {m["step"]: m for m in self.of("step", rank)}


def listen(agent: socket.socket, heard: list[Message], done: threading.Event) -> None:
    agent.settimeout(0.1)
    while not done.is_set():
        try:
            heard.append(json.loads(agent.recv(1 << 20)))
        except TimeoutError:
            continue


def has_heard_enough(heard: list[Message], step: int) -> bool:
    """Whether a rank that waits, and the one that is waited for, have said what the tests look for."""
    stuck = sum(m["t"] == "dump" and m["rank"] == 0 and m["why"] == "stuck" for m in heard)
    beats = [m for m in heard if m["t"] == "beat" and m["step"] == step and m["step_ns"]]
    waiting = [m for m in beats if m["rank"] == 0 and m["inflight"]]
    return stuck > LATE_STEPS.index(step) and bool(waiting) and sum(m["rank"] == 2 for m in beats) >= 3


def ask_for_dumps(heard: list[Message], folder: Path) -> None:
    """Once all ranks have exchanged their messages, ask the second one for a dump."""
    deadline = time.monotonic() + 240
    late = list(LATE_STEPS)
    while not {0, 1} <= {m["rank"] for m in heard if m["t"] == "step" and m["step"] == 400}:
        assert time.monotonic() < deadline, "the job did not come to its end"
        if late and has_heard_enough(list(heard), late[0]):
            (folder / f"heard{late.pop(0)}").touch()
        time.sleep(0.05)
    reply = next(m["reply"] for m in heard if m["t"] == "hello" and m["rank"] == 1)
    request = {"v": 1, "t": "dump", "request_id": "r1", "dir": str(folder / "probe")}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asker:
        asker.sendto(json.dumps(request).encode(), reply)
    (folder / "asked").touch()


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("job")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", "torch.nn.parallel", "torch._dynamo"])
    heard: list[Message] = []
    done = threading.Event()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
        agent.bind(str(folder / "agent.sock"))
        listener = threading.Thread(target=listen, args=(agent, heard, done))
        listener.start()
        ranks = [context.Process(target=train, args=(rank, str(folder))) for rank in range(RANKS)]
        for process in ranks:
            process.start()
        try:
            ask_for_dumps(heard, folder)
        finally:
            for process in ranks:
                process.join(120)
                process.kill()
            done.set()
            listener.join()
    return Job(heard, [process.exitcode for process in ranks], folder)


def test_the_job_ends_in_order(job: Job) -> None:
    assert job.exit_codes == [0, 0, 0]
    assert all(len(job.of("bye", rank)) == 1 for rank in range(RANKS))


def test_two_lines_give_steps_with_phases(job: Job) -> None:
    for rank in range(RANKS):
        steps = job.steps(rank)
        assert set(range(STEPS)) <= set(steps)
        for number in range(1, STEPS):
            step = steps[number]
            measured = [step[name] for name in ("data", "fwd", "bwd", "opt", "comm")]
            assert all(value > 0 for value in measured)
            assert sum(measured) <= step["dur"] + 1e-4
            assert isinstance(step["loss"], float)


def test_all_members_number_an_operation_alike(job: Job) -> None:
    seen: dict[tuple[str, int], set[tuple[int, str, int]]] = defaultdict(set)
    for rank in range(RANKS):
        for step in job.of("step", rank):
            for comm_id, name, seq, size, start_ns, end_ns in step["coll"]:
                assert start_ns <= end_ns
                seen[comm_id, seq].add((rank, name, size))
    groups = {g["comm_id"]: set(g["ranks"]) for m in job.messages if m["t"] == "groups" for g in m["groups"]}

    assert len(seen) > 5 * STEPS
    for (comm_id, _seq), rows in seen.items():
        assert {rank for rank, _, _ in rows} == groups[comm_id]
        assert len({(name, size) for _, name, size in rows}) == 1


def test_asynchronous_operations_end_when_they_are_waited_for(job: Job) -> None:
    names = [row[1] for row in job.steps(1)[2]["coll"]]

    assert names == ["all_reduce", "all_reduce", "all_gather", "all_reduce", "broadcast"]


def test_groups_are_announced_with_their_kinds_and_one_name(job: Job) -> None:
    last = {rank: job.of("groups", rank)[-1]["groups"] for rank in range(RANKS)}

    kinds = {rank: {g["kind"]: g for g in groups} for rank, groups in last.items()}
    assert kinds[0]["world"] == kinds[1]["world"] == kinds[2]["world"]
    assert kinds[0]["world"]["ranks"] == [0, 1, 2]
    assert kinds[0]["dp"] == kinds[1]["dp"]
    assert kinds[0]["dp"]["ranks"] == [0, 1]
    assert "dp" not in kinds[2]


def beats_of_step(job: Job, rank: int, step: int) -> list[Message]:
    return [m for m in job.of("beat", rank) if m["step"] == step and m["step_ns"]]


def test_while_a_rank_sleeps_the_others_are_in_flight_and_it_stands_one_behind(job: Job) -> None:
    waiting = [m for m in beats_of_step(job, 0, 100) if m["inflight"]]
    comm_id, name, seq, size, start_ns = waiting[-1]["inflight"][0]

    assert (name, size) == ("all_reduce", 64)
    assert waiting[-1]["phase"] == "communication"
    assert waiting[-1]["ts"] > start_ns
    late = beats_of_step(job, 2, 100)
    assert late
    assert all(m["inflight"] == [] for m in late)
    assert {row[2] for m in late for row in m["last"] if row[0] == comm_id} == {seq - 1}


def test_what_no_python_function_called_is_seen_by_the_flight_recorder(job: Job) -> None:
    waiting = [m for m in beats_of_step(job, 0, 203) if m["inflight"]]
    comm_id, name, seq, size, start_ns = waiting[-1]["inflight"][0]

    assert (name, size) == ("all_reduce", 4 * (64 + 8))
    assert waiting[-1]["step_ns"] - 1e9 < start_ns < waiting[-1]["ts"], "of this clock, and of this step"
    late = {row[2] for row in beats_of_step(job, 2, 203)[-1]["last"] if row[0] == comm_id}
    assert late == {seq - 1}
    barrier = job.steps(0)[300]["coll"][-1]
    assert (barrier[0], barrier[1], barrier[2]) == (comm_id, "barrier", seq + 1)


def test_waiting_for_a_slow_rank_is_not_the_victims_backward(job: Job) -> None:
    for rank in (0, 1):
        step = job.steps(rank)[202]
        assert step["comm"] > 0.25
        assert step["bwd"] < step["comm"]
        assert job.steps(2)[202]["comm"] < step["comm"]


def test_messages_between_two_ranks_are_a_line_of_their_own(job: Job) -> None:
    sent, got = job.steps(0)[400]["coll"], job.steps(1)[400]["coll"]

    assert [row[:4] for row in sent] == [row[:4] for row in got]
    assert [(row[1], row[2], row[3]) for row in sent] == [
        ("send_recv", 1, 12),
        ("send_recv", 2, 20),
        ("send_recv", 3, 28),
        ("send_recv", 4, 36),
    ]
    assert sent[0][0].endswith(":0>1")


def test_a_stuck_rank_writes_one_dump_an_episode(job: Job) -> None:
    dumps = [m for m in job.of("dump", 0) if m["why"] == "stuck"]

    assert len(dumps) == 2, "one for each of the two waits"
    assert dumps[0]["path"] == str(job.folder / "stuck" / "fr_0")
    content = pickle.loads((job.folder / "stuck" / "fr_0").read_bytes())
    assert content["version"].startswith("2.")
    assert not any(m["why"] == "stuck" for m in job.of("dump", 2)), "who sleeps outside does not wait"


def test_a_dump_is_written_where_a_probe_asks(job: Job) -> None:
    [dump] = [m for m in job.of("dump", 1) if m["why"] == "probe"]

    assert (dump["request_id"], dump["path"]) == ("r1", str(job.folder / "probe" / "fr_1"))
    entries = pickle.loads(Path(dump["path"]).read_bytes())["entries"]
    assert {entry["profiling_name"] for entry in entries} >= {"gloo:all_reduce", "gloo:barrier"}


def test_the_reply_sockets_are_gone(job: Job) -> None:
    assert sorted(path.name for path in job.folder.glob("tocsin-hook-*")) == []
