"""The agent's core on a fake clock, for its tests."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.collectors.peer import datagram
from tocsin.collectors.agent.core import AgentCore, CoreConfig
from tocsin.collectors.agent.job_state import HostPlace
from tocsin.collectors.agent.metric_slices import Surroundings
from tocsin.collectors.clock import FakeClock, SteadyClock
from tocsin.collectors.owners import Life, LocalSender, Sight
from tocsin.schemas.records import (
    Event,
    JobKey,
    Record,
)
from tocsin.schemas.wire.codec import decode, encode

T0 = 1_700_000_000
S = 1_000_000_000
JOB = ("c", "j", 0)
USER = 1000


class FakeWatcher:
    """Processes as a test says: all run, and are nobody's children."""

    def __init__(self) -> None:
        self.watched: dict[tuple[JobKey, int], int] = {}
        self.starts: dict[int, int] = {}
        self.parents: dict[int, int] = {}
        self.gone: set[int] = set()
        self.hidden: set[int] = set()

    def look(self, pid: int) -> Sight:
        if pid in self.gone:
            return Sight(Life.GONE)
        if not pid or pid in self.hidden:
            return Sight(Life.HIDDEN)
        return Sight(Life.RUNS, self.starts.get(pid, 10 * pid), self.parents.get(pid, 0))

    def watch(self, job: JobKey, rank: int, pid: int) -> None:
        self.watched[job, rank] = pid

    def settle(self, job: JobKey, rank: int) -> None:
        self.watched.pop((job, rank), None)

    def state(self, job: JobKey, rank: int) -> str:
        return "S"


class Bench:
    """A core on a host of its own; ``at`` moves its clock and collects what it gives."""

    def __init__(self, host: str = "h", minipod: str = "") -> None:
        self.fake = FakeClock(wall_ns=T0 * S)
        self.clock = SteadyClock(self.fake)
        self.watcher = FakeWatcher()
        now, _ = self.clock.read()
        self.core = AgentCore(
            CoreConfig(HostPlace(host, minipod=minipod), "c", pass_on_spread=False), self.watcher, now
        )
        self.records: list[Record] = []
        self.sender = LocalSender(77, USER)

    @property
    def ts(self) -> int:
        return self.fake.wall_ns()

    def hook(self, kind: str, rank: int = 0, job: tuple[str, str, int] = JOB, **keys: Any) -> None:
        keys.setdefault("ts", self.ts)
        self.core.on_datagram(datagram(kind, rank, job, **keys), self.sender, self.clock.read()[0])

    @contextmanager
    def spoken_by(self, pid: int, uid: int = USER) -> Iterator[None]:
        """What hooks say meanwhile comes from this process."""
        before, self.sender = self.sender, LocalSender(pid, uid)
        yield
        self.sender = before

    def hello(self, rank: int = 0, job: tuple[str, str, int] = JOB, **keys: Any) -> None:
        self.hook("hello", rank, job, **{"pid": 7, "world_size": 8, **keys})

    def step(self, number: int, rank: int = 0, **keys: Any) -> None:
        self.hook("step", rank, **{"step": number, "dur": 0.2, **keys})

    def beat(self, step: int, phase: str = "forward", since: float = 0.0, **keys: Any) -> None:
        self.hook("beat", step=step, phase=phase, step_ns=self.ts - round(since * S), **keys)

    def runs(self, seconds: float, tick: float = 0.25) -> list[Record]:
        """Let time pass; return what came."""
        found: list[Record] = []
        for _ in range(round(seconds / tick)):
            self.fake.advance(tick)
            self.core.on_time(self.clock.read()[0], Surroundings)
            found += self.take()
        return found

    def trains(self, seconds: float, first: int = 0, step_seconds: float = 0.5, **keys: Any) -> list[Record]:
        """Let rank 0 train for so long."""
        found: list[Record] = []
        for number in range(round(seconds / step_seconds)):
            found += self.runs(step_seconds, step_seconds / 2)
            self.step(first + number, dur=step_seconds, **keys)
        return found + self.take()

    def take(self) -> list[Record]:
        found = self.core.take()
        for record in found:
            assert decode(encode(record), now_ns=self.ts) == record  # whatever leaves can be read
        self.records += found
        return found


def of(records: Iterable[Record], kind: type[Any]) -> list[Any]:
    return [record for record in records if isinstance(record, kind)]


def names(records: Iterable[Record]) -> list[str]:
    return [record.name for record in of(records, Event)]


def events(records: Iterable[Record], name: str) -> list[Event]:
    return [record for record in of(records, Event) if record.name == name]
