"""H2 and H3 at the listener: memory, descriptors, and turns of those who flood."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.attacks.registry import Outcome, attack
from tests.pipeline.runtime.embedded.listener.kit import (
    NOW,
    Listener,
    LiveJob,
    Visitor,
)
from tocsin.pipeline.lab.testing import FakeJob, JobShape
from tocsin.pipeline.runtime.embedded.listener.limits import ServerLimits
from tocsin.pipeline.runtime.embedded.listener.listener import ServerConfig
from tocsin.pipeline.runtime.embedded.observers import MAX_LATE_KEYS
from tocsin.schemas.errors import SchemaError
from tocsin.schemas.records import NS_PER_SECOND, Event, EventSource, Frame, JobKey, Severity
from tocsin.schemas.wire.codec import encode


def _event(job_id: str = "j", host: str = "n0", ts_ns: int = NOW, rank: int = 0) -> bytes:
    return encode(Event(JobKey("c", job_id), host, ts_ns, rank, EventSource.PROCESS, "hello", Severity.INFO))


@attack("H2", "unfinished messages")
def unfinished_messages() -> Outcome:
    """Many connections, each with a message that announces 15.9 MB and never ends."""
    limits = ServerLimits(inbox_bytes=8 << 20)
    listener = Listener(ServerConfig(limits))
    hostile = [listener.visitor(f"h{number}") for number in range(60)]
    for one in hostile:
        one.unsent += (15_900_000).to_bytes(4, "little") + b"T" * 500_000
    most = 0
    for _ in range(12):
        for one in hostile:
            one.send()
        listener.turns(1)
        most = max(most, listener.server.inbox_bytes)
    listener.seconds += 31
    listener.turns(2)
    left = listener.server.connection_count
    listener.close()
    effect = f"at most {most >> 20} MB held, {left} of {len(hostile)} connections left after 31 s"
    return Outcome(len(hostile), effect, most <= limits.inbox_bytes and left == 0)


@attack("H2", "questions whose answers nobody reads")
def deaf_clients() -> Outcome:
    """``clock`` with a t0 of a megabyte, and many small ones, never reading."""
    limits = ServerLimits(outbox_bytes=100_000)
    listener = Listener(ServerConfig(limits))
    loud, deaf = listener.visitor("loud"), listener.visitor("deaf")
    loud.send(json.dumps({"t": "clock", "t0": "x" * 1_000_000}).encode())
    most = 0
    for _ in range(200):
        deaf.send(*[b'{"t": "clock", "t0": 1}'] * 300)
        listener.turns(4)
        most = max(most, listener.server.largest_outbox_bytes)
        if listener.server.counters["closed_answers_unread"]:
            break
    held = loud.is_closed and deaf.is_closed and 0 < most <= limits.outbox_bytes
    listener.close()
    return Outcome(2, f"at most {most} bytes waited for a peer that does not read, then it was closed: {held}", held)


@attack("H2", "frames of days and late records of made-up hosts")
def held_bytes() -> Outcome:
    """Frames whose slice ends in days, frames that fill hours, late records of more hosts than are named."""
    listener = Listener()
    engine = listener.engine
    engine.tick(NOW)
    refused, tries = 0, 0
    for tick_seconds in (86_400, 3_600):
        for number in range(24):
            tick_ns = tick_seconds * NS_PER_SECOND
            frame = Frame(JobKey("c", "j"), "evil", NOW + number, 1, NOW, tick_ns, 1, (), b"", bytes(4_000_000))
            tries += 1
            try:
                engine.take_record(frame, b"%d" % number + frame.host_matrix)
            except SchemaError:
                refused += 1
    late = Event(JobKey("c", "old"), "", NOW - 3600 * NS_PER_SECOND, 0, EventSource.PROCESS, "x", Severity.INFO)
    for number in range(MAX_LATE_KEYS + 5_000):
        engine.take_record(replace(late, host=f"made-up-{number}"), b"late")
    named, held = len(engine.late_by_host), engine.held_bytes
    listener.close()
    effect = f"{refused} of {tries} frames refused, {held >> 20} MB held, {named} hosts counted by name"
    return Outcome(tries + MAX_LATE_KEYS + 5_000, effect, named <= MAX_LATE_KEYS and held <= 48 << 20 and refused >= 36)


@attack("H2", "descriptors")
def descriptors() -> Outcome:
    """More silent connections than there are descriptors: those who signed in stay, accept does not spin."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    listener = Listener(ServerConfig(ServerLimits(address_connection_count=10_000)))
    agent = listener.visitor("n0")
    listener.turns(2)
    silent: list[Visitor] = []
    try:
        for _ in range(_ROUND_COUNT):
            silent += [listener.visitor() for _ in range(_WAITING_COUNT)]  # they wait to be accepted
            open_now = len(list(Path("/proc/self/fd").iterdir()))
            resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + _WAITING_COUNT // 4, before[1]))
            listener.turns(_WAITING_COUNT)
            agent.send(_event())
            listener.turns(2)
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        failures = listener.server.counters["accept_failures"]
        held = not agent.is_closed and 0 < failures <= len(silent) and bool(listener.engine.known_jobs())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for one in silent:
            one.socket.close()
        listener.close()
    return Outcome(len(silent), f"{failures} failed accepts, the agent stayed and was heard: {held}", held)


_ROUND_COUNT, _WAITING_COUNT = 3, 60
TURNS_A_SECOND = 2


def _killed_under(flood: Callable[[int], list[bytes]] | None) -> tuple[list[tuple[str, ...]], int, int]:
    """A rank dies in a job of four hosts while another peer floods; verdict lines, most messages a turn, jobs."""
    listener = Listener()
    job = FakeJob(JobShape(rank_count=4, start_ns=NOW))
    live = LiveJob(listener, job)
    hostile = listener.visitor("evil") if flood else None
    for second in range(22):
        if second == 16:
            job.kill(2)
        if hostile is not None and flood is not None:
            if len(hostile.unsent) < 60_000:
                hostile.send(*flood(second))
            hostile.drain()
        live.second(TURNS_A_SECOND)
    lines = [
        (line.state.value, line.fault.value, line.cause, *(s.component.name for s in line.suspects))
        for line in live.verdicts
        if line.job == job.job
    ]
    jobs = len(listener.engine.known_jobs())
    listener.close()
    return lines, listener.most_a_turn, jobs


def _flood(name: str, make: Callable[[int], list[bytes]]) -> None:
    def run() -> Outcome:
        wanted, found = _killed_under(None), _killed_under(make)
        held = found[0] == wanted[0] != [] and found[1] <= 5 * ServerLimits().turn_message_count and found[2] <= 70
        return Outcome(22 * len(make(0)), f"{found[0][:1]}, {found[1]} messages a turn, {found[2]} jobs known", held)

    run.__doc__ = f"The killed rank of a live job is named as without {name}."
    attack("H3", f"{name} in turns")(run)


_flood("late records", lambda second: [_event("old", "evil", NOW - 3600 * NS_PER_SECOND + at) for at in range(400)])
_flood("garbage", lambda second: [b"garbage %d %d" % (second, at) for at in range(400)])
_flood("made-up jobs", lambda second: [_event(f"j{second}-{at}", "evil", _at(second, at)) for at in range(400)])
_flood("made-up hosts", lambda second: [_event("job", f"h{second}-{at}", _at(second, at)) for at in range(400)])


def _at(second: int, number: int) -> int:
    return NOW + second * NS_PER_SECOND + number
