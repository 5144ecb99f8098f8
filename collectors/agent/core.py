"""The agent's core, without sockets, threads and files.

``AgentCore`` takes datagrams, readings and the time, and returns records. One thread calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tocsin.collectors.agent.datagrams import parse_datagram
from tocsin.collectors.agent.endings import Endings
from tocsin.collectors.agent.host_events import OWN_SOURCE, hook_event, with_minipod
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
    LoaderReport,
    ModelWork,
    NotFinite,
    PhaseEdge,
    StageEdge,
    StepDone,
)
from tocsin.collectors.agent.metric_slices import MetricSlices, ServedJob, Surroundings
from tocsin.collectors.agent.rank_state import RankState
from tocsin.collectors.agent.slicer import Boundaries, spread_ns
from tocsin.collectors.agent.tally import Tally
from tocsin.collectors.api import HostEvent, Reading
from tocsin.collectors.clock import Now
from tocsin.collectors.owners import LocalSender, Processes
from tocsin.schemas import events
from tocsin.schemas.errors import SchemaError
from tocsin.schemas.records import (
    IDLE_JOB_ID,
    Event,
    EventSource,
    JobKey,
    Record,
    Severity,
)

LOOK_NS: Final = 200_000_000
"""Least time between two checks for overdue steps; ``on_time`` is called with every datagram."""


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """Settings of the core.

    Attributes:
        place: this host's name and place in the network.
        cluster: name of the cluster, for the records of an idle host.
        period_seconds: sampling period of the metrics.
        pass_on_spread: whether hosts send spread over half a second after a boundary (tests turn it off).
    """

    place: HostPlace
    cluster: str = ""
    period_seconds: float = 1.0
    pass_on_spread: bool = True


class Watcher(Processes, Protocol):
    """Process watcher as the core sees it."""

    def watch(self, job: JobKey, rank: int, pid: int) -> None:
        """Begin to watch a rank's process."""

    def state(self, job: JobKey, rank: int) -> str:
        """Return the kernel's state letter of a rank's process, "" = unknown."""


class AgentCore:
    """Turns what an agent hears on one host into records of any number of jobs.

    Attributes:
        config: settings.
        table: jobs of this host and their ranks.
        jobs: states of these jobs.
        tally: counters.
        dumps: Flight Recorder dumps that were written, each with the datagram that told of it.
        slices: cuts metrics into frames.
        endings: ends of ranks that are sent again.
    """

    def __init__(self, config: CoreConfig, watcher: Watcher, now: Now) -> None:
        """Start with no job; the ``agent`` start event comes with the first records."""
        self.config = config
        self.table = JobTable(config.place, watcher, self._on_forgotten)
        self.jobs = self.table.jobs
        self.tally = Tally()
        self.dumps: list[tuple[Datagram, DumpWritten]] = []
        self._watcher = watcher
        self.slices = MetricSlices(config.place.host, config.period_seconds)
        self._boundaries = Boundaries(spread_ns(config.place.host) if config.pass_on_spread else 0)
        self._boundaries.due(now.stamp_ns)
        self._started_mono_ns = now.mono_ns
        self._looked_mono_ns = 0
        self.endings = Endings()
        self._idle = JobKey(config.cluster or "default", IDLE_JOB_ID, 0)
        self._out: list[Record] = []
        self._host_event(events.AGENT, Severity.INFO, {"edge": "start"}, now)

    def take(self) -> list[Record]:
        """Return the records that are ready and forget them; oldest first, events in order of arrival."""
        out, self._out = self._out, []
        return out

    def keys(self) -> list[JobKey]:
        """Return the jobs that this host serves, the idle job where there is none."""
        return [job for job, _ in self._served(self.jobs.values())]

    def _served(self, states: Iterable[JobState]) -> list[ServedJob]:
        """Return some jobs with their states; the idle job, which has none, where there are none."""
        served: list[ServedJob] = [(state.job, state) for state in states]
        return served or [(self._idle, None)]

    # --- what comes in ---------------------------------------------------------------------------

    def on_datagram(self, data: bytes, sender: LocalSender, now: Now) -> None:
        """Take a datagram of a hook; one that cannot be used is counted as a dead letter.

        Args:
            data: the datagram's bytes.
            sender: the sender's process and user, as the kernel tells them.
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
        if isinstance(body, StageEdge) and datagram.rank not in state.ranks:
            self.table.begins(state, datagram.rank, sender)
            self._hook_event(datagram, now)  # a rank is one by its hello: until then no step of it is overdue
            return
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
        """Count a message that cannot be used, by reason; each text is logged once."""
        self.tally.dead_letter(reason, text)

    def on_reading(self, tick_ns: int, reading: Reading, now: Now) -> None:
        """Take a collector's reading at ``tick_ns`` (a corrected stamp): samples, GPU places and events."""
        if reading.host or reading.gpus:
            self.slices.frames.add(tick_ns, reading.host, reading.gpus)
        if self.table.gpus.update(reading.places):
            announce_again(self.jobs.values())
        for event in reading.events:
            self._on_host_event(event, now)

    def on_clock_jump(self, jump_ns: int, now: Now) -> None:
        """Take a jump of the host's wall clock by more than half a second: drop open samples and tell it."""
        self.slices.frames.clock_jumped()
        payload = {"step_seconds": round(jump_ns / 1e9, 6)}
        self._host_event(events.CLOCK_STEP, Severity.WARNING, payload, now)

    def on_clock_ahead(self, ahead_ns: int, now: Now) -> None:
        """Take the engine's refusal of stamps ahead of its clock: drop open samples and tell it."""
        self.slices.frames.clock_jumped()
        payload = {"ahead_seconds": round(ahead_ns / 1e9, 6)}
        self._host_event(events.CLOCK_AHEAD, Severity.WARNING, payload, now)

    def on_spool_overflow(self, dropped_count: int, now: Now) -> None:
        """Tell that records were lost because the spool is full."""
        self._host_event(events.SPOOL_OVERFLOW, Severity.WARNING, {"dropped_count": dropped_count}, now)

    def on_stop(self, now: Now) -> None:
        """End in order: cut the open slices now, since the agent does not live to their end, and tell the stop."""
        for state in self.jobs.values():
            self._out.extend(state.cut_early(now))
        self._host_event(events.AGENT, Severity.INFO, {"edge": "stop"}, now)

    def on_time(self, now: Now, around: Callable[[], Surroundings], catch_up: Callable[[], None] | None = None) -> None:
        """Tell which steps are overdue and cut the slices that have passed.

        Args:
            now: the time.
            around: returns the state of the agent's other parts; called at the end of a metric slice.
            catch_up: takes the datagrams that wait; called before a slice is cut or a step is called overdue.
        """
        ends_ns = self._boundaries.due(now.stamp_ns)
        if catch_up is not None and (ends_ns or any(state.is_late(now) for state in self.jobs.values())):
            catch_up()
        if now.mono_ns - self._looked_mono_ns >= LOOK_NS:
            self._looked_mono_ns = now.mono_ns
            self._look(now)
        for end_ns in ends_ns:
            metric_slice = self.slices.end_at(end_ns)
            # what the catch-up took may be of a job that began after this slice
            states = [state for state in self.jobs.values() if not state.begins_after(end_ns, now)]
            for state in states:
                self._out.extend(state.cut(end_ns, now, metric_slice=metric_slice))
            if metric_slice:
                self._out.extend(self.slices.cut(end_ns, self._served(states), now, around()))

    def wait_seconds(self, now: Now) -> float:
        """Return the time until the next slice boundary, in seconds."""
        return self._boundaries.wait_seconds(now.stamp_ns)

    # --- datagrams -------------------------------------------------------------------------------

    def _on_new_job(self, state: JobState, now: Now) -> None:
        """Begin a job, or an attempt of it: forget earlier ends and tell the agent's start to it."""
        self.endings.begins(state.job, state.sender.uid)
        age_seconds = round((now.mono_ns - self._started_mono_ns) / 1e9, 3)
        payload = {"edge": "start", "age_seconds": age_seconds}
        self._event(state.job, -1, now.stamp_ns, HostEvent(events.AGENT, OWN_SOURCE, Severity.INFO, payload))

    def _on_forgotten(self, state: JobState) -> None:
        """Forget a job, or an attempt of it, that is over on this host."""
        self.endings.leaves(state.job, state.sender.uid)
        for number in state.ranks:
            self._watcher.settle(state.job, number)

    def _on_hook(self, state: JobState, rank: RankState, datagram: Datagram, sender: LocalSender, now: Now) -> None:
        """Take a message of a rank's own hook."""
        body = datagram.body
        if isinstance(body, StageEdge):
            self._hook_event(datagram, now)
            return
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
        elif isinstance(body, NotFinite | LoaderReport) or (
            isinstance(body, ModelWork) and rank.is_model_due(body, now)
        ):
            self._hook_event(datagram, now)
        elif isinstance(body, Bye):
            self._on_bye(state, rank, datagram, now)

    def _on_bye(self, state: JobState, rank: RankState, datagram: Datagram, now: Now) -> None:
        """Take a rank's goodbye; after its exit, which says more, it ends nothing."""
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
        """Take a hello and return the rank's state; the first hello of a process becomes an event."""
        pid = sender.pid or hello.pid
        if rank.hello is None or rank.pid != pid:
            if rank.hello is not None:  # another process of a container whose processes cannot be told apart
                state.restart(rank.rank)
                rank, before = state.rank(rank.rank), rank
                rank.holder = before.holder
            rank.pid = pid
            self.endings.lives(state.job, rank.rank, state.sender.uid)
            self._hook_event(datagram, now)
        state.on_hello(rank, hello)
        if not rank.ended and sender.pid:
            self._watcher.watch(state.job, rank.rank, sender.pid)
        return rank

    def _on_exit(self, state: JobState, rank: RankState, datagram: Datagram, now: Now) -> None:
        """Take a rank's exit as its supervisor tells it; only the first one counts."""
        if rank.ended == "exit":
            return
        rank.end("exit", now)
        self._on_end(state, datagram, now)

    def _on_end(self, state: JobState, datagram: Datagram, now: Now) -> None:
        """Tell a rank's goodbye or exit, and remember it so that it can be told again."""
        self._watcher.settle(state.job, datagram.rank)
        self._hook_event(datagram, now)
        stamp_ns, event = datagram.ts_ns - now.correction_ns, hook_event(datagram.body)
        self.endings.add(state.job, datagram.rank, state.sender.uid, event, stamp_ns, now)

    def _hook_event(self, datagram: Datagram, now: Now) -> None:
        """Add the event that a hook's message becomes."""
        event = hook_event(datagram.body)
        self._event(datagram.job, datagram.rank, datagram.ts_ns - now.correction_ns, event)

    # --- events ----------------------------------------------------------------------------------

    def _on_host_event(self, event: HostEvent, now: Now) -> None:
        """Add an event of the host to its job; one without a job goes to the ranks that it concerns, or to all jobs."""
        event, job = with_minipod(event, self.config.place.minipod), event.job
        if job is None:
            about = ranks_of_event(event.payload, self.jobs.values())
            for key, number in about or [(key, event.rank) for key in self.keys()]:
                self._event(key, number, now.stamp_ns, event)
            return
        state = self.jobs.get((job.cluster, job.job_id))
        if state is None or state.job != job:
            return  # a job that is over, or an attempt before
        if event.name == events.PROCESS_GONE:
            rank = state.ranks.get(event.rank)
            if rank is None or rank.ended:
                return  # the exit came while the watcher looked
            rank.end("gone", now)
            self.endings.add(job, event.rank, state.sender.uid, event, now.stamp_ns, now)
        self._event(job, event.rank, now.stamp_ns, event)

    def _look(self, now: Now) -> None:
        """Tell overdue steps, repeat the ends of ranks that are due again, and forget the jobs that are over."""
        for state in self.jobs.values():
            for number, payload in state.stall_news(now):
                payload["process_state"] = self._watcher.state(state.job, number)
                event = HostEvent(events.STALL, EventSource.PROCESS, Severity.WARNING, payload)
                self._event(state.job, number, now.stamp_ns, event)
        self.table.forget_over(now)
        for job, number, again in self.endings.due(now):
            self._event(job, number, now.stamp_ns, again)

    def _host_event(self, name: str, severity: Severity, payload: Mapping[str, Any], now: Now) -> None:
        """Add an event of the agent itself to all jobs."""
        self._on_host_event(HostEvent(name, OWN_SOURCE, severity, payload), now)

    def _event(self, job: JobKey, rank: int, ts_ns: int, event: HostEvent) -> None:
        """Add an event to the records that are ready and count it."""
        self.tally.events[event.name] += 1
        host, said = self.config.place.host, event
        self._out.append(Event(job, host, ts_ns, rank, said.source, said.name, said.severity, said.payload))
