"""Routes: which incidents are told to which receiver, and how urgent they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from tocsin.pipeline.alerts.adapters.kinds import AdapterKind, Schema, check_settings
from tocsin.pipeline.alerts.flood import FloodLimits
from tocsin.pipeline.alerts.notice import AlertSeverity
from tocsin.pipeline.alerts.route_schema import frame_schema
from tocsin.pipeline.core.marked_file import MarkedFile, Place, check_schema, read_marked, unknown_word
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.job_key import FLEET_JOB_ID
from tocsin.schemas.reasons import Reason
from tocsin.schemas.verdicts import ActionKind, ComponentKind, FaultKind, Verdict, VerdictState

WATCHDOG_SECONDS: Final = 60.0
"""Distance of two notices of the watchdog where the file says nothing else."""
_NO_WATCHDOGS: Final = frozenset({"pagerduty", "slack"})
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
        ConfigError: names file, line and key of the first mistake.
    """
    file = read_marked(path, "alerts file")
    check_schema(file, frame_schema({"type": "object", "minProperties": 1}))
    content: Any = file.value
    places = {}
    for name, settings in content["receivers"].items():
        _check_receiver(file, str(name), settings, registry)
        places[str(name)] = file.where(("receivers", str(name)))
    _check_names(file, content)
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


def _check_receiver(file: MarkedFile, name: str, settings: object, registry: Mapping[str, AdapterKind]) -> None:
    """Check the settings of one receiver.

    Raises:
        ConfigError: they are wrong.
    """
    place: Place = ("receivers", name)
    if not isinstance(settings, dict):
        raise ConfigError(file.where(place), "(not shown)", "a table of settings")
    kind = settings.get("kind")
    if not isinstance(kind, str) or kind not in registry:
        raise ConfigError(file.where((*place, "kind")), kind, f"one of {', '.join(sorted(registry))}")
    wrong = [key for key in settings if key not in _keys_of(registry[kind])]
    first = (*place, wrong[0]) if wrong else place
    if wrong:  # the key's own line; what is wrong with it, the checker says best
        check_settings(
            {key: value for key, value in settings.items() if key in {*wrong}},
            registry[kind].schema,
            _head(file, first),
        )
    for key in settings:
        _check_setting(file, place, str(key), settings, registry[kind])
    check_settings(settings, registry[kind].schema, file.where(place))


def _keys_of(kind: AdapterKind) -> Mapping[str, object]:
    """Return the settings that a kind of receiver knows."""
    properties = kind.schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _head(file: MarkedFile, place: Place) -> str:
    """Return file and line of a setting, with the key of the table that it stands in."""
    line = file.where(place).removeprefix(f"{file.path}:").partition(":")[0]
    return f"{file.path}:{line}: {'.'.join(map(str, place[:-1]))}"


def _check_setting(file: MarkedFile, place: Place, key: str, settings: Mapping[str, object], kind: AdapterKind) -> None:
    """Check one setting of a receiver by its own schema.

    Raises:
        ConfigError: its value is wrong.
    """
    schema: Schema = {"type": "object", "properties": {key: _keys_of(kind).get(key, {})}}
    check_settings({key: settings[key]}, schema, _head(file, (*place, key)))


def _check_names(file: MarkedFile, content: Mapping[str, Any]) -> None:
    """Check that each named receiver is there and that no two routes share a name.

    Raises:
        ConfigError: a name is wrong.
    """
    receivers = content["receivers"]
    seen: set[str] = set()
    for index, route in enumerate(content["routes"]):
        if route["name"] in seen:
            raise ConfigError(file.where(("routes", index, "name")), route["name"], "a name of its own")
        seen.add(route["name"])
        if route["receiver"] not in receivers:
            raise unknown_word(file.where(("routes", index, "receiver")), route["receiver"], receivers)
    if "watchdog" in content:
        _check_watchdog(file, content["watchdog"], receivers)


def _check_watchdog(file: MarkedFile, watchdog: Mapping[str, Any], receivers: Mapping[str, Any]) -> None:
    """Check that the watchdog's receiver is there and notices absence.

    Raises:
        ConfigError: it is not, or it does not.
    """
    name = watchdog["receiver"]
    where = file.where(("watchdog", "receiver"))
    if name not in receivers:
        raise unknown_word(where, name, receivers)
    kind = receivers[name]["kind"]
    if kind in _NO_WATCHDOGS:
        raise ConfigError(where, name, f"a receiver that notices absence, not {kind}: an alertmanager or a webhook")
    longest_seconds = 2.0 * float(receivers[name].get("resend_seconds", 60))
    every_seconds = float(watchdog.get("every_seconds", WATCHDOG_SECONDS))
    if kind == "alertmanager" and every_seconds > longest_seconds:
        text = (
            f"at most {longest_seconds:g}, twice the receiver's resend_seconds: the alert ends by itself thrice as late"
        )
        raise ConfigError(file.where(("watchdog", "every_seconds")), watchdog["every_seconds"], text)
