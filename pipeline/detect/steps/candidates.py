"""Who looks slow, and since when; and whether the blame goes round.

A candidate must last before it is spoken of. When one host after another looks slow and
recovers, the hosts are not to blame: a shard of the data, a moving job of the cluster,
garbage collection goes round.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from tocsin.schemas.records import NS_PER_SECOND

JOB = "job:"
"""Name of the candidate that stands for the whole job; no host name holds a colon. It is nobody whose turn it was."""


@dataclass(frozen=True, slots=True)
class RotationConfig:
    """When blame goes round.

    Attributes:
        memory_ns: a host that looked slow and recovered is remembered for this long.
        handover_ns: one other host alone that recovered longer than this before handed nothing on: the job was as fast
            as ever in between ...
        handover_steps_count: ... or so many steps, if they are longer.
        overlap_ns: a host that recovered so long after another one began to be slow did not hand it on.
        settled_seconds: who stays slow for so long (hot experts stay for one to two and a half minutes) is named all
            the same; for so long times the number of those who looked slow before it, where there were several.
    """

    memory_ns: int = 180 * NS_PER_SECOND
    handover_ns: int = 15 * NS_PER_SECOND
    handover_steps_count: int = 5
    overlap_ns: int = 60 * NS_PER_SECOND
    settled_seconds: float = 120.0


@dataclass(slots=True)
class Candidate:
    """A component that looks slow."""

    since_ns: int
    last_ns: int
    detail: dict[str, Any]
    score: float
    from_start: bool = False
    """Slow since the job's first steps: there was no better time to compare with."""
    spoken: bool = False
    """It lasted long enough to become an anomaly."""

    @property
    def lasted_seconds(self) -> float:
        """How long it was seen."""
        return (self.last_ns - self.since_ns) / NS_PER_SECOND


@dataclass(slots=True)
class Candidates:
    """The candidates of one job, and those that were spoken of and recovered."""

    config: RotationConfig
    now: dict[str, Candidate] = field(default_factory=dict)
    past: list[list[Any]] = field(default_factory=list)
    """[name, last_ns] of spoken candidates that recovered, oldest first."""

    def see(self, name: str, seen: Candidate) -> None:
        """A component looks slow (again)."""
        known = self.now.get(name)
        if known is None:
            self.now[name] = seen
        else:
            known.last_ns, known.detail, known.score = seen.last_ns, seen.detail, seen.score

    def forget(self, name: str, newest_ns: int, grace_ns: int) -> None:
        """Drop a candidate that has not been seen for longer than the grace."""
        known = self.now.get(name)
        if known is None or newest_ns - known.last_ns <= grace_ns:
            return
        del self.now[name]
        if known.spoken:
            self.past.append([name, known.last_ns])
        self.past = [entry for entry in self.past if newest_ns - entry[1] <= self.config.memory_ns]

    def before(self, name: str, step_ns: int = 0) -> list[str]:
        """Other components that looked slow and recovered shortly before this one began, or as it began.

        Args:
            name: of a candidate.
            step_ns: the job's usual step, 0: not known.
        """
        config, candidate = self.config, self.now[name]
        earliest = candidate.since_ns - config.memory_ns
        latest = candidate.since_ns + config.overlap_ns  # slow at the same time for longer: each is by itself
        turns = [
            [other, last_ns]
            for other, last_ns in self.past
            if other not in (name, JOB) and earliest <= last_ns <= latest
        ]
        handover_ns = max(config.handover_ns, config.handover_steps_count * step_ns)
        if len(turns) == 1 and turns[0][1] < candidate.since_ns - handover_ns:
            return []
        others = {other for other, _ in turns}
        settled = candidate.lasted_seconds >= config.settled_seconds * max(1, len(others))
        return [] if settled else sorted(others)

    def to_state(self) -> dict[str, Any]:
        """JSON-able state."""
        return {"now": [[name, asdict(entry)] for name, entry in sorted(self.now.items())], "past": self.past}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what ``to_state`` gave."""
        self.now = {name: Candidate(**entry) for name, entry in state["now"]}
        self.past = [list(entry) for entry in state["past"]]
