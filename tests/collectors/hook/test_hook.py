import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.collectors.conftest import HookClock
from tests.collectors.fakes import Agent, FakeGroup
from tests.descriptors import many_open_files
from tocsin.collectors import hook
from tocsin.collectors.hook._lines import Communicator


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    agent = Agent(tmp_path / "agent.sock")
    yield agent
    hook.close()
    agent.close()


def start(agent: Agent | Path, **given: Any) -> hook.Hook:
    path = agent.path if isinstance(agent, Agent) else str(agent)
    return hook.init("job", 3, "east", agent_socket=path, **given)


def test_hello_carries_the_identity_and_a_reply_path_that_exists(agent: Agent) -> None:
    start(agent, attempt=2, world_size=8, pp=1)

    [hello] = agent.of("hello")

    assert hello["job"] == ["east", "job", 2]
    assert (hello["v"], hello["rank"], hello["world_size"], hello["pp"], hello["dp"]) == (1, 3, 8, 1, -1)
    assert hello["pid"] == os.getpid()
    assert Path(hello["reply"]).is_socket()
    assert abs(hello["ts"] - time.time_ns()) < 1e9


def test_an_inner_phase_is_not_part_of_its_outer_one(agent: Agent, clock: HookClock) -> None:
    start(agent)

    with hook.step():
        with hook.phase("forward"):
            clock.spin(0.01)
            with hook.phase("communication"):
                clock.spin(0.04)
        with hook.phase("optimizer"):
            clock.spin(0.02)
    [step] = agent.of("step")

    assert step["fwd"] == 0.01
    assert step["comm"] == 0.04
    assert step["opt"] == 0.02
    assert step["bwd"] is None, "a phase that was never measured is not zero"
    assert step["dur"] == 0.07


def test_a_phase_nested_in_itself_counts_once(agent: Agent, clock: HookClock) -> None:
    start(agent)

    with hook.step(), hook.phase("forward"), hook.phase("forward"):
        clock.spin(0.02)
    [step] = agent.of("step")

    assert step["fwd"] == 0.02


def test_steps_count_up_from_the_number_that_was_given(agent: Agent) -> None:
    start(agent)

    with hook.step(100):
        pass
    with hook.step():
        pass

    assert [step["step"] for step in agent.of("step")] == [100, 101]


def test_data_fetched_between_steps_belongs_to_the_next_one(agent: Agent, clock: HookClock) -> None:
    start(agent)
    with hook.phase("forward"):  # an evaluation that nobody announced
        clock.spin(0.03)
    with hook.phase("data"):
        clock.spin(0.02)
    with hook.step():
        pass

    [step] = agent.of("step")

    assert step["data"] == 0.02
    assert step["dur"] >= step["data"]
    assert step["fwd"] is None


def test_a_step_that_raised_is_no_measurement_and_leaves_no_phase_open(agent: Agent) -> None:
    h = start(agent)

    def fail() -> None:
        h.phase("forward").__enter__()
        raise RuntimeError

    with pytest.raises(RuntimeError), hook.step():
        fail()
    with hook.step():
        pass

    assert len(agent.of("step")) == 1


def test_announced_phases_travel_at_once_and_stop_the_step_phases(agent: Agent, clock: HookClock) -> None:
    start(agent)

    with hook.step():
        with hook.phase("evaluation"):
            assert [m["edge"] for m in agent.of("phase")] == ["begin"]
            with hook.phase("forward"):
                clock.spin(0.02)
        assert [m["edge"] for m in agent.of("phase")] == ["begin", "end"]
        with hook.phase("forward"):
            clock.spin(0.001)
    [step] = agent.of("step")

    assert (step["fwd"], step["dur"]) == (0.001, 0.021)


def test_an_unknown_phase_is_refused_with_the_known_ones(agent: Agent) -> None:
    start(agent)

    with pytest.raises(ValueError, match=r"unknown phase 'backwards'; there are: data, forward, backward"):
        hook.phase("backwards")


def test_nan_is_said_once_until_the_value_is_finite_again(agent: Agent) -> None:
    start(agent)

    for value in (1.0, float("nan"), float("nan"), 2.0, float("-inf")):
        with hook.step():
            hook.loss(value)

    assert [(m["step"], m["what"], m["value"]) for m in agent.of("nan")] == [
        (1, "loss", "nan"),
        (4, "loss", "-inf"),
    ]
    assert [m["loss"] for m in agent.of("step")] == [1.0, "nan", "nan", 2.0, "-inf"]


class OnDevice:
    class Device:
        type = "cuda"

    device = Device()

    def __float__(self) -> float:
        raise AssertionError("the hook has waited for the GPU")


def test_a_value_on_a_device_is_left_alone(agent: Agent) -> None:
    start(agent)

    with hook.step():
        hook.loss(OnDevice())
        hook.grad_norm(0.5)
    [step] = agent.of("step")

    assert (step["loss"], step["gn"]) == (None, 0.5)


def test_phases_of_other_threads_are_not_part_of_the_step(agent: Agent, clock: HookClock) -> None:
    start(agent)

    def prefetch() -> None:
        for _ in range(100):
            with hook.phase("data"):
                clock.spin(0.0003)

    with hook.step(), hook.phase("forward"):
        threads = [threading.Thread(target=prefetch) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    [step] = agent.of("step")

    assert step["data"] is None
    assert step["fwd"] == step["dur"] == pytest.approx(0.06)


def test_without_an_agent_everything_is_dropped_and_counted(tmp_path: Path) -> None:
    h = start(tmp_path / "nobody.sock")
    before = h.recorder.sender.dropped_count

    for _ in range(10):
        with hook.step(), hook.phase("forward"):
            pass

    assert h.recorder.sender.dropped_count >= before + 10
    hook.close()


def test_an_agent_that_comes_later_is_found_and_one_that_dies_is_left(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    h = start(path)
    late = Agent(path)
    late.wait_for(lambda m: m["t"] == "hello")
    with hook.step():
        pass
    assert late.of("step")[0]["dropped"] > 0
    late.close()

    with hook.step():
        pass
    with hook.step():
        pass

    assert not h.recorder.sender.connected
    again = Agent(path)
    again.wait_for(lambda m: m["t"] == "hello")
    hook.close()
    assert again.of("bye")
    again.close()


def test_a_full_socket_drops_and_does_not_wait(tmp_path: Path) -> None:
    """One that waited would wait for good: nobody reads."""
    agent = Agent(tmp_path / "agent.sock")
    h = start(agent)

    for _ in range(2000):  # the kernel takes a handful of datagrams (net.unix.max_dgram_qlen)
        with hook.step():
            pass

    assert h.recorder.sender.dropped_count > 1000
    assert h.recorder.sender.connected, "an agent that is behind is not an agent that is gone"
    agent.drain()
    with hook.step():
        pass
    assert agent.of("step")[-1]["dropped"] == h.recorder.sender.dropped_count
    hook.close()
    agent.close()


def test_a_forked_child_is_silent_and_the_parent_goes_on(agent: Agent) -> None:
    h = start(agent)
    reply = agent.of("hello")[0]["reply"]

    child = os.fork()
    if child == 0:
        with hook.phase("data"):  # what a loader's worker may do
            hook.loss(float("nan"))
        hook.close()
        os._exit(0 if h.recorder.inert else 1)
    _, status = os.waitpid(child, 0)
    with hook.step():
        pass

    assert status == 0
    assert not agent.of("nan")
    assert not agent.of("bye")
    assert len(agent.of("step")) == 1
    assert Path(reply).is_socket(), "the child has removed the parent's socket"
    assert not h.recorder.inert


def test_a_forked_child_that_trains_gets_a_hook_of_its_own(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOCSIN_AGENT_SOCKET", agent.path)
    start(agent)

    child = os.fork()
    if child == 0:
        with hook.step(7):
            pass
        hook.close()
        os._exit(0)
    os.waitpid(child, 0)

    assert [m["pid"] for m in agent.of("hello")] == [os.getpid(), child]
    assert [m["step"] for m in agent.of("step")] == [7]


@pytest.mark.parametrize("word", ["off", "OFF", "0", "false", "False", "no", " No "])
def test_switched_off_nothing_is_sent(agent: Agent, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setenv("TOCSIN_HOOK", word)
    start(agent)

    with hook.step(), hook.phase("checkpoint"):
        hook.loss(float("nan"))
    loader = [1, 2]

    assert hook.attach(loader=loader) is loader
    assert agent.drain() == []


def test_a_process_with_many_open_files_is_heard(agent: Agent) -> None:
    with many_open_files():
        start(agent)
        with hook.step(5), hook.phase("backward"):
            beat = agent.wait_for(lambda m: m["t"] == "beat" and m["phase"] == "backward")
        hook.close()

    assert beat["step"] == 5


def test_beats_say_which_phase_lasts(agent: Agent) -> None:
    start(agent)

    with hook.step(5), hook.phase("backward"):
        beat = agent.wait_for(lambda m: m["t"] == "beat" and m["phase"] == "backward")

    assert beat["step"] == 5
    assert 0 < beat["step_ns"] <= beat["phase_ns"] <= beat["ts"]


def test_a_loader_gives_steps_without_further_marks(agent: Agent, clock: HookClock) -> None:
    start(agent)

    class Loader:
        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Iterator[int]:
            for item in range(3):
                clock.spin(0.001)
                yield item

    batches = hook.attach(loader=Loader())

    for _epoch in range(2):
        for _batch in batches:
            with hook.phase("forward"):
                clock.spin(0.002)
    steps = agent.of("step")

    assert len(batches) == 3
    assert [step["step"] for step in steps] == [0, 1, 2, 3, 4, 5]
    assert all((step["data"], step["fwd"]) == (0.001, 0.002) for step in steps)


def test_marked_steps_win_over_the_loaders_and_contain_its_fetch(agent: Agent, clock: HookClock) -> None:
    start(agent)

    def slow() -> Iterator[int]:
        for item in range(3):
            clock.spin(0.01)
            yield item

    class Loader:
        def __iter__(self) -> Iterator[int]:
            return slow()

    for _batch in hook.attach(loader=Loader()):
        with hook.step():
            pass
    steps = agent.of("step")

    assert [step["step"] for step in steps] == [0, 1, 2]
    assert all(step["data"] == step["dur"] == 0.01 for step in steps)


def test_a_collective_that_lasts_is_in_flight_at_once(agent: Agent) -> None:
    h = start(agent)
    group = FakeGroup()
    communicator = Communicator(group, "0/abc", [0, 1])

    operation, timed = h.tracker.begin(communicator, "all_reduce", 64)
    beat = agent.wait_for(lambda m: m["t"] == "beat" and m["inflight"])
    h.tracker.finish(operation, communicator, timed=timed)
    with hook.step():
        pass

    assert beat["inflight"][0][:4] == ["0/abc", "all_reduce", 1, 64]
    [[comm_id, name, seq, size, start_ns, end_ns]] = agent.of("step")[0]["coll"]
    assert (comm_id, name, seq, size) == ("0/abc", "all_reduce", 1, 64)
    assert start_ns == beat["inflight"][0][4]
    assert end_ns > start_ns


def test_requests_for_dumps_that_make_no_sense_change_nothing(agent: Agent, tmp_path: Path) -> None:
    h = start(agent)
    reply = agent.of("hello")[0]["reply"]

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asker:
        for request in (b"", b"\xff\xfe", b"[1]", b'{"t":"dump"}', b'{"v":1,"t":"dump","dir":"/nowhere/x"}'):
            asker.sendto(request, reply)
    agent.wait_for(lambda m: m["t"] == "beat")

    assert h.reporter.error_count == 0
    assert not agent.of("dump")


def test_an_unknown_keyword_is_an_error(agent: Agent) -> None:
    with pytest.raises(TypeError, match="stage"):
        start(agent, stage=1)
