"""Candidates for slow components: since when each looks slow, and whether slowness rotates among hosts.

A candidate must last before it is reported. If one host hands its slowness on to the next, or several are slow briefly,
none is at fault; a data shard, another job or garbage collection moves around. Hosts that were each slow for a while,
with healthy steps between them, are separate faults.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tocsin.schemas.records import NS_PER_SECOND

JOB = "job:"
"""Name of the candidate for the whole job. No host name contains a colon, and it takes no part in rotation."""
MORE = "job:more"
"""Name of the candidate for what makes a job that is slow already slower still."""
_LEAST_BRIEF_COUNT = 2
"""Least other hosts for rotation where the last of them recovered a while before: one brief one is a daemon's doing."""
_SNAPSHOT_NAMES = {"is_reported": "spoken"}
"""Field of ``Candidate`` -> its name in snapshots, where both differ."""


@dataclass(frozen=True, slots=True)
class RotationConfig:
    """Settings for recognising rotation.

    Attributes:
        memory_ns: how long a host that recovered is remembered.
        handover_ns: greatest gap between the recovery of a single other host and the candidate's start ...
        handover_steps_count: ... or so many steps, if longer; after a longer gap there was no handover.
        overlap_ns: greatest overlap of a host with the candidate; a longer one is no handover.
        brief_seconds: a host that was slow for less than this was slow briefly: less than confirms a slow machine. Two
            such hosts are evidence of rotation without a handover, until the candidate outlasts them.
        settled_seconds: duration after which a candidate is reported despite a handover (hot experts stay up to two and
            a half minutes). With several turns it must outlast them, at most by this time for each of them.
        outlast_factor: a candidate that lasts this many times as long as the longest turn before it is no turn.
    """

    memory_ns: int = 180 * NS_PER_SECOND
    handover_ns: int = 15 * NS_PER_SECOND
    handover_steps_count: int = 5
    overlap_ns: int = 60 * NS_PER_SECOND
    brief_seconds: float = 15.0
    settled_seconds: float = 120.0
    outlast_factor: float = 2.0


@dataclass(slots=True)
class Candidate:
    """Component that looks slow.

    Attributes:
        since_ns: time at which it began.
        last_ns: time at which it was last observed.
        detail: details for its anomaly.
        score: score of the last observation.
        from_start: whether it has been slow since the job's first steps, so that there is no earlier time to compare
            with.
        luck_ratio: probability that its ranks were the slowest this often by luck since it began; 1.0: unknown.
    """

    since_ns: int
    last_ns: int
    detail: dict[str, Any]
    score: float
    from_start: bool = False
    luck_ratio: float = 1.0
    is_reported: bool = False
    """Whether it lasted long enough to be reported as an anomaly."""

    @property
    def lasted_seconds(self) -> float:
        """Time in seconds for which it was observed."""
        return (self.last_ns - self.since_ns) / NS_PER_SECOND


@dataclass(frozen=True, slots=True)
class Turns:
    """Other components whose turns of slowness led to a candidate.

    Attributes:
        hosts: their names, sorted; empty: there was no rotation.
        passed_on: those of them whose turns ended about when the next one began, down to the candidate's.
        ended_ns: when the last of these turns ended; 0: there are none.
    """

    hosts: tuple[str, ...] = ()
    passed_on: tuple[str, ...] = ()
    ended_ns: int = 0


@dataclass(slots=True)
class Candidates:
    """Current candidates of one job, and reported ones that recovered.

    Attributes:
        config: settings for recognising rotation.
        now: name -> current candidate.
    """

    config: RotationConfig
    now: dict[str, Candidate] = field(default_factory=dict)
    past: list[tuple[str, int, int]] = field(default_factory=list)
    """(name, since_ns, last_ns) of reported candidates that recovered, oldest first: their turns."""

    def see(self, name: str, seen: Candidate) -> None:
        """Add a candidate, or update the known one with the new observation."""
        known = self.now.get(name)
        if known is None:
            self.now[name] = seen
        else:
            known.last_ns, known.detail, known.score = seen.last_ns, seen.detail, seen.score
            known.luck_ratio = seen.luck_ratio

    def began_ns(self, name: str, seen_ns: int) -> int:
        """Return since when a candidate looks slow, or what was seen now if it is none yet."""
        known = self.now.get(name)
        return seen_ns if known is None else known.since_ns

    def forget(self, name: str, newest_ns: int, grace_ns: int) -> None:
        """Drop a candidate not observed for longer than ``grace_ns``; remember it in ``past`` if it was reported."""
        known = self.now.get(name)
        if known is None or newest_ns - known.last_ns <= grace_ns:
            return
        del self.now[name]
        if known.is_reported:
            self.past = [turn for turn in self.past if turn[:2] != (name, known.since_ns)]
            self.past.append((name, known.since_ns, known.last_ns))
        self.past = [entry for entry in self.past if newest_ns - entry[2] <= self.config.memory_ns]

    def drop(self, names: Container[str]) -> None:
        """Forget candidates, and their turns: other ranks run there now."""
        self.now = {name: entry for name, entry in self.now.items() if name not in names}
        self.past = [turn for turn in self.past if turn[0] not in names]

    def add_turn(self, name: str) -> None:
        """Remember the turn of a candidate that took a slowness over and is not reported itself."""
        candidate = self.now[name]
        others = [turn for turn in self.past if turn[:2] != (name, candidate.since_ns)]
        self.past = [*others, (name, candidate.since_ns, candidate.last_ns)]

    def turns_before(self, name: str, step_ns: int = 0) -> Turns:
        """Return other components' turns of slowness that led to this candidate: evidence of rotation.

        None if there was no rotation, the candidate has lasted too long to be another turn, or it is the whole job.

        Args:
            name: name of the candidate.
            step_ns: the job's usual step time; 0: unknown.
        """
        if name in (JOB, MORE):
            return Turns()
        config, candidate = self.config, self.now[name]
        earliest = candidate.since_ns - config.memory_ns
        latest = candidate.since_ns + config.overlap_ns  # slow at the same time for longer: each is by itself
        turns = [turn for turn in self.past if turn[0] not in (name, JOB, MORE) and earliest <= turn[2] <= latest]
        handed_on = self._handed_on(turns, candidate.since_ns, step_ns)
        brief_ns = int(config.brief_seconds * NS_PER_SECOND)
        brief = [turn for turn in turns if turn[2] - turn[1] < brief_ns and turn not in handed_on]
        if len({turn[0] for turn in (*brief, *handed_on)}) < _LEAST_BRIEF_COUNT:
            brief = []
        counted = [*handed_on, *brief]
        others = {turn[0] for turn in counted}
        longest_seconds = max((last_ns - since_ns for _, since_ns, last_ns in counted), default=0) / NS_PER_SECOND
        need_seconds = max(config.brief_seconds, config.outlast_factor * longest_seconds)
        if handed_on:
            most_seconds = config.settled_seconds * len(others)
            need_seconds = min(max(config.settled_seconds, need_seconds), most_seconds)
        if candidate.lasted_seconds >= need_seconds:
            return Turns()
        ended_ns = max((turn[2] for turn in handed_on), default=0)
        return Turns(tuple(sorted(others)), tuple(sorted({turn[0] for turn in handed_on})), ended_ns)

    def _handed_on(
        self, turns: Sequence[tuple[str, int, int]], since_ns: int, step_ns: int
    ) -> list[tuple[str, int, int]]:
        """Return the turns that led to a candidate by handovers, each ending about when the next one began.

        Args:
            turns: turns of other hosts.
            since_ns: begin of the candidate.
            step_ns: the job's usual step time; 0: unknown.
        """
        handover_ns = max(self.config.handover_ns, self.config.handover_steps_count * step_ns)
        found = []
        for turn in sorted(turns, key=lambda turn: turn[2], reverse=True):
            if turn[2] < since_ns - handover_ns:
                break
            found.append(turn)
            since_ns = min(since_ns, turn[1])
        return found

    def to_state(self) -> dict[str, Any]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        return {"now": [[name, _to_fields(entry)] for name, entry in sorted(self.now.items())], "past": self.past}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the state from values that ``to_state`` returned."""
        self.now = {name: _of_fields(entry) for name, entry in state["now"]}
        self.past = [(name, since_ns, last_ns) for name, since_ns, last_ns in state["past"]]


def _to_fields(candidate: Candidate) -> dict[str, Any]:
    """Return a candidate's fields for a snapshot, in which ``is_reported`` is spelled ``spoken``."""
    fields = asdict(candidate)
    return {_SNAPSHOT_NAMES.get(name, name): value for name, value in fields.items()}


def _of_fields(fields: Mapping[str, Any]) -> Candidate:
    """Return the candidate of the fields that ``_to_fields`` gave."""
    names = {stored: name for name, stored in _SNAPSHOT_NAMES.items()}
    return Candidate(**{names.get(stored, stored): value for stored, value in fields.items()})
