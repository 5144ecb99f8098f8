"""State of one rank's hook, its step, phases and collectives, and the datagrams built from it.

Written by the training thread without locks (single assignments and a deque), read by the hook's thread.
"""

import json
import math
import time
from collections import deque
from collections.abc import Mapping
from threading import get_ident
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from tocsin.collectors.hook._identity import Identity
from tocsin.collectors.hook._loader import LoaderWatch
from tocsin.collectors.hook._loss import LossWatch
from tocsin.collectors.hook._sender import Sender
from tocsin.collectors.hook._timer import (
    ANNOUNCED_PHASES,
    DATA,
    NAMES,
    STEP_PHASES,
    PhaseContext,
    PhaseTimer,
    StepPhase,
)

HOOK_VERSION = "1"
MAX_COLLECTIVES = 512
_NS = 1e9

_now_ns = time.perf_counter_ns


class Operation(NamedTuple):
    """One operation on one communicator; times are ``perf_counter_ns``, end 0 = not finished."""

    comm_id: str
    op_name: str
    op_seq: int
    msg_bytes: int
    start: int
    end: int = 0


class StartListener(Protocol):
    """What is told of the time until the first step has ended."""

    def on_step_begin(self) -> None:
        """Take that a step begins."""

    def on_step_end(self) -> None:
        """Take that a step has ended."""

    def on_phase(self, name: str, edge: str) -> None:
        """Take that an announced phase begins or ends."""


class Recorder:
    """The state of one rank in the training process.

    Attributes:
        inert: nothing is recorded or sent (closed, switched off, or a forked child).
        identity: job and rank.
        sender: sends datagrams to the agent.
        timer: times of the phases.
        phases: phase name -> the context manager that ``hook.phase`` returns.
        step_number: number of the current step, or of the last one; -1 before the first.
        step_start: begin of the current step (``perf_counter_ns``), 0 between steps.
        explicit: the script marks its steps itself, so the loader's iterations are no steps.
        blocked: thread id -> the operation in which it waits.
        completed: operations that finished since the last step's end, only the newest ones.
        work: what is known of the model's work and the GPU (``_work``); replaced as a whole.
        start: is told the first step, and phases before it; None afterwards.
        loaders: what is known of the rank's data loaders.
        wall_offset_ns: difference from ``perf_counter_ns`` to Unix time.
    """

    __slots__ = (
        "_bad",
        "_depth",
        "_measured",
        "_prefix",
        "_values",
        "blocked",
        "completed",
        "explicit",
        "identity",
        "inert",
        "loaders",
        "losses",
        "phases",
        "sender",
        "start",
        "step_number",
        "step_start",
        "timer",
        "wall_offset_ns",
        "work",
    )

    def __init__(self, identity: Identity, sender: Sender) -> None:
        self.inert = False
        self.identity = identity
        self.sender = sender
        self.timer = PhaseTimer()
        self.phases: dict[str, PhaseContext] = {name: StepPhase(self.timer, NAMES.index(name)) for name in STEP_PHASES}
        self.phases.update({name: AnnouncedPhase(self, name) for name in ANNOUNCED_PHASES})
        self.step_number = -1
        self.step_start = 0
        self.explicit = False
        self.blocked: dict[int, Operation] = {}
        self.completed: deque[Operation] = deque(maxlen=MAX_COLLECTIVES)
        self.loaders = LoaderWatch()
        self.losses = LossWatch()
        self.work: Mapping[str, float | str] = {}
        self.start: StartListener | None = None
        self.wall_offset_ns = time.time_ns() - _now_ns()
        self._depth = 0
        self._measured = [False] * len(NAMES)
        self._values: dict[str, float | None] = {"loss": None, "grad_norm": None}
        self._bad = {"loss": False, "grad_norm": False}
        self._prefix = f'"job":{json.dumps(identity.job)},"rank":{identity.rank}'

    # --- steps ---------------------------------------------------------------------------------

    def begin_step(self, number: int | None) -> None:
        """Begin a step that the script marks; data fetched since the last one belongs to it."""
        self.explicit = True
        self.timer.adopt()
        if not self.step_start:  # else the loader has begun it: the batch was fetched for this step
            self._open()
        if number is not None:
            self.step_number = number

    def end_step(self) -> None:
        """End the current step and send its datagram."""
        start = self.step_start
        if not start:
            return
        self.timer.unwind(self._depth)
        now = _now_ns()
        totals = self.timer.take(now)
        self.step_start = 0
        if not self.losses.is_empty:
            self.take_losses()
        if self.sender.connected:
            self.sender.send(self._step_message(now - start, totals, now))
        else:
            self.sender.dropped_count += 1
            self.completed.clear()
        self._values["loss"] = self._values["grad_norm"] = None
        if self.start is not None:
            self.start.on_step_end()

    def begin_loader_step(self) -> None:
        """End the current step and begin the next one, at a loader's ``next``; nothing if the script marks steps."""
        if self.explicit or self.inert or get_ident() != self.timer.owner or self.timer.announced:
            return
        self.end_step()
        self._open()

    def cancel_loader_step(self) -> None:
        """Undo ``begin_loader_step`` because the loader had no further batch."""
        if self.step_start and not self.explicit and get_ident() == self.timer.owner:
            self.timer.take(_now_ns())
            self.step_start = 0
            self.step_number -= 1

    def begin_pass(self) -> None:
        """Begin a pass over the loader; an unfinished step of the last pass (``break``) is dropped."""
        if not self.explicit and get_ident() == self.timer.owner and not self.timer.announced:
            self.timer.take(_now_ns())
            self.step_start = 0

    def _open(self) -> None:
        """Begin a step, with the data phase since the last step's end."""
        timer = self.timer
        now = _now_ns()
        start = timer.first_data or now
        carried = timer.take(now)[DATA]
        if start != now:  # of the rest (an evaluation's forward passes, say) nothing is this step's
            timer.credit(DATA, carried)
        self._depth = len(timer.stack)
        self.step_number += 1
        self.step_start = start
        if self.start is not None:
            self.start.on_step_begin()

    def _step_message(self, duration: int, totals: list[int], now: int) -> bytes:
        """Return the datagram of a finished step; durations in nanoseconds."""
        seconds = []
        for index in range(1, len(STEP_PHASES) + 1):
            if totals[index]:
                self._measured[index] = True
            seconds.append(f"{totals[index] / _NS:.6f}" if self._measured[index] else "null")
        data, forward, backward, optimizer, communication = seconds
        return (
            f'{{"v":1,"t":"step",{self._prefix},"ts":{now + self.wall_offset_ns},'
            f'"step":{self.step_number},"dur":{duration / _NS:.6f},"data":{data},"fwd":{forward},'
            f'"bwd":{backward},"opt":{optimizer},"comm":{communication},'
            f'"loss":{_json_number(self._values["loss"])},"gn":{_json_number(self._values["grad_norm"])},'
            f'"coll":[{self._take_completed()}],"dropped":{self.sender.dropped_count}}}'
        ).encode()

    def _take_completed(self) -> str:
        """Remove the completed operations and return them as JSON rows."""
        rows = []
        offset = self.wall_offset_ns
        for _ in range(len(self.completed)):  # not "while": another thread may go on adding
            comm_id, name, seq, size, start, end = self.completed.popleft()
            rows.append(f'["{comm_id}","{name}",{seq},{size},{start + offset},{end + offset}]')
        return ",".join(rows)

    # --- values --------------------------------------------------------------------------------

    def set_value(self, what: str, value: object) -> None:
        """Keep the step's loss or gradient norm; report it at once when it stops being finite."""
        number = host_number(value)
        if number is not None:
            self._values[what] = number
            self._tell_bad(what, number, self.current_step)

    @property
    def current_step(self) -> int:
        """Number of the step in progress; between steps, of the next one."""
        return self.step_number if self.step_start else self.step_number + 1

    def take_losses(self) -> None:
        """Take the losses that ``backward`` was called on; the one that the script tells wins."""
        is_reported = self._values["loss"] is not None
        for step, number in self.losses.take(self.step_number, is_reported=is_reported):
            self._tell_bad("loss", number, step)
            if not is_reported:
                self._values["loss"] = number

    def _tell_bad(self, what: str, number: float, step: int) -> None:
        bad = not math.isfinite(number)
        if bad and not self._bad[what]:
            self.send("nan", step=step, what=what, value=str(number))
        self._bad[what] = bad

    # --- datagrams -----------------------------------------------------------------------------

    def send(self, kind: str, **keys: object) -> bool:
        """Send a datagram of another kind now; return whether the agent's socket accepted it."""
        if self.inert:
            return False
        body = json.dumps(keys, separators=(",", ":"))
        stamp = _now_ns() + self.wall_offset_ns
        comma = "," if keys else ""
        return self.sender.send(f'{{"v":1,"t":"{kind}",{self._prefix},"ts":{stamp}{comma}{body[1:]}'.encode())

    def wall_ns(self, moment: int) -> int:
        """Convert a ``perf_counter_ns`` value to Unix nanoseconds; 0 stays 0."""
        return moment + self.wall_offset_ns if moment else 0


class AnnouncedPhase:
    """Context manager of a phase that is reported to the engine at once, because steps pause during it."""

    __slots__ = ("_index", "_name", "_recorder")

    def __init__(self, recorder: Recorder, name: str) -> None:
        self._recorder = recorder
        self._name = name
        self._index = NAMES.index(name)

    def __enter__(self) -> None:
        self._recorder.send("phase", phase=self._name, edge="begin")
        if self._recorder.start is not None:
            self._recorder.start.on_phase(self._name, "begin")
        timer = self._recorder.timer
        if not timer.owner:
            timer.adopt()
        if get_ident() == timer.owner:
            timer.enter(self._index)
            timer.announced += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        timer = self._recorder.timer
        if get_ident() == timer.owner and timer.announced:
            timer.announced -= 1
            timer.leave()
            if not self._recorder.step_start and not timer.announced:
                timer.take(_now_ns())  # what lies between steps before a checkpoint is not the next step's
        self._recorder.send("phase", phase=self._name, edge="end")
        if self._recorder.start is not None:
            self._recorder.start.on_phase(self._name, "end")


class Step:
    """Context manager that ``hook.step`` returns; one object serves all steps."""

    __slots__ = ("_recorder", "number")

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.number: int | None = None

    def __enter__(self) -> None:
        self._recorder.begin_step(self.number)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._recorder.end_step()
        else:  # a step that died is no measurement, and the exit event will say why
            self._recorder.step_start = 0


def host_number(value: Any) -> float | None:
    """Return a value as a float if it is on the host; None for a tensor on a device or no number.

    Reading a tensor on a GPU waits for the GPU, which the hook never does. Pass ``loss.item()``
    if the script computes it anyway.
    """
    if isinstance(value, int | float):
        return float(value)
    device = getattr(value, "device", None)
    if device is not None and getattr(device, "type", "cpu") != "cpu":
        return None
    try:
        return float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError):  # a tensor of many elements, a fake tensor, a string
        return None


def _json_number(value: float | None) -> str:
    """Return a number as JSON; null for None, NaN and infinities as text."""
    if value is None:
        return "null"
    return repr(value) if math.isfinite(value) else f'"{value}"'
