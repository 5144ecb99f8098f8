"""The fleet view of one cluster: joins what hosts report over all jobs and attempts, idle hosts included."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.pipeline.incidents.fleet.book import DETECTOR, FleetBook, Opening
from tocsin.pipeline.incidents.fleet.config import FleetConfig, FleetReason
from tocsin.pipeline.incidents.fleet.floods import Floods
from tocsin.pipeline.incidents.fleet.hosts import FleetHosts
from tocsin.pipeline.incidents.fleet.jobs import FleetJobs
from tocsin.pipeline.incidents.fleet.late_starts import KEY as STARTS_KEY
from tocsin.pipeline.incidents.fleet.late_starts import LateStarts
from tocsin.pipeline.incidents.fleet.offenders import Offenders
from tocsin.pipeline.incidents.fleet.signals import (
    Signal,
    is_old,
    part_name,
    rests_on_own_word,
    signal_name_of,
    signal_of,
)
from tocsin.schemas import events as names
from tocsin.schemas.action_events import JobFacts, MachineFacts
from tocsin.schemas.causes import CAUSES
from tocsin.schemas.hardware import HARDWARE_EVENTS, cause_of_event
from tocsin.schemas.operator_notes import Feedback, Maintenance
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import IDLE_JOB_ID, Event, HostStatus
from tocsin.schemas.verdicts import ActionKind, ComponentKind, FaultKind, Verdict, VerdictState

_PART: Final = "fleet"
_SET_BACK_NS: Final = 3600 * 1_000_000_000
"""A time this much earlier than the newest is a clock that was set; a smaller step back is a replay."""


class FleetView:
    """The fleet's own incidents, and which verdicts they stand for.

    Attributes:
        cluster: name of the cluster.
        hosts: what is known of the hosts.
        jobs: what ranks told of their jobs.
        counters: numbers of events by what became of them.
    """

    def __init__(self, config: FleetConfig, cluster: str) -> None:
        """Start knowing no host.

        Args:
            config: settings.
            cluster: name of the cluster.
        """
        self._config = config
        self.cluster = cluster
        self.counters: dict[str, int] = {}
        self._begin()

    def _begin(self) -> None:
        config = self._config
        self._now_ns = 0
        self.hosts = FleetHosts(config)
        self.jobs = FleetJobs(self.cluster)
        self._book = FleetBook(config, self.cluster)
        self._floods = Floods(config, self.hosts, self._book)
        self._offenders = Offenders(config, self.hosts.is_planned)
        self._late_starts = LateStarts(config, self.hosts.is_planned)
        self._samples: dict[tuple[str, str], list[int]] = {}
        """Host and signal -> times of consecutive samples of an idle host."""
        self._standing: dict[tuple[str, str, str], Signal] = {}
        """Host, signal and part -> a state of an idle host that was not taken back."""
        self._closed_ns: dict[str, int] = {}
        """Key -> when its incident was closed: what was reported before opens it no more."""

    @property
    def live(self) -> tuple[Verdict, ...]:
        """The fleet view's own verdicts that stand."""
        return tuple(self._book.live.values())

    def facts(self) -> Iterator[MachineFacts | JobFacts]:
        """Yield what agents and ranks told of machines and jobs, with time 0; any thread may ask."""
        yield from self.hosts.machines(self.cluster)
        yield from self.jobs.facts()

    def covering(self, verdict_id: str) -> str:
        """Return the id of the fleet incident that stands for a verdict, "": none does."""
        return self._floods.covering(verdict_id)

    def covers(self) -> dict[str, str]:
        """Return verdict id -> id of the fleet incident that stands for it."""
        return self._floods.covers()

    def on_verdicts(self, verdicts: Sequence[Verdict], now_ns: int) -> None:
        """Take verdict lines of the cluster's jobs; the view's own lines are left out.

        Args:
            verdicts: lines; one that comes again changes nothing.
            now_ns: the present time.
        """
        for verdict in verdicts:
            if any(evidence.detector == DETECTOR for evidence in verdict.evidence):
                continue
            self._offenders.take(verdict)
            self._late_starts.take(verdict)
            is_live = verdict.state in (VerdictState.OPEN, VerdictState.CONFIRMED)
            suspects = [one.component.name for one in verdict.suspects if one.component.kind is ComponentKind.HOST]
            if not is_live or not suspects or verdict.reason == Reason.CANARY.value:
                self._floods.forget_member(verdict.verdict_id)
                continue
            cause = CAUSES.get(verdict.cause)
            if cause is None or cause.blames != "machine":
                continue  # programs fail everywhere, every day: that is nothing that machines share
            name = signal_name_of(verdict)
            for host in suspects:
                self._floods.saw(name, verdict.cause, host, verdict.onset_ns, now_ns)
            self._floods.add_member(verdict.verdict_id, name, suspects, own_word=rests_on_own_word(verdict))

    def on_host_events(self, events: Sequence[Event], now_ns: int) -> None:
        """Take events of hosts, of whatever job; ``idle`` is the job of a host without one.

        Args:
            events: events in the order of their times.
            now_ns: the present time.
        """
        for event in events:
            if event.name == names.INCIDENT_CLOSE:
                self._close_by_human(event, now_ns)
                continue
            if event.name == names.HELLO:
                self.jobs.told(event)
                self._late_starts.heard(event.host, event.job.job_id, event.job.attempt)
            if event.name == names.HOST_FACTS:
                self.hosts.heard(event.host, event.job.job_id, event.ts_ns)
                self.hosts.told(event)
            if event.name == names.AGENT:
                self._on_agent(event, now_ns)
            if event.name not in HARDWARE_EVENTS:
                continue
            signal = signal_of(event)
            if signal is None:
                self._count("no_signal")
                self._well(event, now_ns)
            elif is_old(event, now_ns, self._config.oldest_ns):
                self._count("too_old")
            else:
                self._floods.saw(signal.name, signal.cause, signal.host, signal.ts_ns, now_ns)
                if event.job.job_id == IDLE_JOB_ID:
                    self._on_idle(signal, now_ns)

    def on_status(self, status: HostStatus, now_ns: int) -> None:
        """Take an agent's heartbeat: its host is there, and some of its collectors may have begun to fail."""
        self.hosts.heard(status.host, status.job.job_id, status.ts_ns)
        failed, well = self.hosts.collectors(status.host, status.collectors)
        for name in failed:
            self._floods.saw(f"collector:{name}", "monitoring_fault", status.host, status.ts_ns, now_ns)
        for name in well:
            self._floods.unsaw(f"collector:{name}", status.host)

    def on_maintenance(self, work: Maintenance) -> None:
        """Take planned work on a host or a leaf."""
        self.hosts.plan(work)

    def on_feedback(self, said: Feedback, now_ns: int) -> None:
        """Take a person's judgement of a verdict; of several on one verdict the latest counts."""
        if said.cluster != self.cluster:
            return
        self._offenders.judge(said)
        if said.is_true:
            return
        self._late_starts.denied(said.verdict_id)
        key = self._book.key_of(said.verdict_id)
        freed = [one for one in self._book.live if one.startswith("repeat/")]
        freed = [one for one in freed if not self._offenders.is_one(one.removeprefix("repeat/"), now_ns)]
        for one in {key, *freed} - {""}:
            self._close(one, now_ns, VerdictState.CANCELLED, FleetReason.DENIED, f"{said.actor}: {said.note}")

    def on_time(self, now_ns: int) -> list[Verdict]:
        """Return the lines that became due; call it once a second.

        Args:
            now_ns: the present time. An earlier one than before is a replay and changes nothing, unless it is an hour
                earlier: then the clock was set, and the view begins anew.
        """
        if now_ns < self._now_ns - _SET_BACK_NS:
            self._begin()
        if now_ns <= self._now_ns:
            return self._book.take()
        self.hosts.on_time(now_ns)
        self._now_ns = now_ns
        self._floods.look(now_ns)
        self._look_at_standing(now_ns)
        self._end_works(now_ns)
        self._cover_own(now_ns)
        self._age(now_ns)
        self._tell_offenders(now_ns)
        self._tell_late_starts(now_ns)
        self._book.renew(now_ns)
        return self._book.take()

    def status(self) -> dict[str, Any]:
        """Return numbers of hosts and incidents, as a JSON-able object."""
        return {
            "cluster": self.cluster,
            "hosts_known": self.hosts.count,
            "hosts_idle": self.hosts.idle_count(self._now_ns),
            "host_incidents": sum(key.startswith("host/") for key in list(self._book.live)),
            "fleet_incidents": sum(key.startswith("fleet/") for key in list(self._book.live)),
            "repeat_offenders": sum(key.startswith("repeat/") for key in list(self._book.live)),
            "covered_verdicts": self._floods.covered_count,
            "events": dict(self.counters),
        }

    def _count(self, what: str) -> None:
        self.counters[what] = self.counters.get(what, 0) + 1

    def _on_idle(self, signal: Signal, now_ns: int) -> None:
        """Open an incident of an idle host, where its signal is certain or has lasted."""
        key = f"host/{signal.host}/{signal.name}"
        if not signal.accuses or key in self._book.live or signal.ts_ns <= self._closed_ns.get(key, 0):
            return
        if signal.stands:
            self._standing.setdefault((signal.host, signal.name, signal.part), signal)
            while len(self._standing) > self._config.max_hosts_count:
                del self._standing[next(iter(self._standing))]
        times = self._samples.pop((signal.host, signal.name), [])
        if times and signal.ts_ns - times[-1] > self._config.sample_gap_ns:
            times = []
        if not times or signal.ts_ns > times[-1]:
            times = [*times[:1], *times[1:][-self._config.sample_count :], signal.ts_ns]
        self._samples[signal.host, signal.name] = times
        while len(self._samples) > self._config.max_hosts_count:
            del self._samples[next(iter(self._samples))]
        lasted = len(times) >= self._config.sample_count and times[-1] - times[0] >= self._config.lasting_ns
        if signal.is_certain or lasted:
            self._open_of_host(signal, times[0], now_ns)

    def _look_at_standing(self, now_ns: int) -> None:
        """Open an incident for each state of an idle host that has stood for long."""
        for (host, name, _), signal in list(self._standing.items()):
            key = f"host/{host}/{name}"
            if now_ns - signal.ts_ns < self._config.sample_gap_ns or key in self._book.live:
                continue
            if self.hosts.work_on(host, now_ns) is not None:
                continue  # a port without its cable: told where it stands when the work has ended
            if signal.ts_ns > self._closed_ns.get(key, 0) and not self.hosts.is_busy(host, now_ns):
                self._open_of_host(signal, signal.ts_ns, now_ns)

    def _open_of_host(self, signal: Signal, onset_ns: int, now_ns: int) -> None:
        """Open the incident of an idle host, unless very many stand."""
        if len(self._book.live) >= self._config.max_covered_count:
            self._count("too_many_incidents")
            return
        key = f"host/{signal.host}/{signal.name}"
        reason = FleetReason.CERTAIN_SIGNAL if signal.is_certain else FleetReason.LASTING_SIGNAL
        works = self.hosts.work_on(signal.host, now_ns)
        texts = [f"{signal.host}: {signal.text}; it runs no job"]
        texts += [f"planned work on it: {works.reason} ({works.actor})"] if works is not None else []
        action = ActionKind.NONE if works is not None else ActionKind.DRAIN
        fault = FaultKind(signal.fault)
        contents = (signal.cause, onset_ns, reason, action, tuple(texts), signal.name, (signal.host,))
        opening = Opening(IDLE_JOB_ID, fault, *contents)
        verdict = self._book.open(key, opening, now_ns)
        self._offenders.take(verdict)
        self._floods.add_member(verdict.verdict_id, signal.name, [signal.host], own_word=True)

    def _on_agent(self, event: Event, now_ns: int) -> None:
        """Resolve what a host reported before its agent began anew under planned work: it was booted."""
        is_start = event.payload.get("edge") == "start" and "age_seconds" not in event.payload
        if not is_start or self.hosts.work_on(event.host, event.ts_ns) is None:
            return
        for at in [at for at, one in self._standing.items() if at[0] == event.host and one.ts_ns <= event.ts_ns]:
            del self._standing[at]
        for key in [key for key in self._book.live if key.startswith(f"host/{event.host}/")]:
            name = key.split("/", 2)[2]
            if max(self._floods.last_ns(name, event.host), self._book.live[key].onset_ns) <= event.ts_ns:
                self._floods.unsaw(name, event.host)
                self._close(key, now_ns, VerdictState.RESOLVED, FleetReason.BOOTED)

    def _end_works(self, now_ns: int) -> None:
        """Propose an action for each host whose planned work has ended while its incident stands."""
        for key, verdict in list(self._book.live.items()):
            is_held = key.startswith("host/") and verdict.action is ActionKind.NONE
            if is_held and self.hosts.work_on(key.split("/", 2)[1], now_ns) is None:
                self._book.change(key, now_ns, FleetReason.WORK_ENDED.value, action=ActionKind.DRAIN)

    def _well(self, event: Event, now_ns: int) -> None:
        """Close the incidents of a part that is reported as well."""
        if event.payload.get("code") is None and cause_of_event(event) is None:
            self._standing.pop((event.host, event.name, part_name(event)), None)
            if any((host, name) == (event.host, event.name) for host, name, _ in self._standing):
                return  # another part of it is not well
            self._floods.unsaw(event.name, event.host)
            key = f"host/{event.host}/{event.name}"
            if key in self._book.live and event.ts_ns > self._book.live[key].onset_ns:
                self._close(key, now_ns, VerdictState.RESOLVED, FleetReason.HOST_SAYS_WELL)

    def _close_by_human(self, event: Event, now_ns: int) -> None:
        """Resolve the own incident that a person closes."""
        key = self._book.key_of(str(event.payload.get("id", "")))
        if key and event.host == names.CONTROL_HOST:
            text = f"closed by {event.payload.get('actor', '')}: {event.payload.get('note', '')}"
            self._close(key, now_ns, VerdictState.RESOLVED, Reason.CLOSED_BY_HUMAN, text)

    def _close(self, key: str, now_ns: int, state: VerdictState, reason: FleetReason | Reason, text: str = "") -> None:
        verdict_id = self._book.live[key].verdict_id
        self._book.close(key, now_ns, state, reason.value, text)
        self._closed_ns.pop(key, None)
        self._closed_ns[key] = now_ns
        while len(self._closed_ns) > self._config.max_covered_count:
            del self._closed_ns[next(iter(self._closed_ns))]
        if key.startswith("fleet/"):
            self._floods.ended(key, now_ns, verdict_id)
        if key.startswith("host/"):
            _, host, name = key.split("/", 2)
            self._samples.pop((host, name), None)
            self._floods.forget_member(verdict_id)

    def _cover_own(self, now_ns: int) -> None:
        """Let own incidents of hosts that a fleet incident stands for propose nothing but to tell."""
        for key, verdict in list(self._book.live.items()):
            if key.startswith("host/") and verdict.action is ActionKind.DRAIN and self.covering(verdict.verdict_id):
                self._book.change(key, now_ns, FleetReason.COVERED.value, action=ActionKind.NOTIFY)

    def _age(self, now_ns: int) -> None:
        """Close incidents of hosts that work again or are not heard of any more, and of signals that are gone."""
        for key, verdict in list(self._book.live.items()):
            if key.startswith("host/"):
                _, host, name = key.split("/", 2)
                last_ns = max(self._floods.last_ns(name, host), verdict.onset_ns)
                if self.hosts.worked_ns(host, last_ns, now_ns) >= self._config.works_ns:
                    self._close(key, now_ns, VerdictState.RESOLVED, FleetReason.WORKS_AGAIN)
                elif now_ns - last_ns > self._config.host_lapse_ns:
                    self._close(key, now_ns, VerdictState.EXPIRED, FleetReason.NO_NEWS)
            elif key.startswith("fleet/") and (why := self._floods.gone(key, now_ns)) is not None:
                self._close(key, now_ns, VerdictState.RESOLVED, why)
            elif key.startswith("repeat/") and not self._offenders.is_one(key.removeprefix("repeat/"), now_ns):
                self._close(key, now_ns, VerdictState.RESOLVED, FleetReason.NO_NEWS)

    def _tell_offenders(self, now_ns: int) -> None:
        """Open an incident for each host whose faults were upheld too often."""
        for offender in self._offenders.found(now_ns):
            key = f"repeat/{offender.host}"
            if key in self._book.live or offender.upheld_ns <= self._closed_ns.get(key, 0):
                continue
            job_id = offender.job_id if self.hosts.is_busy(offender.host, now_ns) else IDLE_JOB_ID
            why, action = FleetReason.REPEAT_OFFENDER, self._config.repeat_action
            contents = (offender.cause, offender.onset_ns, why, action, (offender.text,), "upheld_verdicts")
            self._book.open(key, Opening(job_id, FaultKind.DEGRADED, *contents, (offender.host,)), now_ns)

    def _tell_late_starts(self, now_ns: int) -> None:
        """Open an incident for each host that was late in start after start, and close those of hosts in time."""
        found = dict(self._late_starts.found(now_ns))
        for key in [key for key in self._book.live if key.startswith(STARTS_KEY) and key not in found]:
            self._close(key, now_ns, VerdictState.RESOLVED, FleetReason.STARTS_IN_TIME)
        for key, opening in found.items():
            if key not in self._book.live and opening.onset_ns > self._closed_ns.get(key, 0):
                self._book.open(key, opening, now_ns)

    def snapshot(self) -> dict[str, bytes]:
        """Return the state as named parts."""
        state = {
            "now_ns": self._now_ns,
            "hosts": self.hosts.to_state(),
            "jobs": self.jobs.to_state(),
            "book": self._book.to_state(),
            "floods": self._floods.to_state(),
            "offenders": self._offenders.to_state(),
            "late_starts": self._late_starts.to_state(),
            "samples": [[host, name, times] for (host, name), times in self._samples.items()],
            "standing": [asdict(signal) for signal in self._standing.values()],
            "closed_ns": list(self._closed_ns.items()),
            "counters": self.counters,
        }
        return {_PART: pack_state(state)}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace the state by the parts that ``snapshot`` returned.

        Raises:
            SnapshotError: the part is missing, damaged or of another version.
        """
        state = unpack_state(parts, _PART)
        self._begin()
        self._now_ns = state["now_ns"]
        self.hosts.load_state(state["hosts"])
        self.jobs.load_state(state.get("jobs", ()))  # a state of before has none
        self._book.load_state(state["book"])
        self._floods.load_state(state["floods"])
        self._offenders.load_state(state["offenders"])
        self._late_starts.load_state(state.get("late_starts", ()))  # a state of before has none
        self._samples = {(host, name): list(times) for host, name, times in state["samples"]}
        standing = [Signal(**fields) for fields in state["standing"]]
        self._standing = {(one.host, one.name, one.part): one for one in standing}
        self._closed_ns = dict(map(tuple, state["closed_ns"]))
        self.counters = dict(state["counters"])
