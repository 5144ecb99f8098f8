"""What peers may use of the listener: descriptors, bytes, time, and what they may make the engine remember."""

from __future__ import annotations

import errno
import json
import logging
import socket
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.pipeline.runtime.embedded.listener.kit import (
    NOW,
    Listener,
    LiveJob,
    framed,
)
from tocsin.pipeline.lab.testing import FakeJob, JobShape
from tocsin.pipeline.runtime.embedded.listener.connection import Connection
from tocsin.pipeline.runtime.embedded.listener.connection_book import ConnectionBook
from tocsin.pipeline.runtime.embedded.listener.limits import Quota, ServerLimits
from tocsin.pipeline.runtime.embedded.listener.listener import ServerConfig
from tocsin.pipeline.runtime.embedded.listener.peer_limits import Intake, IntakeLimits
from tocsin.schemas.errors import TooManyError
from tocsin.schemas.records import NS_PER_SECOND, Event, EventSource, JobKey, Severity
from tocsin.schemas.wire.codec import encode


def event(job_id: str = "j", host: str = "n0", ts_ns: int = NOW, attempt: int = 0, rank: int = 0) -> bytes:
    record = Event(JobKey("c", job_id, attempt), host, ts_ns, rank, EventSource.PROCESS, "hello", Severity.INFO)
    return encode(record)


def _record(host: str) -> Event:
    return Event(JobKey("c", "j"), host, NOW, 0, EventSource.PROCESS, "hello", Severity.INFO)


@pytest.fixture
def listener() -> Iterator[Listener]:
    limits = ServerLimits(
        address_connection_count=5, principal_connection_count=2, inbox_bytes=1_000_000, outbox_bytes=50_000
    )
    intake = IntakeLimits(peer_host_count=3, host_job_count=4, job_attempt_count=3, host_rank_count=6, job_count=20)
    made = Listener(ServerConfig(limits, intake))
    yield made
    made.close()


def reasons(listener: Listener) -> list[str]:
    return [dead_letter.reason for kind, dead_letter in listener.dead_letters if kind == "dead-letters"]


def test_unsigned_connections_of_one_address_are_bounded_and_the_oldest_goes(listener: Listener) -> None:
    silent = [listener.visitor() for _ in range(9)]
    listener.turns(3)

    assert [one.is_closed for one in silent] == [True] * 4 + [False] * 5
    assert listener.server.counters["closed_too_many_connections"] == 4


def test_a_fleet_behind_one_address_is_not_bounded_once_it_has_signed_in(listener: Listener) -> None:
    agents = []
    for number in range(30):
        agents.append(listener.visitor(f"n{number}"))
        listener.turns(2)

    assert not any(agent.is_closed for agent in agents)
    assert len(listener.server.connected_hosts) == 30


def test_of_one_peer_s_connections_the_newest_stay(listener: Listener) -> None:
    agents = []
    for _ in range(3):
        agents.append(listener.visitor("n0"))
        listener.turns(2)

    assert [agent.is_closed for agent in agents] == [True, False, False]


def test_who_does_not_sign_in_is_closed(listener: Listener) -> None:
    silent, agent = listener.visitor(), listener.visitor("n0")
    listener.turns(2)
    listener.seconds += 31
    listener.turns(1)

    assert silent.is_closed
    assert not agent.is_closed


def test_a_message_has_thirty_seconds_to_be_complete(listener: Listener) -> None:
    slow, agent = listener.visitor("slow"), listener.visitor("n0")
    slow.socket.sendall((5000).to_bytes(4, "little") + b"TC")
    listener.turns(3)
    for _ in range(4):  # a byte now and then is no progress
        listener.seconds += 8
        slow.socket.sendall(b"x")
        agent.send(event())
        listener.turns(2)

    assert slow.is_closed
    assert not agent.is_closed
    assert listener.server.counters["closed_message_unfinished"] == 1


def test_all_inboxes_together_are_bounded_and_the_largest_goes(listener: Listener) -> None:
    agent = listener.visitor("n0")
    agent.socket.sendall(framed(event())[:-1])
    hostile = [listener.visitor(f"h{number}") for number in range(4)]
    for one in hostile:
        one.unsent += (15_900_000).to_bytes(4, "little") + b"T" * 400_000
    most = 0
    for _ in range(40):
        for one in hostile:
            one.send()
        listener.turns(1)
        most = max(most, listener.server.inbox_bytes)

    assert most <= 1_000_000
    assert listener.server.counters["closed_inboxes_full"] >= 2
    assert not agent.is_closed


def test_who_asks_and_never_reads_is_closed(listener: Listener) -> None:
    deaf = listener.visitor("deaf")
    question = json.dumps({"t": "clock", "t0": 1}).encode()
    for _ in range(200):
        deaf.send(*[question] * 200)
        listener.turns(4)
        if listener.server.counters["closed_answers_unread"]:
            break

    assert listener.server.counters["closed_answers_unread"] == 1


@pytest.mark.parametrize(
    "message",
    [{"t": "clock", "t0": "x" * 2000}, {"t": "clock", "t0": 1 << 64}, {"t": "clock", "t0": True}, {"t": "clock"}],
)
def test_control_messages_are_checked(listener: Listener, message: dict[str, object]) -> None:
    visitor = listener.visitor("n0")
    visitor.send(json.dumps(message).encode(), event())
    listener.turns(3)

    assert reasons(listener) == ["bad_control"]
    assert visitor.answers()[-1] == {"t": "ack", "count": 1}
    assert len(listener.dead_letters[0][1].message) <= 500


@pytest.mark.parametrize("host", [7, "a\x1b[2J", "x" * 2000])
def test_who_has_no_name_is_not_let_in(listener: Listener, host: object) -> None:
    visitor = listener.visitor()
    visitor.send(json.dumps({"t": "hello", "host": host}).encode(), event())
    listener.turns(3)

    assert reasons(listener) == ["bad_hello"]
    assert visitor.is_closed
    assert len(listener.dead_letters[0][1].message) <= 500


def test_a_connection_stays_with_the_host_of_its_hello(listener: Listener) -> None:
    visitor = listener.visitor("n0")
    visitor.send(b'{"t": "hello", "host": "n1"}', b'{"t": "hello", "host": "n0"}')
    listener.turns(3)

    assert listener.server.connected_hosts == ("n0",)
    assert reasons(listener) == ["bad_control"] * 2  # hello is said once


def test_a_control_message_of_a_megabyte_closes_its_connection_unread(
    listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    visitor = listener.visitor()
    visitor.send(json.dumps({"t": "hello", "host": "x" * 1_000_000}).encode())
    with caplog.at_level(logging.INFO, "tocsin.server"):
        listener.turns(3)

    assert visitor.is_closed
    assert reasons(listener) == ["too_large"]
    assert max(len(str(vars(record))) for record in caplog.records) < 3000


def test_accepting_without_descriptors_pauses_and_goes_on(
    listener: Listener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = []

    def accept(_: socket.socket) -> tuple[socket.socket, object]:
        calls.append(1)
        raise OSError(errno.EMFILE, "Too many open files")

    visitor = listener.visitor("n0")
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "tocsin.server"):
        patch.setattr(socket.socket, "accept", accept)
        listener.turns(500)
    assert len(calls) == 1
    assert sum("accept failed" in record.message for record in caplog.records) == 1
    listener.seconds += 2
    listener.turns(4)

    assert [answer["t"] for answer in visitor.answers()] == ["challenge", "welcome"]


def test_one_host_speaks_of_so_many_jobs(listener: Listener) -> None:
    visitor = listener.visitor("n0")
    visitor.send(*[event(f"made-up-{number}") for number in range(50)])
    listener.turns(3)

    assert len(listener.engine.known_jobs()) == 4
    assert set(reasons(listener)) == {"too_many_jobs"}
    assert visitor.answers()[-1] == {"t": "ack", "count": 50}


def test_one_peer_speaks_for_its_host_and_so_many_ranks(listener: Listener) -> None:
    visitor = listener.visitor("n0")
    visitor.send(*[event(host=f"made-up-{number}") for number in range(10)])
    visitor.send(*[event(rank=number) for number in range(10)])
    listener.turns(3)

    assert reasons(listener) == ["record_host_mismatch"] * 10 + ["too_many_ranks"] * 4


def test_one_peer_s_hosts_are_bounded() -> None:
    """Where a peer may speak for several at all."""
    intake = Intake(IntakeLimits(peer_host_count=3))
    for number in range(3):
        intake.check("p", _record(f"n{number}"), 0.0)
    with pytest.raises(TooManyError) as raised:
        intake.check("p", _record("n3"), 0.0)
    assert raised.value.reason == "too_many_hosts"
    intake.check("other", _record("n3"), 0.0)


def test_a_job_keeps_its_newest_attempts(listener: Listener) -> None:
    """A job that crashes again and again is heard; what its first attempts held is forgotten."""
    visitor = listener.visitor("n0")
    visitor.send(*[event(attempt=number, ts_ns=NOW + number) for number in range(10)])
    visitor.send(event(attempt=3))
    listener.turns(3)

    assert sorted(job.attempt for job in listener.engine.known_jobs()) == [7, 8, 9]
    assert reasons(listener) == ["too_many_attempts"]


def test_a_stranger_s_attempts_do_not_make_a_live_job_s_attempt_go() -> None:
    """One peer makes up 32 newer attempts of somebody else's job: the live one is heard, and its fault is found."""
    listener = Listener()
    job = FakeJob(JobShape(rank_count=6, start_ns=NOW))
    live = LiveJob(listener, job)
    stranger = listener.visitor("evil")
    for second in range(30):
        if second == 10:
            made_up = [JobKey(job.job.cluster, job.job.job_id, number) for number in range(1, 33)]
            rows = [(key, "evil", job.now_ns, 0, EventSource.PROCESS, "hello", Severity.INFO) for key in made_up]
            stranger.send(*[encode(Event(*row)) for row in rows])
        if second == 18:
            job.kill(3)
        live.second(20)
    known = listener.engine.known_jobs()
    listener.close()

    assert job.job in known
    assert len(known) <= 1 + IntakeLimits().job_attempt_count
    assert [verdict.fault.value for verdict in live.verdicts if verdict.job == job.job][:1] == ["fail_stop"]
    assert not {dead_letter.host for kind, dead_letter in listener.dead_letters if kind == "dead-letters"} - {"evil"}


def _attempts(*numbers: int, host: str = "n0") -> list[Event]:
    keys = [JobKey("c", "j", number) for number in numbers]
    return [Event(key, host, NOW, 0, EventSource.PROCESS, "hello", Severity.INFO) for key in keys]


def test_an_attempt_of_which_two_peers_speak_counts_for_the_other_and_stays() -> None:
    dropped: list[JobKey] = []
    intake = Intake(IntakeLimits(job_attempt_count=2), forget=dropped.append)
    intake.check("one", _attempts(0)[0], 0.0)
    for record in _attempts(0, 1, 2, 3, host="n1"):
        intake.check("other", record, 1.0)

    assert [job.attempt for job in dropped] == [1]


def test_an_attempt_with_an_open_verdict_does_not_go_and_the_new_one_is_refused() -> None:
    dropped: list[JobKey] = []
    intake = Intake(IntakeLimits(job_attempt_count=2), lambda job: job.attempt < 2, dropped.append)
    for record in _attempts(0, 1):
        intake.check("one", record, 0.0)
    with pytest.raises(TooManyError) as raised:
        intake.check("one", _attempts(2)[0], 1.0)

    assert raised.value.reason == "too_many_attempts"
    assert dropped == []


def test_an_attempt_that_was_taken_up_from_the_state_goes_for_nobody_until_its_peers_are_back() -> None:
    dropped: list[JobKey] = []
    intake = Intake(IntakeLimits(job_attempt_count=2), forget=dropped.append)
    intake.begin([JobKey("c", "j", 0)], 0.0)
    for record in _attempts(0, 1, 2, 3):
        intake.check("evil", record, 1.0)
    assert [job.attempt for job in dropped] == [1]


def test_what_is_held_counts_for_its_peer_after_it_fell_silent() -> None:
    """Else one peer could fill the engine's room with open verdicts, one share after the other."""
    intake = Intake(IntakeLimits(job_attempt_count=2), lambda _job: True)
    jobs = [record.job for record in _attempts(0, 1)]
    for record in _attempts(0, 1):
        intake.check("one", record, 0.0)
    intake.forget_old(jobs, 1000.0)
    with pytest.raises(TooManyError):
        intake.check("one", _attempts(2)[0], 1000.0)
    intake.forget_old([], 2000.0)
    intake.check("one", _attempts(2)[0], 2000.0)


def test_one_peer_never_owns_the_room_for_jobs() -> None:
    """64 jobs of 32 attempts each: another's job begins all the same, and the peer's own quiet ones make room."""
    bounds = IntakeLimits()
    intake = Intake(bounds)
    refused: Counter[str] = Counter()
    for at in range(64 * 32):
        key = JobKey("c", f"mine{at % 64}", at // 64)
        try:
            intake.check("evil", Event(key, "n0", NOW, 0, EventSource.PROCESS, "hello", Severity.INFO), 0.0)
        except TooManyError as error:
            refused[error.reason] += 1
    assert refused == {"too_many_attempts": 64 * 32 - bounds.peer_attempt_count}
    assert 10 * bounds.peer_attempt_count < bounds.job_count
    intake.check("other", _record("n1"), 0.0)
    new = Event(JobKey("c", "mine0", 99), "n0", NOW, 0, EventSource.PROCESS, "hello", Severity.INFO)
    intake.check("evil", new, bounds.quiet_seconds + 1)


def test_jobs_in_all_are_bounded_and_quiet_ones_make_room(listener: Listener) -> None:
    for number in range(8):
        visitor = listener.visitor(f"h{number}")
        visitor.send(*[event(f"j{number}-{at}", f"h{number}") for at in range(4)])
        listener.turns(3)
    assert len(listener.engine.known_jobs()) == 20
    assert reasons(listener) == ["too_many_jobs_in_all"] * 12
    listener.seconds += 61
    late = listener.visitor("late")
    late.send(event("real", "late"))
    listener.turns(3)

    assert len(listener.engine.known_jobs()) == 20
    assert JobKey("c", "real", 0) in listener.engine.known_jobs()


def test_the_book_drops_who_has_not_signed_in_when_all_room_is_taken() -> None:
    book = ConnectionBook(ServerLimits(connection_count=16))
    pairs = [socket.socketpair() for _ in range(18)]
    agents = [Connection(pair[0], f"10.0.0.{number}") for number, pair in enumerate(pairs)]
    for agent in agents[:15]:
        assert book.add(agent) is None
        book.sign_in(agent, agent.address)
    assert book.add(agents[15]) is None
    assert book.add(agents[16]) is agents[15]
    for pair in pairs:
        for end in pair:
            end.close()


def test_a_share_is_so_many_messages_and_bytes_and_a_long_message_is_paid_for_later() -> None:
    quota = Quota(ServerLimits(turn_message_count=2, turn_bytes=100))
    turns: list[int] = []
    for _ in range(8):
        quota.next_turn()
        taken = 0
        while quota.has_left("a") and taken < 10:
            quota.spend("a", 350 if not turns else 1)
            taken += 1
        turns.append(taken)

    assert turns == [1, 0, 0, 2, 2, 2, 2, 2]
    assert quota.has_left("b")


TURNS_A_SECOND = 4


def _run(*floods: list[bytes]) -> tuple[list[tuple[str, ...]], int, int]:
    """A rank dies in a job of six hosts while others flood: verdict lines, late records, most messages of a turn."""
    listener = Listener()
    job = FakeJob(JobShape(rank_count=6, start_ns=NOW))
    live = LiveJob(listener, job)
    hostile = [listener.visitor(f"evil{number}") for number, _ in enumerate(floods)]
    for second in range(24):
        if second == 18:
            job.kill(3)
        for visitor, flood in zip(hostile, floods, strict=True):
            visitor.send(*([] if len(visitor.unsent) > 1_000_000 else flood))
            visitor.drain()
        live.second(TURNS_A_SECOND)
    lines = [
        (line.state.value, line.fault.value, line.cause, *(s.component.name for s in line.suspects))
        for line in live.verdicts
        if line.job == job.job
    ]
    late = sum(count for (owner, _), count in listener.engine.late_by_host.items() if owner == job.job)
    backlog = sum(len(visitor.unsent) for visitor in hostile)
    listener.close()
    assert backlog or not floods, "no flood: the turns could take it all"
    return lines, late, listener.most_a_turn


def test_a_flood_changes_nothing_of_a_live_job_s_verdict() -> None:
    """Late records, garbage, made-up jobs and hosts, each more than the turns can take: counted in turns, not time."""
    undisturbed = _run()
    late = [event("old", "evil0", NOW - 3600 * NS_PER_SECOND + at) for at in range(3000)]
    garbage = [b"garbage %d" % at for at in range(3000)]
    jobs = [event(f"made-up-{at}", "evil2", NOW + at) for at in range(3000)]
    hosts = [event("job", f"made-up-{at}", NOW + at) for at in range(3000)]

    flooded = _run(late, garbage, jobs, hosts)

    assert undisturbed[0][0][:2] == ("open", "fail_stop")
    assert flooded[:2] == undisturbed[:2]
    assert flooded[2] <= ServerLimits().turn_message_count * (6 + 4)


def test_nothing_is_acknowledged_before_it_is_kept(listener: Listener) -> None:
    """The disk refuses for a while: the record was taken, and is told of when it can be kept."""
    is_kept = False
    listener.server.commit = lambda: is_kept
    visitor = listener.visitor("n0")
    visitor.send(event())
    listener.turns(3)
    before = [answer["t"] for answer in visitor.answers()]
    is_kept = True
    listener.seconds += 1.1
    listener.turns(2)

    assert listener.engine.counters["records_ok"] == 1
    assert before[-1] == "welcome"
    assert [answer["t"] for answer in visitor.answers()] == [*before, "ack"]


def test_who_has_sent_what_it_kept_is_live(listener: Listener) -> None:
    visitor = listener.visitor("n0")
    listener.turns(2)
    assert listener.server.live_hosts == frozenset()
    visitor.send(b'{"t": "live"}')
    listener.turns(2)
    assert listener.server.live_hosts == {"n0"}
