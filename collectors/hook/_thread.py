"""The hook's daemon thread: beats, group announcements, Flight Recorder sampling, dumps on request."""

import contextlib
import json
import os
import select
import sys
import tempfile
import threading
import time
from typing import Any

from tocsin.collectors.hook._collectives import CollectiveTracker
from tocsin.collectors.hook._identity import scheduler_facts
from tocsin.collectors.hook._recorder import HOOK_VERSION, Operation, Recorder
from tocsin.collectors.hook._sender import ReplySocket
from tocsin.collectors.hook._timer import NAMES
from tocsin.collectors.hook._torch import (
    FlightSampler,
    Group,
    current_groups,
    full_dump,
)

TICK_SECONDS = 0.25
BEAT_NS = 1_000_000_000
HELLO_NS = 10_000_000_000
GROUPS_NS = 30_000_000_000
CONNECT_NS = 1_000_000_000
OVERDUE_NS = 500_000_000
DEFAULT_STUCK_SECONDS = 60.0
STUCK = "stuck"
"""Why a dump was written: an operation in flight was stuck for long; not because it was asked for."""
MAX_ERRORS_SHOWN = 3
MAX_GROUPS = 1000
MAX_SECONDS = 1e9
_LINE_KINDS = {"world": "other"}  # a pair is not the world

Flying = tuple[str, str, int, int, int]
"""One row of a beat's ``inflight``: comm_id, op_name, op_seq, msg_bytes, start in Unix ns."""


class Reporter:
    """The thread that reports for the training thread; it wakes four times a second.

    Attributes:
        error_count: number of rounds that ended in an exception (the next round runs all the same).
    """

    def __init__(self, recorder: Recorder, tracker: CollectiveTracker, reply: ReplySocket) -> None:
        self.error_count = 0
        self._recorder = recorder
        self._tracker = tracker
        self._reply = reply
        self._sampler = FlightSampler()
        self._groups: dict[str, Group] = {}
        self._line_count = 0
        self._sent_at = dict.fromkeys(("hello", "groups", "beat", "connect"), -GROUPS_NS)
        self._overdue: set[tuple[str, int]] = set()
        self._dumped: tuple[str, int] | None = None
        self._dump_folder = os.environ.get("TOCSIN_DUMP_DIR") or os.path.join(
            tempfile.gettempdir(), "tocsin-dumps", recorder.identity.job_id.replace(os.sep, "_")
        )
        self._stuck_ns = int(_seconds("TOCSIN_STUCK_DUMP_SECONDS", DEFAULT_STUCK_SECONDS) * 1e9)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tocsin-hook", daemon=True)

    def start(self) -> None:
        """Look for the agent once, so that a short job is seen too, then start the thread."""
        self._connect(time.monotonic_ns())
        self._thread.start()

    def stop(self, timeout_seconds: float = 1.0) -> None:
        """End the thread and wait for it, because it must not be inside torch when the interpreter exits."""
        self._stop.set()
        self._reply.wake()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        """Run a round at each request or every quarter of a second, until stopped."""
        while not self._stop.is_set():
            try:
                poller = select.poll()  # a training process may have descriptors that select() refuses: above 1,023
                poller.register(self._reply, select.POLLIN)
                if poller.poll(1000 * TICK_SECONDS):
                    self._answer()
                if not self._stop.is_set():
                    self._tick(time.monotonic_ns())
            except Exception as error:  # noqa: BLE001  # the one supervising loop: training must not notice
                self._complain(error)
                self._stop.wait(TICK_SECONDS)  # poll itself may be what fails: no busy loop

    def _complain(self, error: Exception) -> None:
        """Print the first few exceptions to stderr."""
        self.error_count += 1
        if self.error_count <= MAX_ERRORS_SHOWN:
            sys.stderr.write(f"tocsin hook: {type(error).__name__}: {error}\n")

    def _tick(self, now: int) -> None:
        """Run one round: connect, announce, sample, send a beat, dump if stuck."""
        recorder = self._recorder
        if not recorder.sender.connected and self._due("connect", CONNECT_NS, now):
            self._connect(now)
        self._look_at_groups(now)
        if self._due("hello", HELLO_NS, now):
            self._say_hello()
            recorder.wall_offset_ns = time.time_ns() - time.perf_counter_ns()  # the wall clock is slewed
        self._sampler.sample()
        self._tracker.prune()
        flying = self._flying()
        if self.newly_overdue(flying) or self._due("beat", BEAT_NS, now):
            self._sent_at["beat"] = now
            self._beat(flying)
        for report in recorder.loaders.take():
            recorder.send("loader", **report)
        self._dump_when_stuck(flying)

    def _due(self, what: str, period_ns: int, now: int) -> bool:
        """Return whether a periodic message is due, and note the time if so."""
        if now - self._sent_at[what] < period_ns:
            return False
        self._sent_at[what] = now
        return True

    def _connect(self, now: int) -> None:
        """Look for the agent; if found, send the hello and schedule the groups."""
        self._sent_at["connect"] = now
        if self._recorder.sender.connect():
            self._sent_at["hello"] = now
            self._say_hello()
            self._sent_at["groups"] = now - GROUPS_NS  # a new agent knows no groups

    def _say_hello(self) -> None:
        """Send the hello datagram, and what is known of the model's work."""
        who = self._recorder.identity
        self._recorder.send(
            "hello",
            pid=os.getpid(),
            world_size=who.world_size,
            local_rank=who.local_rank,
            gpu=who.gpu,
            gpu_uuid=who.gpu_uuid,
            dp=who.dp,
            pp=who.pp,
            tp=who.tp,
            reply=self._reply.path,
            hook_version=HOOK_VERSION,
            **scheduler_facts(),
        )
        self.tell_work()

    def tell_work(self) -> None:
        """Send what is known of the model's work."""
        if work := self._recorder.work:
            self._recorder.send("model", world_size=self._recorder.identity.world_size, **work)

    def _look_at_groups(self, now: int) -> None:
        """Send the group datagram after a change and periodically."""
        groups = current_groups()
        if groups != self._groups:
            self._groups = groups
            self._sampler.learn(groups)
            self._sent_at["groups"] = now - GROUPS_NS
        lines = self._message_lines()
        if len(lines) != self._line_count:
            self._line_count = len(lines)
            self._sent_at["groups"] = now - GROUPS_NS
        if groups and self._due("groups", GROUPS_NS, now):
            rows = [{"comm_id": g.comm_id, "kind": g.kind, "ranks": g.ranks} for g in groups.values()]
            self._recorder.send("groups", groups=(rows + lines)[:MAX_GROUPS])

    def _message_lines(self) -> list[dict[str, object]]:
        """Return the pairs of ranks that exchange messages, as groups of two."""
        kinds = {group.comm_id: group.kind for group in self._groups.values()}
        return [
            {"comm_id": line.comm_id, "kind": _LINE_KINDS.get(kind, kind), "ranks": list(pair)}
            for communicator in list(self._tracker.communicators.values())
            if (kind := kinds.get(communicator.comm_id)) is not None
            for pair, line in list(communicator.lines.items())
        ]

    # --- what is in flight -----------------------------------------------------------------------

    def _flying(self) -> list[Flying]:
        """Return the operations in flight: calls that have not returned, then those that the Flight Recorder adds."""
        recorder = self._recorder
        rows: list[Flying] = [
            (*operation[:4], recorder.wall_ns(operation.start)) for operation in list(recorder.blocked.values())
        ]
        known = {(row[0], row[2]) for row in rows}
        for comm_id, state in self._sampler.states.items():
            rows += [(comm_id, *row) for row in state.pending if (comm_id, row[1]) not in known]
        return rows

    def newly_overdue(self, flying: list[Flying]) -> bool:
        """Return whether an operation became overdue since the last call."""
        edge = time.time_ns() - OVERDUE_NS
        overdue = {(row[0], row[2]) for row in flying if row[4] < edge}
        new = overdue - self._overdue
        self._overdue = overdue
        return bool(new)

    def _last(self) -> list[tuple[str, str, int, int]]:
        """Return the last finished operation of each communicator.

        Where the Flight Recorder shows a stall it takes precedence: it sees operations that called no Python function,
        and knows what NCCL has only queued.
        """
        recorder = self._recorder
        ours: dict[str, Operation] = {}
        for communicator in list(self._tracker.communicators.values()):
            for line in (communicator, *list(communicator.lines.values())):
                if line.last is not None:
                    ours[line.comm_id] = line.last
        rows = []
        for comm_id, state in self._sampler.states.items():
            operation = ours.get(comm_id)
            seen = operation.op_seq if operation else 0
            if state.completed > seen or (state.pending and state.completed < seen):
                ours.pop(comm_id, None)
                if state.completed > 0:
                    rows.append((comm_id, state.op_name, state.completed, state.since_ns))
        return rows + [_last_row(recorder, operation) for operation in ours.values()]

    def _beat(self, flying: list[Flying]) -> None:
        """Send a beat."""
        recorder = self._recorder
        timer = recorder.timer
        current, began, step_start = timer.current, timer.began, recorder.step_start
        recorder.send(
            "beat",
            step=recorder.step_number,
            phase=NAMES[current],
            phase_ns=recorder.wall_ns(began) if current else 0,
            step_ns=recorder.wall_ns(step_start),
            inflight=flying,
            last=self._last(),
        )

    # --- dumps -----------------------------------------------------------------------------------

    def _answer(self) -> None:
        """Process the requests on the reply socket."""
        while (data := self._reply.receive()) is not None:
            try:
                request: Any = json.loads(data)
            except ValueError:
                continue
            if isinstance(request, dict) and request.get("t") == "dump" and request.get("dir"):
                self._dump(str(request["dir"]), str(request.get("request_id", "")), "probe")

    def _dump_when_stuck(self, flying: list[Flying]) -> None:
        """Write a dump once the oldest operation in flight has been stuck long enough; one dump per such operation."""
        oldest = min(flying, key=lambda row: row[4], default=None)
        if oldest is None:
            self._dumped = None
            return
        episode = (oldest[0], oldest[2])
        if episode != self._dumped and time.time_ns() - oldest[4] >= self._stuck_ns:
            self._dumped = episode
            self._dump(self._dump_folder, "", STUCK)

    def _dump(self, folder: str, request_id: str, why: str) -> None:
        """Write the Flight Recorder's dump into a folder and report its path.

        Only the dump of a rank that is stuck has stacks, for people: a rank that is asked may be training.
        """
        content = full_dump(with_stacks=why == STUCK)
        if content is None:
            return
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f"fr_{self._recorder.identity.rank}")
        part = f"{path}.{os.getpid()}.part"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)  # of an earlier process of this id
        # Anybody may write into such a folder: no link of theirs is followed.
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        with open(descriptor, "wb") as file:
            file.write(content)
        os.replace(part, path)  # whoever lists the folder sees whole dumps only
        self._recorder.send("dump", path=path, request_id=request_id, why=why)


def _last_row(recorder: Recorder, operation: Operation) -> tuple[str, str, int, int]:
    """Return a finished operation as a row of a beat's ``last``."""
    return (operation.comm_id, operation.op_name, operation.op_seq, recorder.wall_ns(operation.end))


def _seconds(name: str, default: float) -> float:
    """Return a duration from an environment variable, the default if it is missing or invalid."""
    try:
        value = float(os.environ.get(name, default))
    except ValueError:
        return default
    return value if 0 < value < MAX_SECONDS else default  # NaN and infinity fail it, too
