"""The agent without sockets, threads and files: what comes in, what goes out.

``AgentCore`` takes datagrams, readings and the time, and returns records. One
thread calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from tocsin.collectors.agent.datagrams import parse_datagram
from tocsin.collectors.agent.endings import Endings
from tocsin.collectors.agent.host_events import OWN_SOURCE, sighting_of
from tocsin.collectors.agent.job_state import (
    HostPlace,
    JobState,
    announce_again,
    ranks_of_event,
)
from tocsin.collectors.agent.job_table import JobTable, Refusal
from tocsin.collectors.agent.messages import (
    Beat,
    Bye,
    Datagram,
    DumpWritten,
    Exit,
    GroupList,
    Hello,
    NotFinite,
    PhaseEdge,
    StepDone,
)
from tocsin.collectors.agent.rank_state import RankState
from tocsin.collectors.agent.slicer import (
    BEFORE_END_NS,
    Boundaries,
    FrameCutter,
    metric_slice_ns,
    spread_ns,
)
from tocsin.collectors.agent.tally import Tally
from tocsin.collectors.api import HostEvent, Reading
from tocsin.collectors.clock import Now
from tocsin.collectors.owners import LocalSender, Processes
from tocsin.schemas import events
from tocsin.schemas.errors import SchemaError
from tocsin.schemas.metrics import BUILTIN_TABLE_ID
from tocsin.schemas.records import (
    IDLE_JOB_ID,
    Event,
    EventSource,
    Frame,
    HostStatus,
    JobKey,
    Record,
    Severity,
)

LOOK_NS: Final = 200_000_000
"""How often steps are looked at for being overdue: a turn comes with every datagram."""
UNKNOWN_ERROR_NS: Final = 250_000_000
"""The clocks of two hosts are taken to agree within this until they were compared."""


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """What the core needs to know.

    Attributes:
        place: this host.
        cluster: name of the cluster, for the records of an idle host.
        period_seconds: sampling period of the metrics.
        pass_on_spread: whether slices are cut half a second spread by host (tests turn it off).
    """

    place: HostPlace
    cluster: str = ""
    period_seconds: float = 1.0
    pass_on_spread: bool = True


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the core is told about the parts around it, for ``HostStatus``.

    Attributes:
        clock_offset_ns: host minus engine.
        clock_error_ns: bound of its error.
        spooled_count: records that wait in the spool.
        collectors: name -> {"ok", "seconds", "reason"}.
    """

    clock_offset_ns: int = 0
    clock_error_ns: int = UNKNOWN_ERROR_NS
    spooled_count: int = 0
    collectors: Mapping[str, Any] = field(default_factory=dict)


class Watcher(Processes, Protocol):
    """What the core asks of the process watcher."""

    def watch(self, job: JobKey, rank: int, pid: int) -> None:
        """Watch a rank's process."""

    def state(self, job: JobKey, rank: int) -> str:
        """Return the process's state letter, "" = unknown."""


class AgentCore:
    """Serves any number of jobs on one host."""

    def __init__(self, config: CoreConfig, watcher: Watcher, now: Now) -> None:
        """Start with no job; the ``agent`` start event comes with the first records."""
        self.config = config
        self.table = JobTable(config.place, watcher, self._on_forgotten)
        self.jobs = self.table.jobs
        self.tally = Tally()
        self.dumps: list[tuple[Datagram, DumpWritten]] = []
        self._watcher = watcher
        self._slice_ns = metric_slice_ns(config.period_seconds)
        self.frames = FrameCutter(round(config.period_seconds * 1e9), self._slice_ns)
        self._boundaries = Boundaries(spread_ns(config.place.host) if config.pass_on_spread else 0)
        self._boundaries.due(now.stamp_ns)
        self._started_mono_ns = now.mono_ns
        self._looked_mono_ns = 0
        self._endings = Endings()
        self._idle = JobKey(config.cluster or "default", IDLE_JOB_ID, 0)
        self._out: list[Record] = []
        self._host_event(events.AGENT, Severity.INFO, {"edge": "start"}, now)

    def take(self) -> list[Record]:
        """Return the records that are ready, oldest first; events stand where they happened."""
        out, self._out = self._out, []
        return out

    def keys(self) -> list[JobKey]:
        """Return the jobs that this host serves, the idle job where there is none."""
        return [state.job for state in self.jobs.values()] or [self._idle]

    # --- what comes in ---------------------------------------------------------------------------

    def on_datagram(self, data: bytes, sender: LocalSender, now: Now) -> None:
        """Take a datagram of a hook.

        Args:
            data: its bytes.
            sender: who sent it, as the kernel says.
            now: the time.
        """
        try:
            datagram = parse_datagram(data, now.host_ns)
        except SchemaError as error:
            self.dead_letter(error.reason, str(error))
            return
        self.tally.datagrams[type(datagram.body).__name__] += 1
        body = datagram.body
        if isinstance(body, Exit):
            owned = self.table.whose_exit(datagram, body, sender)
            if owned is None:
                self.tally.datagrams["LauncherExit"] += 1
                return
            datagram = owned
        entry = self.table.enter(datagram, sender, now)
        if isinstance(entry, Refusal):
            self.dead_letter(*entry)
            return
        state = entry.state
        if entry.is_new:
            self._on_new_job(state, now)
        if datagram.rank < 0:  # the exit of a launcher that is no rank itself
            self._hook_event(datagram, now)
            return
        rank = self.table.claim(state, datagram, sender)
        if isinstance(rank, Refusal):
            self.dead_letter(*rank)
        elif isinstance(body, Exit):
            self._on_exit(state, rank, datagram, now)
        else:
            self._on_hook(state, rank, datagram, sender, now)

    def dead_letter(self, reason: str, text: str) -> None:
        """Count a message that is not as agreed; each text is logged once."""
        self.tally.dead_letter(reason, text)

    def on_reading(self, tick_ns: int, reading: Reading, now: Now) -> None:
        """Take what a collector saw at ``tick_ns`` (a corrected stamp)."""
        if reading.host or reading.gpus:
            self.frames.add(tick_ns, reading.host, reading.gpus)
        if self.table.gpus.update(reading.places):
            announce_again(self.jobs.values())
        for sighting in reading.events:
            self._on_sighting(sighting, now)

    def on_clock_jump(self, jump_ns: int, now: Now) -> None:
        """The host's wall clock was set, by more than half a second."""
        self.frames.clock_jumped()
        payload = {"step_seconds": round(jump_ns / 1e9, 6)}
        self._host_event(events.CLOCK_STEP, Severity.WARNING, payload, now)

    def on_clock_ahead(self, ahead_ns: int, now: Now) -> None:
        """The engine refused our stamps; from now on they are corrected."""
        self.frames.clock_jumped()
        payload = {"ahead_seconds": round(ahead_ns / 1e9, 6)}
        self._host_event(events.CLOCK_AHEAD, Severity.WARNING, payload, now)

    def on_spool_overflow(self, dropped_count: int, now: Now) -> None:
        """Records were lost because the spool is full."""
        self._host_event(events.SPOOL_OVERFLOW, Severity.WARNING, {"dropped_count": dropped_count}, now)

    def on_stop(self, now: Now) -> None:
        """The agent ends in order: the slice that is open is cut now, for nobody will cut it at its end."""
        for state in self.jobs.values():
            self._out.extend(state.cut_early(now))
        self._host_event(events.AGENT, Severity.INFO, {"edge": "stop"}, now)

    def on_time(self, now: Now, around: Callable[[], Surroundings], catch_up: Callable[[], None] | None = None) -> None:
        """Say which steps are overdue, cut the slices that have passed; first ``catch_up`` with the datagrams if so."""
        ends_ns = self._boundaries.due(now.stamp_ns)
        if catch_up is not None and (ends_ns or any(state.is_late(now) for state in self.jobs.values())):
            catch_up()
        if now.mono_ns - self._looked_mono_ns >= LOOK_NS:
            self._looked_mono_ns = now.mono_ns
            self._look(now)
        for end_ns in ends_ns:
            metric_slice = end_ns % self._slice_ns == 0
            for state in self.jobs.values():
                self._out.extend(state.cut(end_ns, now, metric_slice=metric_slice))
            if metric_slice:
                self._cut_metrics(end_ns, now, around())

    def wait_seconds(self, now: Now) -> float:
        """Return how long nothing is due but what comes in."""
        return self._boundaries.wait_seconds(now.stamp_ns)

    # --- datagrams -------------------------------------------------------------------------------

    def _on_new_job(self, state: JobState, now: Now) -> None:
        """A job, or an attempt of it, begins on this host: what ended before explains nothing any more."""
        self._endings.begins(state.job, state.sender.uid)
        age_seconds = round((now.mono_ns - self._started_mono_ns) / 1e9, 3)
        payload = {"edge": "start", "age_seconds": age_seconds}
        self._event(state.job, -1, now.stamp_ns, HostEvent(events.AGENT, OWN_SOURCE, Severity.INFO, payload))

    def _on_forgotten(self, state: JobState) -> None:
        """A job, or an attempt of it, is over on this host."""
        self._endings.leaves(state.job, state.sender.uid)
        for number in state.ranks:
            self._watcher.settle(state.job, number)

    def _on_hook(self, state: JobState, rank: RankState, datagram: Datagram, sender: LocalSender, now: Now) -> None:
        """Take what a rank's own hook says."""
        body = datagram.body
        if isinstance(body, Hello):
            rank = self._on_hello(state, rank, datagram, body, sender, now)
        rank.spoke(now)
        if isinstance(body, StepDone):
            state.on_step(rank, datagram, body, now)
        elif isinstance(body, Beat):
            state.on_beat(rank, datagram, body, now)
        elif isinstance(body, GroupList):
            state.on_groups(rank, body)
        elif isinstance(body, DumpWritten):
            self.dumps.append((datagram, body))
        elif isinstance(body, PhaseEdge):
            rank.on_phase(body, now)
            self._hook_event(datagram, now)
        elif isinstance(body, NotFinite):
            self._hook_event(datagram, now)
        elif isinstance(body, Bye):
            self._on_bye(state, rank, datagram, now)

    def _on_bye(self, state: JobState, rank: RankState, datagram: Datagram, now: Now) -> None:
        """A rank says goodbye; its exit, where it was told before, says more."""
        if rank.ended == "exit":
            self._watcher.settle(state.job, rank.rank)
            self._hook_event(datagram, now)
            return
        rank.end("bye", now)
        self._on_end(state, datagram, now)

    def _on_hello(
        self,
        state: JobState,
        rank: RankState,
        datagram: Datagram,
        hello: Hello,
        sender: LocalSender,
        now: Now,
    ) -> RankState:
        """Take a hello: the first one of a process is an event."""
        pid = sender.pid or hello.pid
        if rank.hello is None or rank.pid != pid:
            if rank.hello is not None:  # another process of a container whose processes cannot be told apart
                state.restart(rank.rank)
                rank, before = state.rank(rank.rank), rank
                rank.holder = before.holder
            rank.pid = pid
            self._endings.lives(state.job, rank.rank, state.sender.uid)
            self._hook_event(datagram, now)
        state.on_hello(rank, hello)
        if not rank.ended and sender.pid:
            self._watcher.watch(state.job, rank.rank, sender.pid)
        return rank

    def _on_exit(self, state: JobState, rank: RankState, datagram: Datagram, now: Now) -> None:
        """Take what a supervisor says: the process is gone."""
        if rank.ended == "exit":
            return
        rank.end("exit", now)
        self._on_end(state, datagram, now)

    def _on_end(self, state: JobState, datagram: Datagram, now: Now) -> None:
        """A rank said goodbye, or its exit was reported."""
        self._watcher.settle(state.job, datagram.rank)
        self._hook_event(datagram, now)
        stamp_ns, sighting = datagram.ts_ns - now.correction_ns, sighting_of(datagram.body)
        self._endings.add(state.job, datagram.rank, state.sender.uid, sighting, stamp_ns, now)

    def _hook_event(self, datagram: Datagram, now: Now) -> None:
        sighting = sighting_of(datagram.body)
        self._event(datagram.job, datagram.rank, datagram.ts_ns - now.correction_ns, sighting)

    # --- events ----------------------------------------------------------------------------------

    def _on_sighting(self, sighting: HostEvent, now: Now) -> None:
        job = sighting.job
        if job is None:
            about = ranks_of_event(sighting.payload, self.jobs.values())
            for key, number in about or [(key, sighting.rank) for key in self.keys()]:
                self._event(key, number, now.stamp_ns, sighting)
            return
        state = self.jobs.get((job.cluster, job.job_id))
        if state is None or state.job != job:
            return  # a job that is over, or an attempt before
        if sighting.name == events.PROCESS_GONE:
            rank = state.ranks.get(sighting.rank)
            if rank is None or rank.ended:
                return  # the exit came while the watcher looked
            rank.end("gone", now)
            self._endings.add(job, sighting.rank, state.sender.uid, sighting, now.stamp_ns, now)
        self._event(job, sighting.rank, now.stamp_ns, sighting)

    def _look(self, now: Now) -> None:
        """Say which steps are overdue, and again what ended; forget the jobs that are over."""
        for state in self.jobs.values():
            for number, payload in state.stall_news(now):
                payload["process_state"] = self._watcher.state(state.job, number)
                sighting = HostEvent(events.STALL, EventSource.PROCESS, Severity.WARNING, payload)
                self._event(state.job, number, now.stamp_ns, sighting)
        self.table.forget_over(now)
        for job, number, again in self._endings.due(now):
            self._event(job, number, now.stamp_ns, again)

    def _host_event(self, name: str, severity: Severity, payload: Mapping[str, Any], now: Now) -> None:
        self._on_sighting(HostEvent(name, OWN_SOURCE, severity, payload), now)

    def _event(self, job: JobKey, rank: int, ts_ns: int, sighting: HostEvent) -> None:
        self.tally.events[sighting.name] += 1
        host, said = self.config.place.host, sighting
        self._out.append(Event(job, host, ts_ns, rank, said.source, said.name, said.severity, said.payload))

    # --- metric slices ---------------------------------------------------------------------------

    def _cut_metrics(self, end_ns: int, now: Now, around: Surroundings) -> None:
        cut = self.frames.cut(end_ns)
        host, ts_ns = self.config.place.host, end_ns - BEFORE_END_NS
        for job in self.keys():
            state = self.jobs.get((job.cluster, job.job_id))
            held = state.gpu_uuids() if state else set()
            # nobody said who holds which GPU: the only job there is holds them all
            holds_all = not held and len(self.jobs) <= 1
            uuids = tuple(sorted(uuid for uuid in cut.gpu_matrices if holds_all or uuid in held))
            if not cut.is_empty:
                self._out.append(
                    Frame(
                        job=job,
                        host=host,
                        ts_ns=ts_ns,
                        table_id=BUILTIN_TABLE_ID,
                        first_tick_ns=cut.first_tick_ns,
                        tick_ns=round(self.config.period_seconds * 1e9),
                        tick_count=cut.tick_count,
                        gpu_uuids=uuids,
                        gpu_matrix=cut.gpu_matrix(uuids),
                        host_matrix=cut.host_matrix,
                    )
                )
            self._out.append(self._status(job, state, ts_ns, now, around))

    def _status(self, job: JobKey, state: JobState | None, ts_ns: int, now: Now, around: Surroundings) -> HostStatus:
        ranks = state.ranks.values() if state else ()
        return HostStatus(
            job=job,
            host=self.config.place.host,
            ts_ns=ts_ns,
            clock_offset_ns=around.clock_offset_ns,
            clock_error_ns=around.clock_error_ns,
            ranks_seen=state.ranks_seen(now.mono_ns - self._slice_ns) if state else (),
            hook_present=bool(state and state.hello_seen),
            dropped_count=sum(rank.dropped_count for rank in ranks),
            spooled_count=around.spooled_count,
            collectors=around.collectors,
        )
