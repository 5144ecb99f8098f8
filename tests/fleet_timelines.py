"""A fleet of hosts that the fleet view watches, and the pager behind it, for timelines of weeks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from tocsin.pipeline.alerts.notice import AlertSeverity, Notice, NoticeKind
from tocsin.pipeline.alerts.router import AlertRouter, RouterConfig
from tocsin.pipeline.alerts.routes import Route, RouteConfig
from tocsin.pipeline.incidents.fleet.config import FleetConfig
from tocsin.pipeline.incidents.fleet.intake import tell_records
from tocsin.pipeline.incidents.fleet.view import FleetView
from tocsin.pipeline.lab.testing import Scenario
from tocsin.schemas.operator_notes import Feedback
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import (
    IDLE_JOB_ID,
    NS_PER_SECOND,
    Event,
    EventSource,
    JobKey,
    JobRecord,
    Severity,
)
from tocsin.schemas.verdicts import (
    ActionKind,
    Component,
    ComponentKind,
    Evidence,
    FaultKind,
    Suspect,
    Verdict,
    VerdictState,
    Witness,
    WitnessKind,
)

START_NS = 1_800_000_000 * NS_PER_SECOND
HOUR = 3600.0


def named(verdict: Verdict) -> list[str]:
    """Return the names of a verdict's suspects."""
    return [one.component.name for one in verdict.suspects]


class Pager:
    """A route that tells all, and what it told.

    Attributes:
        told: all notices, oldest first.
    """

    def __init__(self, covering: Callable[[str], str]) -> None:
        """Start with nothing told; ``covering`` returns the fleet incident that stands for a verdict's id."""
        self._covering = covering
        self._router = self._new()
        self.told: list[Notice] = []

    def _new(self) -> AlertRouter:
        config = RouterConfig(RouteConfig({}, (Route("all", "pager"),)))
        return AlertRouter(config, covered_by=lambda one: self._covering(one.verdict_id))

    def take(self, lines: Sequence[Verdict], now_ns: int) -> None:
        """Give it the lines of a moment."""
        self.told += self._router.on_verdicts(lines, now_ns)

    def restart(self) -> None:
        """Go on with a new router that loads the old one's state."""
        state = json.loads(json.dumps(self._router.to_state()))
        self._router = self._new()
        self._router.load_state(state)

    @property
    def pages(self) -> list[Notice]:
        """What woke somebody."""
        return [one for one in self.told if (one.kind, one.severity) == (NoticeKind.FIRING, AlertSeverity.PAGE)]

    @property
    def kinds(self) -> list[NoticeKind]:
        """What was said, oldest first."""
        return [one.kind for one in self.told]


class Fleet:
    """A fleet of hosts that are heard at each step of the time.

    Attributes:
        view: the view.
        lines: all lines of the view.
        pager: who is told of them, and of the jobs' verdicts.
    """

    def __init__(self, host_count: int = 288, leaf_hosts_count: int = 16) -> None:
        """Start with idle hosts."""
        self.view = FleetView(FleetConfig(), "c")
        self.hosts = [f"n{row:03d}" for row in range(host_count)]
        self.leaf_hosts_count = leaf_hosts_count
        self.seconds = 0.0
        self.lines: list[Verdict] = []
        self.busy: dict[str, str] = {}
        self.mute: set[str] = set()
        self._waiting: list[Verdict] = []
        self.pager = Pager(lambda name: self.view.covering(name))  # noqa: PLW0108  # a restart replaces the view
        self.at(0.0)
        for row, host in enumerate(self.hosts):
            self.view.hosts.place(host, f"leaf{row // leaf_hosts_count}")

    @property
    def now_ns(self) -> int:
        """The present time."""
        return START_NS + int(self.seconds * NS_PER_SECOND)

    def at(self, seconds: float) -> None:
        """Let the time go on to a second."""
        self.seconds = seconds
        for host in self.hosts:
            if host not in self.mute:
                self.view.hosts.heard(host, self.busy.get(host, IDLE_JOB_ID), self.now_ns)
        lines, self._waiting = self._waiting, []
        own = self.view.on_time(self.now_ns)
        self.lines += own
        self.pager.take([*lines, *own], self.now_ns)

    def run(self, seconds: float, step: float = 30.0) -> None:
        """Let the time pass in small steps."""
        end = self.seconds + seconds
        while self.seconds < end:
            self.at(min(end, self.seconds + step))

    def event(self, host: str, name: str, age_seconds: float = 0.0, job: str = "", **payload: object) -> None:
        """Let a host report a fatal event."""
        key = JobKey("c", job or self.busy.get(host, IDLE_JOB_ID))
        ts_ns = self.now_ns - int(age_seconds * NS_PER_SECOND)
        reported = Event(key, host, ts_ns, -1, EventSource.KERNEL, name, Severity.FATAL, payload)
        self.view.on_host_events([reported], self.now_ns)

    def verdict(self, host: str, xid: int, job: str = "j1", *seen_by: str, check: bool = False) -> Verdict:
        """Give view and pager a job's confirmed verdict about a host, and return it."""
        made = self.make(host, xid, job, *seen_by, check=check)
        self.line(made)
        return made

    def make(self, host: str, xid: int, job: str = "j1", *seen_by: str, check: bool = False) -> Verdict:
        """Return a job's confirmed verdict about a host, of now."""
        witnesses = [Witness(one, WitnessKind.PEERS_WAIT) for one in seen_by]
        witnesses += [Witness(host, WitnessKind.CHECK)] if check else []
        return Verdict(
            f"{job}-{host}-{xid}-{int(self.seconds)}",
            JobKey("c", job),
            FaultKind.FAIL_STOP,
            "gpu_execution_error",
            (Suspect(Component(ComponentKind.HOST, host)),),
            self.now_ns,
            self.now_ns,
            0.9,
            ActionKind.EVICT,
            Reason.HARDWARE_EVENT.value,
            (Evidence("hardware", "xid", 2.0, self.now_ns, self.now_ns, f"{host}: XID {xid}: broken"),),
            VerdictState.CONFIRMED,
            0,
            self.now_ns,
            None,
            tuple(witnesses),
        )

    def line(self, line: Verdict) -> None:
        """Give the view, and at the next moment the pager, a line of a job's verdict."""
        self.view.on_verdicts([line], self.now_ns)
        self._waiting.append(line)

    def feedback(self, verdict_id: str, *, is_true: bool) -> None:
        """Let a person judge a verdict."""
        said = Feedback("c", verdict_id, is_true, "looked at it", "uid:1", self.now_ns)
        self.view.on_feedback(said, self.now_ns)

    def opened(self, job: str = "") -> list[Verdict]:
        """First lines, of one job or of all."""
        return [one for one in self.lines if one.update == 0 and job in ("", one.job.job_id)]

    def restart(self) -> None:
        """Go on with a new view that restores the old one's state."""
        parts = self.view.snapshot()
        self.view = FleetView(FleetConfig(), "c")
        self.view.restore(parts)
        assert self.view.snapshot() == parts


class ToldJob:
    """Fleet view and pager beside a scenario of one job.

    Attributes:
        view: the view of the job's cluster.
        pager: who is told of the job's and the view's verdicts.
        moments: time -> lines of the job's verdicts.
    """

    def __init__(self, scenario: Scenario) -> None:
        """Follow a scenario from its begin."""
        self.view = FleetView(FleetConfig(), scenario.job.job.cluster)
        self.pager = Pager(self.view.covering)
        self.moments: list[tuple[int, list[Verdict]]] = []
        scenario.followers.append(self.take)

    def take(self, records: Sequence[JobRecord], lines: Sequence[Verdict], now_ns: int) -> None:
        """Take one second of the job."""
        self.moments.append((now_ns, list(lines)))
        tell_records(self.view, records, now_ns)
        self.view.on_verdicts(lines, now_ns)
        self.pager.take([*lines, *self.view.on_time(now_ns)], now_ns)
