"""What the agent's socket receives, and when it is looked into."""

import threading
import time
from pathlib import Path

import pytest

from tests.collectors.agent.test_agent import quiet_agent
from tests.collectors.peer import FakeHook, wait_until
from tocsin.collectors import hook
from tocsin.collectors.agent.datagram_socket import DatagramSocket, Received, Unread
from tocsin.collectors.clock import Now
from tocsin.collectors.transport.sink import MemorySink, Probe
from tocsin.schemas.records import CollectiveBatch, ProbeAnswer
from tocsin.schemas.wire.codec import decode

NOW = Now(1, 1, 1)
COMPACT, SPACED = b'{"v":1,"t":"%s","job":["c","j",0]}', b'{"v": 1, "t": "%s", "job": ["c", "j", 0]}'


def received(data: bytes) -> Received:
    return Received(data, 7, 0, not data)


@pytest.mark.parametrize("form", [COMPACT, SPACED])
def test_steps_and_beats_wait_and_come_in_their_order(form: bytes) -> None:
    unread = Unread()
    sent = [received(form % kind) for kind in (b"step", b"beat", b"step")]
    for one in sent:
        unread.put(one, NOW)

    assert not unread.is_urgent
    assert unread.take() == [(one, NOW) for one in sent]
    assert unread.take() == []


@pytest.mark.parametrize(
    "data",
    [
        *(COMPACT % kind for kind in (b"exit", b"nan", b"hello", b"phase", b"dump", b"bye", b"groups", b"stepper")),
        b'{"t":"step","v":1}',  # another order of keys: not known without reading it
        b'{"v":1,"t":"exit","job":["c","step",0]}',
        b"",  # too large
        b"no JSON",
        (COMPACT % b"step").ljust(1024 * 1024 + 1),
    ],
    ids=lambda data: data[:24].decode(),
)
def test_everything_else_is_for_now_with_what_came_before_it(data: bytes) -> None:
    unread = Unread()
    unread.put(received(COMPACT % b"step"), NOW)
    unread.put(received(data), NOW)

    assert unread.is_urgent
    assert [one.data for one, _ in unread.take()] == [COMPACT % b"step", data]
    assert not unread.is_urgent


def test_what_the_hook_sends_at_every_step_may_wait(tmp_path: Path) -> None:
    agent = DatagramSocket(str(tmp_path / "a"))
    unread = Unread()
    try:
        hook.init("job", 3, "east", agent_socket=str(tmp_path / "a"))
        wait_until(lambda: agent.receive() is not None)  # its hello
        while agent.receive() is not None:
            pass
        with hook.step():
            pass
        found: list[Received] = []

        def has_step() -> bool:
            found.extend(filter(None, [agent.receive()]))
            return bool(found) and b'"t":"step"' in found[-1].data  # the first step's stage may come before it

        wait_until(has_step)
    finally:
        hook.close()
        agent.close()
    unread.put(found[-1], NOW)

    assert not unread.is_urgent


def test_a_probe_finds_the_steps_that_were_not_read_yet(tmp_path: Path) -> None:
    sink = MemorySink()
    agent = quiet_agent(tmp_path, sink)
    thread = threading.Thread(target=agent.run)
    rank = FakeHook(tmp_path / "a")
    thread.start()
    try:
        rank.send("hello", pid=1, world_size=1)
        wait_until(lambda: agent.core.tally.datagrams["Hello"])
        now_ns = time.time_ns()
        rank.send("step", step=1, dur=0.1, coll=[["w", "all_reduce", 5, 8, now_ns, now_ns]])
        wait_until(lambda: len(agent.unread) or agent.core.tally.datagrams["StepDone"])
        sink.said.append(Probe("r", "ring", -1, None))
        wait_until(lambda: any(isinstance(record, ProbeAnswer) for record in sink.records))
    finally:
        agent.stop()
        thread.join(60)
        rank.close()
    [answer] = [record for record in sink.records if isinstance(record, ProbeAnswer)]
    ring = decode(answer.payload)

    assert isinstance(ring, CollectiveBatch)
    assert [row.op_seq for row in ring.rows] == [5]
