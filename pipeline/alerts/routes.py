"""Routes: which incidents are told to which receiver, and how urgent they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from tocsin.pipeline.alerts.adapters.kinds import AdapterKind
from tocsin.pipeline.alerts.flood import FloodLimits
from tocsin.pipeline.alerts.notice import AlertSeverity
from tocsin.pipeline.alerts.route_check import WATCHDOG_SECONDS, route_errors
from tocsin.pipeline.core.marked_file import raise_all, read_marked
from tocsin.schemas.job_key import FLEET_JOB_ID
from tocsin.schemas.reasons import Reason
from tocsin.schemas.verdicts import ActionKind, ComponentKind, FaultKind, Verdict, VerdictState

GIVE_UP_SECONDS: Final = 86_400.0
"""How long a notice is tried where its route says nothing else."""


@dataclass(frozen=True, slots=True)
class RouteMatch:
    """A condition on incidents; an empty field matches all.

    Attributes:
        job: patterns of the job's id.
        cluster: patterns of the cluster's name.
        host: patterns, of which one must match one suspected host.
        fault: values of ``FaultKind``.
        cause: causes.
        action: values of ``ActionKind``.
        state: states in which an incident is told first.
        severity: values of ``AlertSeverity``.
        min_confidence: least confidence, 0 to 1.
    """

    job: tuple[str, ...] = ()
    cluster: tuple[str, ...] = ()
    host: tuple[str, ...] = ()
    fault: tuple[str, ...] = ()
    cause: tuple[str, ...] = ()
    action: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    severity: tuple[str, ...] = ()
    min_confidence: float = 0.0

    def fits(self, verdict: Verdict) -> bool:
        """Return whether a verdict meets the condition; state and severity are not looked at."""
        hosts = [one.component.name for one in verdict.suspects if one.component.kind is ComponentKind.HOST]
        return (
            _globbed(self.job, [verdict.job.job_id])
            and _globbed(self.cluster, [verdict.job.cluster])
            and _globbed(self.host, hosts)
            and (not self.fault or verdict.fault.value in self.fault)
            and (not self.cause or verdict.cause in self.cause)
            and (not self.action or verdict.action.value in self.action)
            and verdict.confidence >= self.min_confidence
        )


@dataclass(frozen=True, slots=True)
class SeverityRule:
    """One row of the table of severities.

    Attributes:
        match: which incidents.
        severity: how urgent they are.
        is_once_an_attempt: of one cause and one attempt of a job only the first incident is told.
    """

    match: RouteMatch
    severity: AlertSeverity
    is_once_an_attempt: bool = False


FLEET_CAUSES: Final = ("common_component", "common_driver", "monitoring_fault")
"""Causes of fleet incidents that are told: they stand for what would be told else. Planned work is not told."""
_HARD: Final = tuple(
    one.value
    for one in (ActionKind.RESTART, ActionKind.DRAIN, ActionKind.EVICT, ActionKind.REPLAY, ActionKind.ROLLBACK)
)
DEFAULT_SEVERITIES: Final = (
    SeverityRule(RouteMatch(job=(FLEET_JOB_ID,), cause=FLEET_CAUSES), AlertSeverity.PAGE),
    SeverityRule(RouteMatch(fault=(FaultKind.DEGRADED.value,)), AlertSeverity.INFORMATION),
    SeverityRule(RouteMatch(cause=("stage_imbalance",)), AlertSeverity.INFORMATION, is_once_an_attempt=True),
    SeverityRule(RouteMatch(fault=(FaultKind.FAIL_SLOW.value,), action=_HARD), AlertSeverity.PAGE),
    SeverityRule(RouteMatch(fault=(FaultKind.FAIL_SLOW.value,)), AlertSeverity.TICKET),
    SeverityRule(RouteMatch(), AlertSeverity.PAGE),
)
"""The table after the file's own rows; the first row that fits counts."""


@dataclass(frozen=True, slots=True)
class Route:
    """A way from incidents to one receiver.

    Attributes:
        name: its name.
        receiver: name of the receiver.
        match: which incidents it takes.
        goes_on: whether routes after it may take the incident, too.
        give_up_after_seconds: how long one notice is tried.
    """

    name: str
    receiver: str
    match: RouteMatch = RouteMatch()
    goes_on: bool = False
    give_up_after_seconds: float = GIVE_UP_SECONDS

    def takes(self, verdict: Verdict, severity: AlertSeverity) -> bool:
        """Return whether an incident that was not told yet is told on this route in its present state."""
        states = self.match.state or (VerdictState.CONFIRMED.value,)
        if VerdictState.OPEN.value in states:  # one that is confirmed at once is told, too
            states = (*states, VerdictState.CONFIRMED.value)
        if verdict.state.value not in states:
            return False
        if verdict.fault is FaultKind.DEGRADED and not self.match.fault and not _is_of_fleet(verdict):
            return False
        return (not self.match.severity or severity.value in self.match.severity) and self.match.fits(verdict)


@dataclass(frozen=True, slots=True)
class AlertWatchdog:
    """The alert that fires for as long as tocsin works.

    Attributes:
        receiver: name of its receiver.
        every_seconds: distance of two notices.
    """

    receiver: str
    every_seconds: float = WATCHDOG_SECONDS


@dataclass(frozen=True, slots=True)
class RouteConfig:
    """A routes file.

    Attributes:
        receivers: name -> settings, as the kind of receiver takes them.
        routes: in the order in which they are tried.
        severities: rows of the table, before the default ones.
        watchdog: None = no watchdog alert.
        limits: how much a route tells one by one.
        stale_seconds: an incident whose last line is older is not told for the first time.
        places: name of a receiver -> file, line and key of its settings, for errors.
    """

    receivers: Mapping[str, Mapping[str, object]]
    routes: tuple[Route, ...]
    severities: tuple[SeverityRule, ...] = ()
    watchdog: AlertWatchdog | None = None
    limits: FloodLimits = field(default_factory=FloodLimits)
    stale_seconds: float = 3600.0
    places: Mapping[str, str] = field(default_factory=dict)

    def rule_of(self, verdict: Verdict) -> SeverityRule:
        """Return the first row of the table of severities that fits an incident."""
        return next(one for one in (*self.severities, *DEFAULT_SEVERITIES) if one.match.fits(verdict))

    def severity_of(self, verdict: Verdict) -> AlertSeverity:
        """Return how urgent an incident is."""
        return self.rule_of(verdict).severity

    def routes_of(self, verdict: Verdict) -> Iterator[Route]:
        """Yield the routes that tell an incident in its present state; canaries are told on none."""
        if verdict.reason == Reason.CANARY.value:
            return
        severity = self.severity_of(verdict)
        for route in self.routes:
            if route.takes(verdict, severity):
                yield route
                if not route.goes_on:
                    return


def load_routes(path: Path, registry: Mapping[str, AdapterKind]) -> RouteConfig:
    """Return the routes of a file.

    Args:
        path: the YAML file.
        registry: word of the kind -> kind of receiver.

    Raises:
        ConfigError: names file, line and key of each mistake.
    """
    file = read_marked(path, "alerts file")
    raise_all(route_errors(file, registry))
    content: Any = file.value
    places = {str(name): file.where(("receivers", str(name))) for name in content["receivers"]}
    watchdog = content.get("watchdog")
    limits = dict(content.get("limits", {}))
    stale_seconds = float(limits.pop("stale_seconds", 3600.0))
    return RouteConfig(
        {str(name): dict(settings) for name, settings in content["receivers"].items()},
        tuple(_route_of(one) for one in content["routes"]),
        tuple(
            SeverityRule(_match_of(one["match"]), AlertSeverity(one["severity"]), one.get("once_an_attempt", False))
            for one in content.get("severities", ())
        ),
        AlertWatchdog(watchdog["receiver"], float(watchdog.get("every_seconds", WATCHDOG_SECONDS)))
        if watchdog
        else None,
        FloodLimits(**limits),
        stale_seconds,
        places,
    )


def _is_of_fleet(verdict: Verdict) -> bool:
    """Return whether a verdict is a fleet incident, which is told although it is no job's fault."""
    return verdict.job.job_id == FLEET_JOB_ID and verdict.cause in FLEET_CAUSES


def _globbed(patterns: tuple[str, ...], names: list[str]) -> bool:
    """Return whether one pattern matches one name; no pattern matches all."""
    return not patterns or any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _route_of(table: Mapping[str, Any]) -> Route:
    """Return the route of a checked table."""
    give_up_after_seconds = float(table.get("give_up_after_seconds", GIVE_UP_SECONDS))
    match = _match_of(table.get("match", {}))
    return Route(table["name"], table["receiver"], match, table.get("continue", False), give_up_after_seconds)


def _match_of(table: Mapping[str, Any]) -> RouteMatch:
    """Return the condition of a checked table."""
    fields: dict[str, Any] = {
        name: value if name == "min_confidence" else ((value,) if isinstance(value, str) else tuple(value))
        for name, value in table.items()
    }
    return RouteMatch(**fields)
