"""The router: from lines of verdicts to notices, once for each incident and route."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tocsin.pipeline.alerts.flood import OTHER, FloodGate, FloodSummary, NoticeBudget, signature_of
from tocsin.pipeline.alerts.notice import AlertSeverity, Notice, NoticeKind
from tocsin.pipeline.alerts.routes import Route, RouteConfig, SeverityRule
from tocsin.pipeline.alerts.told_incident import (
    ToldIncident,
    attempt_key,
    content_of,
    named_by,
    told_of,
    told_state,
)
from tocsin.pipeline.alerts.untold import UntoldIncidents
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Verdict, VerdictState

STATE_VERSION: Final = 1
_ENDS: Final = {
    VerdictState.CANCELLED: NoticeKind.TAKEN_BACK,
    VerdictState.EXPIRED: NoticeKind.LAPSED,
    VerdictState.RESOLVED: NoticeKind.RESOLVED,
}
_SILENT_NOTE: Final = "tocsin has heard nothing of it since, so it may stand or not."
_NEW_NORMAL_NOTE: Final = (
    "Slower pace accepted: the job is not faster again, but after so long this is its normal pace."
)
_SET_ASIDE: Final = "\n"
"""Divides a summary's key from its id, where the summary takes no more incidents."""
_CHANGES_COUNT: Final = 2
_CHANGES_SECONDS: Final = 60.0
_NAMINGS_COUNT: Final = 6
"""Most changes of an incident in ``_CHANGES_SECONDS`` where each beyond ``_CHANGES_COUNT`` names whom no other named: a
wrong host on a pager is worse than one more message."""


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """Settings of the router.

    Attributes:
        routes: the routes file.
        max_standing_count: most incidents that are followed at once.
        max_ended_count: most ended incidents that are remembered, so that a replay tells none again.
        lapse_after_seconds: a told incident lapses so long after its last line expired, and so long after the start.
    """

    routes: RouteConfig
    max_standing_count: int = 50_000
    max_ended_count: int = 20_000
    lapse_after_seconds: float = 3600.0


def _no_silence(_verdict: Verdict, _now_ns: int) -> str:
    """Return "": nothing is silenced."""
    return ""


def _uncovered(_verdict: Verdict) -> str:
    """Return "": no fleet incident stands for a verdict."""
    return ""


class AlertRouter:
    """Decides what is told on which route. It reads no clock, and its state is plain JSON.

    Lines may come again after a restart. A line whose stream time is not after the last one of its incident is old
    and tells nothing.

    Attributes:
        untold: reason -> how many lines were not told for it.
        revision: it rises with each change of the state that a restart must not lose.
    """

    def __init__(
        self,
        config: RouterConfig,
        silence: Callable[[Verdict, int], str] = _no_silence,
        covered_by: Callable[[Verdict], str] = _uncovered,
    ) -> None:
        """Start with nothing told.

        Args:
            config: settings.
            silence: returns the named reason for which a verdict is not told at a time, "" for none.
            covered_by: returns the id of the fleet incident that stands for a verdict, "" for none.
        """
        self._config = config
        self._silence = silence
        self._covered_by = covered_by
        self._routes = {one.name: one for one in config.routes.routes}
        self._told: dict[str, ToldIncident] = {}
        self._ended: dict[str, int] = {}
        self._summaries: dict[str, FloodSummary] = {}
        self._begin_ns = -1
        self._gate = FloodGate(config.routes.limits)
        self._changes = NoticeBudget(_CHANGES_SECONDS)
        self._withheld: dict[str, Verdict] = {}
        """Newest line of each told incident whose change waits for its minute to pass."""
        self._once: dict[str, str] = {}
        self._nobody = UntoldIncidents(config.max_standing_count, int(config.lapse_after_seconds * NS_PER_SECOND))
        self.untold: dict[str, int] = {}
        self.revision = 0

    @property
    def standing_count(self) -> int:
        """How many told incidents stand."""
        return len(self._told)

    def is_standing(self, verdict_id: str) -> bool:
        """Return whether an incident was told, or counted by a summary, and stands."""
        return verdict_id in self._told

    def standing_untold(self) -> list[str]:
        """Return a named reason for each standing incident that nobody is told of, of those heard since the start."""
        return self._nobody.reasons()

    def on_verdicts(self, verdicts: Sequence[Verdict], now_ns: int) -> list[Notice]:
        """Take the verdict lines of one tick, also where there are none.

        Args:
            verdicts: the lines, in stream order.
            now_ns: the present time.

        Returns:
            What is told now, oldest first.
        """
        self._gate.on_time(now_ns)
        self._changes.on_time(now_ns)
        self._begin_ns = now_ns if self._begin_ns < 0 else self._begin_ns
        told: list[Notice] = []
        for one in verdicts:
            told += self._end(one, now_ns) if one.state in _ENDS else self._stand(one, now_ns)
        for waiting in list(self._withheld.values()):
            told += self._tell_withheld(waiting, now_ns)
        told += self._lapse(now_ns)
        for key, summary in list(self._summaries.items()):
            told += summary.notices(now_ns)
            if summary.is_over(now_ns):
                self.revision += 1
                del self._summaries[key]
            elif _SET_ASIDE not in key and summary.is_calm(now_ns, self._config.routes.limits):
                self._set_aside(key)
        self._nobody.on_time(now_ns)
        self._bound()
        return told

    def remark(self, verdict_id: str, text: str, now_ns: int) -> list[Notice]:
        """Return the notices that add a sentence to an incident where it was told; elsewhere it is counted only."""
        told = self._told.get(verdict_id)
        if told is None or told.verdict is None or not told.routes:
            self.untold["remark"] = self.untold.get("remark", 0) + 1
            return []
        kind, verdict = NoticeKind.CHANGED, told.verdict
        return [
            Notice(name, kind, told.severity, verdict, at_ns, now_ns, note=text) for name, at_ns in told.routes.items()
        ]

    def _set_aside(self, key: str) -> None:
        """Let a summary stand for its present incidents only: later ones of its signature are told one by one again."""
        self.revision += 1
        summary = self._summaries.pop(key)
        aside = f"{key}{_SET_ASIDE}{summary.verdict.verdict_id}"
        self._summaries[aside] = summary
        for name in summary.members:
            if name in self._told:
                self._told[name].summaries[summary.route] = aside

    def _stand(self, verdict: Verdict, now_ns: int) -> Iterator[Notice]:
        """Yield what a line of a standing incident tells."""
        told = self._told.get(verdict.verdict_id)
        if self._is_old(verdict, told):
            return
        if told is not None:  # also where it is silenced: it is heard of, so it does not lapse
            told.detected_ns, told.update, told.expires_ns = verdict.detected_ns, verdict.update, verdict.expires_ns
        routes = list(self._config.routes.routes_of(verdict))
        if told is None and not routes:
            self._nobody.note_no_route(verdict)
            return
        rule = self._config.routes.rule_of(verdict)
        why = self._why_untold(verdict, rule, is_told=told is not None, now_ns=now_ns)
        self._nobody.note(verdict, why if told is None else "")
        if why:
            self.untold[why] = self.untold.get(why, 0) + 1
            return
        content = content_of(verdict, rule.severity)
        if told is None:
            told = self._told[verdict.verdict_id] = ToldIncident(
                verdict.verdict_id, verdict.detected_ns, verdict.update, content, rule.severity, verdict.expires_ns
            )
            if rule.is_once_an_attempt:
                self._once[attempt_key(verdict)] = verdict.verdict_id
        yield from self._change(told, verdict, content, rule.severity, now_ns)
        for new in routes:
            yield from self._fire(new, verdict, told, now_ns)

    def _why_untold(self, verdict: Verdict, rule: SeverityRule, *, is_told: bool, now_ns: int) -> str:
        """Return the named reason for which a line of a standing incident is not told, "" for none."""
        why = self._silence(verdict, now_ns) or ("covered_by_fleet" if self._covered_by(verdict) else "")
        if why or is_told:
            return why
        if verdict.detected_ns < now_ns - self._config.routes.stale_seconds * NS_PER_SECOND:
            return "stale"
        return "once_an_attempt" if rule.is_once_an_attempt and attempt_key(verdict) in self._once else ""

    def _change(
        self, told: ToldIncident, verdict: Verdict, content: str, severity: AlertSeverity, now_ns: int
    ) -> Iterator[Notice]:
        """Take a line of a told incident, and yield what of it is news."""
        is_worse = severity is AlertSeverity.PAGE is not told.severity
        told.severity = severity
        self._withheld.pop(told.verdict_id, None)
        if content == told.content or not told.routes:
            return
        naming = f"{told.verdict_id}/{named_by(verdict)}"
        most = _CHANGES_COUNT if self._changes.count(naming, now_ns) else _NAMINGS_COUNT
        if self._changes.count(told.verdict_id, now_ns) >= most and not is_worse:
            self._withheld[told.verdict_id] = verdict
            return
        self._changes.add(told.verdict_id, now_ns)
        self._changes.add(naming, now_ns)
        told.content, told.verdict = content, verdict
        self.revision += 1
        for route, told_ns in told.routes.items():
            yield Notice(route, NoticeKind.CHANGED, severity, verdict, told_ns, now_ns)

    def _tell_withheld(self, verdict: Verdict, now_ns: int) -> Iterator[Notice]:
        """Yield the change that a line of a told incident made within a full minute, once that minute has passed."""
        told, rule = self._told.get(verdict.verdict_id), self._config.routes.rule_of(verdict)
        if told is None or self._why_untold(verdict, rule, is_told=True, now_ns=now_ns):
            del self._withheld[verdict.verdict_id]
        else:
            yield from self._change(told, verdict, content_of(verdict, rule.severity), rule.severity, now_ns)

    def _fire(self, route: Route, verdict: Verdict, told: ToldIncident, now_ns: int) -> Iterator[Notice]:
        """Yield the first notice of an incident on a route, or let a summary count it where there are too many."""
        key = f"{route.name}/{signature_of(verdict)}"
        present = told.summaries.get(route.name, "").partition(_SET_ASIDE)[0]
        if route.name in told.routes or present in {key, f"{route.name}/{OTHER}"}:
            return
        self.revision += 1
        if route.name in told.summaries:  # it is no longer what the summary stands for
            self._move_out(told, route.name)
        if key not in self._summaries and self._gate.admit(route.name, verdict, told.severity, now_ns):
            told.routes[route.name] = now_ns
            told.verdict = verdict
            yield Notice(route.name, NoticeKind.FIRING, told.severity, verdict, now_ns, now_ns)
            return
        if key not in self._summaries and self._gate.is_crowded(route.name, verdict, told.severity, now_ns):
            key = f"{route.name}/{OTHER}"
        summary = self._summaries.get(key)
        if summary is None:
            summary = self._summaries[key] = FloodSummary.begin(key, route.name, told.severity, verdict, now_ns)
        summary.join(verdict.verdict_id, told.severity, now_ns)
        told.summaries[route.name] = key

    def _move_out(self, told: ToldIncident, route: str) -> None:
        """Take an incident that became one of another signature out of the summary of a route."""
        summary = self._summaries.get(told.summaries.pop(route))
        if summary is not None and told.verdict_id in summary.members:
            summary.members.discard(told.verdict_id)
            summary.total -= 1

    def _end(self, verdict: Verdict, now_ns: int) -> Iterator[Notice]:
        """Yield what the end of an incident tells; one that was never told ends in silence."""
        self._nobody.forget(verdict.verdict_id)
        told = self._told.get(verdict.verdict_id)
        if told is None or verdict.detected_ns < told.detected_ns:
            return
        self.revision += 1
        del self._told[verdict.verdict_id]
        self._ended.pop(verdict.verdict_id, None)
        self._ended[verdict.verdict_id] = verdict.detected_ns
        note = _NEW_NORMAL_NOTE if verdict.reason == Reason.NEW_NORMAL.value else ""
        for route, told_ns in told.routes.items():
            yield Notice(route, _ENDS[verdict.state], told.severity, verdict, told_ns, now_ns, note=note)
        self._leave_summaries(told, is_cancelled=verdict.state is VerdictState.CANCELLED)

    def _lapse(self, now_ns: int) -> Iterator[Notice]:
        """Yield the end of incidents of which no line came long after the last one expired, e.g. after a lost state."""
        grace_ns = int(self._config.lapse_after_seconds * NS_PER_SECOND)
        if now_ns - self._begin_ns < grace_ns:
            return
        for told in [one for one in self._told.values() if now_ns - one.expires_ns >= grace_ns]:
            self.revision += 1
            del self._told[told.verdict_id]
            self._leave_summaries(told, is_cancelled=False)
            if told.verdict is None:
                continue
            end = replace(told.verdict, state=VerdictState.EXPIRED, update=told.update + 1, detected_ns=now_ns)
            for route, told_ns in told.routes.items():
                yield Notice(route, NoticeKind.LAPSED, told.severity, end, told_ns, now_ns, note=_SILENT_NOTE)

    def _leave_summaries(self, told: ToldIncident, *, is_cancelled: bool) -> None:
        """Take an incident that ended out of the summaries that stand for it."""
        for key in told.summaries.values():
            summary = self._summaries.get(key)
            if summary is not None:
                summary.members.discard(told.verdict_id)
                summary.cancelled += is_cancelled

    def _is_old(self, verdict: Verdict, told: ToldIncident | None) -> bool:
        """Return whether a line, or one after it, was taken before."""
        if told is not None:
            return (verdict.detected_ns, verdict.update) <= (told.detected_ns, told.update)
        return verdict.detected_ns <= self._ended.get(verdict.verdict_id, -1)

    def _bound(self) -> None:
        """Forget the oldest incidents beyond the limits."""
        while len(self._ended) > self._config.max_ended_count:
            del self._ended[next(iter(self._ended))]
        while len(self._once) > self._config.max_ended_count:
            del self._once[next(iter(self._once))]
        excess = len(self._told) - self._config.max_standing_count
        if excess > 0:  # first those that only a summary tells
            for told in sorted(self._told.values(), key=lambda one: bool(one.routes))[:excess]:
                del self._told[told.verdict_id]
                self.untold["forgotten"] = self.untold.get("forgotten", 0) + 1
                self._leave_summaries(told, is_cancelled=False)

    def to_state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {
            "version": STATE_VERSION,
            "told": [told_state(one) for one in self._told.values() if one.routes],  # summaries name the others
            "ended": self._ended,
            "summaries": {key: one.to_state() for key, one in self._summaries.items()},
            "gate": self._gate.to_state(),
            "changes": self._changes.to_state(),
            "once": self._once,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the state by one of ``to_state``; what was told on routes that are gone is left out.

        Raises:
            KeyError, ValueError, TypeError: it is no such state.
        """
        if state["version"] != STATE_VERSION:
            raise ValueError(f"version {state['version']!r}")
        self._summaries = {
            key: FloodSummary.from_state(one) for key, one in state["summaries"].items() if one["route"] in self._routes
        }
        self._told = {}
        for fields in state["told"]:
            one = told_of(fields)
            one.routes = {route: ns for route, ns in one.routes.items() if route in self._routes}
            one.summaries = {route: key for route, key in one.summaries.items() if key in self._summaries}
            self._told[one.verdict_id] = one
        for key, summary in self._summaries.items():
            for name in summary.members:
                known = self._told.setdefault(name, ToldIncident(name, 0, 0, "", summary.severity))
                known.summaries[summary.route] = key
        self._ended = {name: int(ns) for name, ns in state["ended"].items()}
        self._gate.load_state(state["gate"])
        self._changes.load_state(state["changes"])
        self._once = {str(key): str(name) for key, name in state["once"].items()}
