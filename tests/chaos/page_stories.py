"""What people are told of in a round that counts pages: verdicts that come and go, and hosts that lose a GPU."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from tests.pipeline.stores.samples import verdict
from tocsin.schemas import events
from tocsin.schemas.records import (
    IDLE_JOB_ID,
    NS_PER_SECOND,
    Event,
    EventSource,
    HostStatus,
    JobKey,
    Record,
    Severity,
    Tick,
)
from tocsin.schemas.verdicts import Verdict, VerdictState

_CAUSES: Final = ("process_frozen", "process_exit", "ecc_error", "nic_dropout")
_LATER_CAUSE: Final = "gpu_card_drop"
_SECONDS_APART: Final = 4


@dataclass(frozen=True)
class VerdictStory:
    """A verdict that is confirmed, perhaps changes its cause, and perhaps ends.

    Attributes:
        name: its id.
        begin_ns: when it is confirmed.
        changes_after_seconds: until its cause changes, since its beginning, None = it stays.
        end: how it ends, None = it stands.
        ends_after_seconds: until it ends, since somebody was told.
    """

    name: str
    begin_ns: int
    cause: str
    changes_after_seconds: float | None
    end: VerdictState | None
    ends_after_seconds: float

    def line(self, update: int) -> Verdict:
        """A line: the beginning, the change, or the end."""
        state = self.end if update == 2 and self.end is not None else VerdictState.CONFIRMED
        at_ns = self.begin_ns + update * NS_PER_SECOND
        expires_ns = at_ns + 3600 * NS_PER_SECOND
        cause = _LATER_CAUSE if update and self.changes_after_seconds is not None else self.cause
        times = {"onset_ns": self.begin_ns, "detected_ns": at_ns, "expires_ns": expires_ns}
        return verdict(self.name, update, state=state, cause=cause, job=JobKey("c1", f"job-{self.name}"), **times)


@dataclass(frozen=True)
class FleetStory:
    """Hosts of one cluster without a job that lose a GPU in the same second: one, or so many that it is no chance.

    Attributes:
        cluster: whose hosts.
        begin_ns: when.
        hosts_count: how many hosts.
    """

    cluster: str
    begin_ns: int
    hosts_count: int


Story: TypeAlias = VerdictStory | FleetStory


def seconds_of(story: FleetStory) -> Iterator[Record]:
    """What the hosts say, and the ticks of all: healthy, broken, and over."""
    idle = JobKey(story.cluster, IDLE_JOB_ID)
    for second in range(_SECONDS_APART):
        ts_ns = story.begin_ns + second * NS_PER_SECOND
        for host in range(story.hosts_count):
            name = f"{story.cluster}-spare{host}"
            yield HostStatus(idle, name, ts_ns, 0, 0, (), False, 0, 0)
            if second == 1:
                code = {"code": 79, "pci": "0000:c1:00.0"}
                yield Event(idle, name, ts_ns, -1, EventSource.KERNEL, events.XID, Severity.FATAL, code)
        yield Tick(ts_ns)


def stories_of(seed: int, count: int, begin_ns: int) -> list[Story]:
    """Stories of both kinds in turn, the same for the same seed; time of recordings goes on from one to the next."""
    drawn = random.Random(seed)
    found: list[Story] = []
    for number in range(count):
        at_ns = begin_ns + number * _SECONDS_APART * NS_PER_SECOND
        if number % 2:
            found.append(FleetStory(f"cluster{number}", at_ns, 6 if number % 4 == 3 else 1))
            continue
        changes = drawn.choice((None, drawn.uniform(0.0, 6.0)))
        end = drawn.choice((None, VerdictState.RESOLVED, VerdictState.CANCELLED))
        cause = drawn.choice(_CAUSES)
        found.append(VerdictStory(f"v{number}", at_ns, cause, changes, end, drawn.uniform(0.0, 5.0)))
    return found
