"""The sink against a small engine."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.collectors.peer import EnginePeer, wait_until
from tocsin.collectors.clock import SteadyClock, SystemClock
from tocsin.collectors.transport.outbox import SinkConfig
from tocsin.collectors.transport.sink import Probe, Refused
from tocsin.collectors.transport.socket_sink import SocketSink
from tocsin.collectors.transport.spool import DiskSpool, MemorySpool
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.records import Event, EventSource, JobKey, Severity, Tick

Start = Callable[[], SocketSink]


def event(number: int) -> Event:
    return Event(JobKey("c", "j"), "h", time.time_ns(), -1, EventSource.JOB, "bye", Severity.INFO, {"n": number})


def numbers(peer: EnginePeer) -> list[int]:
    return [found.payload["n"] for found in peer.of(Event)]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Callable[[], EnginePeer]]:
    peers = []

    def start(controls: Callable[[EnginePeer], list[dict[str, object]]] = lambda _: []) -> EnginePeer:
        peers.append(EnginePeer(tmp_path / "engine", controls=controls))
        return peers[-1]

    yield start
    for peer in peers:
        if not peer.is_closed:
            peer.close()


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[Start]:
    sinks = []

    def start() -> SocketSink:
        spool = DiskSpool(str(tmp_path / "spool"), 1 << 20)
        config = SinkConfig(f"unix:{tmp_path}/engine", "h", "1")
        sinks.append(SocketSink(config, spool, SteadyClock(SystemClock()), lambda: None))
        sinks[-1].start()
        return sinks[-1]

    yield start
    for one in sinks:
        one.close(0.5)


def test_it_says_who_it_is_compares_the_clocks_and_delivers(engine: Callable[[], EnginePeer], sink: Start) -> None:
    peer = engine()
    peer.offset_ns = 3_000_000_000
    one = sink()
    for number in range(20):
        one.put(event(number))
    wait_until(lambda: one.status().acked_count == 20)

    assert numbers(peer) == list(range(20))
    assert peer.controls[0] == {"t": "hello", "host": "h", "agent_version": "1"}
    offset = one.status().offset
    assert offset.is_known
    assert offset.offset_ns == pytest.approx(3e9, abs=offset.error_ns + 1e6)
    assert one.status().is_connected
    assert one.status().spooled_count == 0


def test_what_came_while_the_engine_was_away_comes_first_and_in_order(
    engine: Callable[[], EnginePeer], sink: Start
) -> None:
    one = sink()
    for number in range(10):
        one.put(event(number))
    wait_until(lambda: one.status().spooled_count == 10)
    peer = engine()
    for number in range(10, 20):
        one.put(event(number))
    wait_until(lambda: one.status().acked_count == 20)

    assert numbers(peer) == list(range(20))
    wait_until(lambda: one.status().spooled_count == 0)


def test_what_was_not_acknowledged_is_sent_again(engine: Callable[[], EnginePeer], sink: Start) -> None:
    peer = engine()
    peer.acks = False
    one = sink()
    for number in range(5):
        one.put(event(number))
    wait_until(lambda: len(peer.frames) == 5)
    peer.acks = True
    peer.hang_up()
    one.put(event(5))
    wait_until(lambda: one.status().acked_count == 6)

    assert numbers(peer) == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5]
    assert peer.frames[:5] == peer.frames[5:10]  # exact duplicates: the engine knows them by their bytes
    assert one.status().reconnect_count == 2


def test_the_spool_outlives_the_agent(engine: Callable[[], EnginePeer], sink: Start) -> None:
    first = sink()
    for number in range(7):
        first.put(event(number))
    first.close(0.2)
    peer = engine()
    second = sink()
    second.put(event(7))
    wait_until(lambda: second.status().acked_count == 8)

    assert numbers(peer) == list(range(8))


def test_closing_sends_what_waits(engine: Callable[[], EnginePeer], sink: Start) -> None:
    peer = engine()
    one = sink()
    wait_until(lambda: one.status().is_connected)
    for number in range(300):
        one.put(event(number))
    one.close(60.0)

    assert numbers(peer) == list(range(300))


def test_refusals_and_probes_reach_the_agent(engine: Callable[[], EnginePeer], sink: Start) -> None:
    peer = engine()
    peer.refuse = lambda _: {"reason": "clock_ahead", "message": "too new", "ahead_ns": 5}
    one = sink()
    one.put(event(0))
    wait_until(lambda: one.status().acked_count == 1)
    peer.say({"t": "probe", "request_id": "r1", "probe": "ring", "rank": 3})
    heard: list[Refused | Probe] = []

    def heard_both() -> bool:
        heard.extend(one.poll())
        return len(heard) == 2

    wait_until(heard_both)

    assert heard == [Refused("clock_ahead", 5), Probe("r1", "ring", 3, None)]
    # the second question is on its way when the refusal is heard
    wait_until(lambda: [control["t"] for control in peer.controls].count("clock") >= 2)
    assert [control["t"] for control in peer.controls].count("clock") == 2


def test_it_says_once_a_connection_that_what_was_kept_is_sent(engine: Callable[..., EnginePeer], sink: Start) -> None:
    one = sink()
    for number in range(40):
        one.put(event(number))
    wait_until(lambda: one.status().spooled_count == 40)
    taken: list[int] = []
    # from its first message on: the sink waits for it, and speaks at once
    peer = engine(lambda peer: _Watched(lambda said: taken.append(len(peer.frames)) if said["t"] == "live" else None))
    wait_until(lambda: bool(taken))
    one.put(event(40))
    wait_until(lambda: len(numbers(peer)) == 41)

    assert taken == [40], "all that it kept came before, nothing is said twice"


class _Watched(list[dict[str, object]]):
    """A list that says what is added."""

    def __init__(self, reported: Callable[[dict[str, object]], None]) -> None:
        super().__init__()
        self._reported = reported

    def append(self, control: dict[str, object]) -> None:
        self._reported(control)
        super().append(control)


@pytest.mark.parametrize(
    "nonsense",
    [b"\xff\xff\xff\xff", b"\x02\x00\x00\x00{]", b'\x0a\x00\x00\x00{"t":"ack"', b"\x02\x00\x00\x00{}"],
)
def test_an_engine_that_talks_nonsense_is_left_and_tried_again(
    engine: Callable[[], EnginePeer], sink: Start, nonsense: bytes
) -> None:
    peer = engine()
    one = sink()
    wait_until(lambda: one.status().is_connected)
    peer.say_bytes(nonsense + b'{"t":"ack","count":99}' * 2)
    one.put(event(0))
    wait_until(lambda: one.status().reconnect_count >= 2)
    wait_until(lambda: one.status().acked_count == 1)

    assert numbers(peer)[-1] == 0


def test_a_record_that_cannot_be_encoded_is_counted_and_the_rest_goes_on(
    engine: Callable[[], EnginePeer], sink: Start
) -> None:
    peer = engine()
    one = sink()
    one.put(Tick(-1))
    one.put(event(1))
    wait_until(lambda: one.status().acked_count == 1)

    assert numbers(peer) == [1]
    assert (one.status().unencodable_count, one.status().dropped_count) == (1, 0)


def test_an_engine_that_takes_nothing_does_not_block_the_agent(engine: Callable[[], EnginePeer], sink: Start) -> None:
    peer, gate = engine(), threading.Event()
    peer.refuse = lambda _: None if gate.wait() else {}
    one = sink()
    for number in range(3000):
        one.put(event(number))  # would wait for good

    gate.set()


BAD_MESSAGES: list[object] = [
    {},
    [],
    {"t": 5},
    {"t": "ack"},
    {"t": "ack", "count": "1"},
    {"t": "ack", "count": True},
    {"t": "ack", "count": -1},
    {"t": "clock", "t0": None, "engine_ns": 1},
    {"t": "clock", "t0": 1, "engine_ns": 10**40},
    {"t": "welcome", "engine_ns": "now"},
    {"t": "probe", "rank": "all"},
    {"t": "probe", "rank": 10**20},
    {"t": "probe", "rank": 1, "request_id": ["r"], "probe": "ring"},
    {"t": "probe", "rank": 1, "request_id": "r", "probe": "ring", "job": ["c", "j", "x"]},
    {"t": "probe", "rank": 1, "request_id": "r", "probe": "ring", "job": "c"},
]


def test_messages_of_the_engine_that_make_no_sense_are_counted_and_the_rest_goes_on(
    engine: Callable[[], EnginePeer], sink: Start
) -> None:
    peer = engine()
    one = sink()
    wait_until(lambda: one.status().is_connected)
    for message in BAD_MESSAGES:
        peer.say(message)  # type: ignore[arg-type]
    peer.say_bytes(b"\x02\x00\x00\x00{]")
    peer.say({"t": "refused", "reason": ["x"], "message": 5, "ahead_ns": "y"})
    peer.say({"t": "song"})
    one.put(event(0))
    wait_until(lambda: one.status().acked_count == 1)

    assert numbers(peer) == [0]
    assert one.status().bad_message_count == len(BAD_MESSAGES) + 1
    assert (one.status().reconnect_count, one.is_alive()) == (1, True)
    assert one.poll() == [Refused("['x']", 0)]


def test_what_was_damaged_on_disk_is_told_as_lost(
    engine: Callable[[], EnginePeer], sink: Start, tmp_path: Path
) -> None:
    first = sink()
    for number in range(2):
        first.put(event(number))
    first.close(0.2)
    path = next(path for path in sorted((tmp_path / "spool").glob("*.spool")) if path.stat().st_size)
    path.write_bytes(path.read_bytes()[:-3])
    peer = engine()
    second = sink()
    wait_until(lambda: second.status().acked_count == 1)

    assert numbers(peer) == [0]
    assert second.status().dropped_count == 1


def test_a_name_that_no_resolver_takes_does_not_end_the_sink() -> None:
    config = SinkConfig(f"{'x' * 70}..b:80", "h")
    one = SocketSink(config, MemorySpool(1 << 20), SteadyClock(SystemClock()), lambda: None)
    one.start()
    one.put(event(0))
    wait_until(lambda: one.status().spooled_count == 1)

    assert one.is_alive()
    one.close(0.1)


@pytest.mark.parametrize(
    "address",
    ["", "unix:", "nowhere", ":80", "host:port", "host:0", "host:65536", "host:-1", "host:\u00b2", "h:" + "9" * 5000],
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="engine"):
        SocketSink(SinkConfig(address, "h"), MemorySpool(1), SteadyClock(SystemClock()), lambda: None)
