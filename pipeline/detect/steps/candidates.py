"""Candidates for slow components: since when each looks slow, and whether slowness rotates among hosts.

A candidate must last before it is reported. If one host after another looks slow and recovers, none is at fault; a data
shard, another job or garbage collection moves around.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from tocsin.schemas.records import NS_PER_SECOND

JOB = "job:"
"""Name of the candidate for the whole job. No host name contains a colon, and it takes no part in rotation."""


@dataclass(frozen=True, slots=True)
class RotationConfig:
    """Settings for recognising rotation.

    Attributes:
        memory_ns: how long a host that recovered is remembered.
        handover_ns: greatest gap between the recovery of a single other host and the candidate's start ...
        handover_steps_count: ... or so many steps, if longer; after a longer gap there was no handover.
        overlap_ns: greatest overlap of a host with the candidate; a longer one is no handover.
        settled_seconds: duration after which a candidate is reported despite rotation (hot experts stay up to two and a
            half minutes). It is multiplied by the number of earlier slow hosts.
    """

    memory_ns: int = 180 * NS_PER_SECOND
    handover_ns: int = 15 * NS_PER_SECOND
    handover_steps_count: int = 5
    overlap_ns: int = 60 * NS_PER_SECOND
    settled_seconds: float = 120.0


@dataclass(slots=True)
class Candidate:
    """Component that looks slow.

    Attributes:
        since_ns: time at which it began.
        last_ns: time at which it was last observed.
        detail: details for its anomaly.
        score: score of the last observation.
    """

    since_ns: int
    last_ns: int
    detail: dict[str, Any]
    score: float
    from_start: bool = False
    """Whether it has been slow since the job's first steps, so that there is no earlier time to compare with."""
    spoken: bool = False
    """Whether it lasted long enough to be reported as an anomaly."""

    @property
    def lasted_seconds(self) -> float:
        """Time in seconds for which it was observed."""
        return (self.last_ns - self.since_ns) / NS_PER_SECOND


@dataclass(slots=True)
class Candidates:
    """Current candidates of one job, and reported ones that recovered.

    Attributes:
        config: settings for recognising rotation.
        now: name -> current candidate.
    """

    config: RotationConfig
    now: dict[str, Candidate] = field(default_factory=dict)
    past: list[list[Any]] = field(default_factory=list)
    """[name, last_ns] of reported candidates that recovered, oldest first."""

    def see(self, name: str, seen: Candidate) -> None:
        """Add a candidate, or update the known one with the new observation."""
        known = self.now.get(name)
        if known is None:
            self.now[name] = seen
        else:
            known.last_ns, known.detail, known.score = seen.last_ns, seen.detail, seen.score

    def forget(self, name: str, newest_ns: int, grace_ns: int) -> None:
        """Drop a candidate not observed for longer than ``grace_ns``; remember it in ``past`` if it was reported."""
        known = self.now.get(name)
        if known is None or newest_ns - known.last_ns <= grace_ns:
            return
        del self.now[name]
        if known.spoken:
            self.past.append([name, known.last_ns])
        self.past = [entry for entry in self.past if newest_ns - entry[1] <= self.config.memory_ns]

    def before(self, name: str, step_ns: int = 0) -> list[str]:
        """Return other components that were slow and recovered around this candidate's start: evidence of rotation.

        [] if there was no handover, or the candidate has lasted long enough by itself.

        Args:
            name: name of the candidate.
            step_ns: the job's usual step time; 0: unknown.
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
        """Return the state as JSON-serialisable values, for a snapshot."""
        return {"now": [[name, asdict(entry)] for name, entry in sorted(self.now.items())], "past": self.past}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the state from values that ``to_state`` returned."""
        self.now = {name: Candidate(**entry) for name, entry in state["now"]}
        self.past = [list(entry) for entry in state["past"]]
