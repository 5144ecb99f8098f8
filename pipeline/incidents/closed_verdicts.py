"""Memory of one job's closed verdicts, so that a verdict that is opened again goes on where it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tocsin.pipeline.incidents.closing import CLOSED_BY_HUMAN_MARK
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas.verdicts import FaultKind, Verdict

_KEPT_COUNT = 256
"""Closed verdicts that are kept per job; the oldest is forgotten first."""


class ClosedVerdict(NamedTuple):
    """The last state of a closed verdict.

    Attributes:
        update: number of its last line; -1: there was none.
        seen_ns: time of its newest evidence; -1: there was none.
        had_suspects: whether it named suspects, 0 or 1; ``CLOSED_BY_HUMAN_MARK``: a person closed it.
        was_confirmed: whether it was confirmed, 0 or 1.
    """

    update: int = -1
    seen_ns: int = -1
    had_suspects: int = 0
    was_confirmed: int = 0


class ClosedStory(NamedTuple):
    """What a person closed: not one verdict, whose onset is known better later, but what it tells of.

    Attributes:
        fault: kind of fault.
        named: kind and name of each suspect.
        closed_ns: when it was closed.
    """

    fault: FaultKind
    named: frozenset[tuple[str, str]]
    closed_ns: int

    @classmethod
    def of(cls, verdict: Verdict, closed_ns: int) -> ClosedStory:
        """Return the story of a verdict that is closed at a time."""
        return cls(verdict.fault, _named(verdict), closed_ns)

    def goes_on_in(self, finding: Finding) -> bool:
        """Return whether a finding tells the same story.

        It does where the fault is the same and began before the closing, and where the finding names one of those that
        the person saw named, or nobody. A first name for what had none, or another name, is news.
        """
        named = _named(finding)
        known = not named or bool(named & self.named)
        return known and finding.fault is self.fault and finding.onset_ns <= self.closed_ns


class ClosedVerdicts:
    """Closed verdicts of one job by their ids: the numbers of a verdict's lines never start again."""

    def __init__(self) -> None:
        """Start empty."""
        self._by_id: dict[str, ClosedVerdict] = {}
        self._by_human_ns: dict[str, int] = {}
        """Fault and suspects of what a person closed -> when."""
        self._stories: list[ClosedStory] = []

    def add(self, verdict: Verdict, seen_ns: int, *, was_confirmed: bool) -> None:
        """Keep a verdict that is being closed.

        Args:
            verdict: its last open line; the closing line has the next number.
            seen_ns: time of its newest evidence.
            was_confirmed: whether it was confirmed at any time.
        """
        had_suspects = int(bool(verdict.suspects))
        self._by_id[verdict.verdict_id] = ClosedVerdict(verdict.update + 1, seen_ns, had_suspects, int(was_confirmed))
        while len(self._by_id) > _KEPT_COUNT:
            del self._by_id[next(iter(self._by_id))]

    def is_rest(self, verdict_id: str, finding: Finding) -> bool:
        """Return whether a finding is only what is left of the closed verdict with its id.

        That is a deviation without impact, a finding without suspects after a verdict that named some, or anything
        after a person closed it.
        """
        closed = self._by_id.get(verdict_id)
        if closed is None:
            return False
        if closed.had_suspects == CLOSED_BY_HUMAN_MARK or finding.fault is FaultKind.DEGRADED:
            return True
        return bool(closed.had_suspects) and not finding.suspects

    def reopen(self, verdict_id: str, seen_ns: int) -> ClosedVerdict | None:
        """Forget and return a closed verdict in order to open it again; None: its evidence is not newer.

        Args:
            verdict_id: the id to open; an unknown one gives a ``ClosedVerdict`` without lines.
            seen_ns: time of the newest evidence for opening it.
        """
        closed = self._by_id.pop(verdict_id, ClosedVerdict())
        if seen_ns <= closed.seen_ns:
            self._by_id[verdict_id] = closed
            return None
        return closed

    def mark_by_human(self, verdict: Verdict, closed_ns: int) -> None:
        """Remember that a person closed a verdict, and when."""
        marked = self._by_id[verdict.verdict_id]._replace(seen_ns=closed_ns, had_suspects=CLOSED_BY_HUMAN_MARK)
        self._by_id[verdict.verdict_id] = marked
        self._by_human_ns[_story_of(verdict)] = closed_ns
        while len(self._by_human_ns) > _KEPT_COUNT:
            del self._by_human_ns[next(iter(self._by_human_ns))]
        self._stories = [*self._stories, ClosedStory.of(verdict, closed_ns)][-_KEPT_COUNT:]

    def is_silenced(self, finding: Finding, now_ns: int, quiet_ns: int) -> bool:
        """Return whether a person closed what a finding tells less than ``quiet_ns`` ago.

        The end of the same processes is never told again: it happens once, though its time may be known better later.
        """
        if finding.fault is FaultKind.FAIL_STOP:
            known = any(one.goes_on_in(finding) and _named(finding) <= one.named for one in self._stories)
            return known or _story_of(finding) in self._by_human_ns
        return any(now_ns - one.closed_ns < quiet_ns and one.goes_on_in(finding) for one in self._stories)

    def forget_evidence(self, verdict_id: str) -> None:
        """Let the evidence that was seen before the closing open the verdict again."""
        self._by_id[verdict_id] = self._by_id[verdict_id]._replace(seen_ns=0)

    def follow(self, before: ClosedVerdicts) -> None:
        """Take over the closed verdicts that another instance kept for the same job."""
        self._by_id, self._by_human_ns = dict(before._by_id), dict(before._by_human_ns)
        self._stories = list(before._stories)

    def to_state(self) -> dict[str, list[Any]]:
        """Return the state as a JSON-able object: the four numbers of each verdict, the oldest first, by its id."""
        by_id = [(verdict_id, list(closed)) for verdict_id, closed in self._by_id.items()]
        stories = [(one.fault.value, sorted(one.named), one.closed_ns) for one in self._stories]
        return {"by_id": by_id, "by_human_ns": list(self._by_human_ns.items()), "stories": stories}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that ``to_state`` returned."""
        self._by_id = {verdict_id: ClosedVerdict(*closed) for verdict_id, closed in state["by_id"]}
        self._by_human_ns = dict(map(tuple, state["by_human_ns"]))
        self._stories = [
            ClosedStory(FaultKind(fault), frozenset((kind, name) for kind, name in named), closed_ns)
            for fault, named, closed_ns in state.get("stories", ())
        ]


def _named(reported: Finding | Verdict) -> frozenset[tuple[str, str]]:
    """Return kind and name of each suspect of a finding or verdict."""
    return frozenset((one.component.kind.value, one.component.name) for one in reported.suspects)


def _story_of(reported: Finding | Verdict) -> str:
    """Return the fault and the suspects of a finding or verdict as a text."""
    suspects = sorted((one.component.kind.value, one.component.name, one.ranks) for one in reported.suspects)
    return f"{reported.fault.value} {suspects}"
