"""Wrappers of torch.distributed's functions that record when which operation of which group ran.

An operation's number is the process group's own sequence number, which the Flight Recorder calls
``collective_seq_id``. It counts every collective on the group, also those of DistributedDataParallel, which call no
Python function. For a backend without such a number, the count is kept here. Point-to-point operations: ``_p2p``.

Times are those of the calling thread. With NCCL a call returns when the operation is queued on the
stream, not when it is done; then the Flight Recorder's counters show what is still in flight.
"""

import inspect
import time
import weakref
from collections.abc import Callable
from functools import wraps
from threading import get_ident
from typing import Any

from tocsin.collectors.hook._lines import Communicator, Line
from tocsin.collectors.hook._p2p import PointToPoint
from tocsin.collectors.hook._recorder import Operation, Recorder
from tocsin.collectors.hook._timer import COMMUNICATION
from tocsin.collectors.hook._torch import comm_id_of, module, op_name_of

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "broadcast",
    "barrier",
    "reduce",
    "all_to_all",
    "all_to_all_single",
)

_now_ns = time.perf_counter_ns


class CollectiveTracker:
    """Installs the wrappers and keeps track of operations in flight.

    Attributes:
        communicators: known communicators by ``id`` of their torch group.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.communicators: dict[int, Communicator] = {}
        self._pending: dict[int, tuple[weakref.ref[Any], Operation, Line]] = {}
        self._patches: list[tuple[Any, str, Any, Any]] = []
        self._c10d: Any = None
        self._is_compiling: Callable[[], bool] = bool

    def install(self) -> bool:
        """Wrap the functions of torch.distributed; return False if it is not loaded or already wrapped.

        A function that the script imported by name before is not recorded here (the Flight Recorder has it).
        """
        c10d, dist = module("torch.distributed.distributed_c10d"), module("torch.distributed")
        if self._patches or c10d is None or not hasattr(c10d, "_world"):
            return False
        self._c10d = c10d
        self._is_compiling = module("torch").compiler.is_compiling
        for name in COLLECTIVES:
            if hasattr(c10d, name):
                wrapper = self.wrap(getattr(c10d, name), name)
                self.patch(c10d, name, wrapper)
                self.patch(dist, name, wrapper)
        PointToPoint(self).install(c10d, dist)
        self.patch(c10d.Work, "wait", self._wrap_wait(c10d.Work.wait))
        return True

    def uninstall(self) -> None:
        """Restore the originals where nobody has wrapped our wrappers since."""
        for owner, name, original, ours in reversed(self._patches):
            if getattr(owner, name) is ours:
                setattr(owner, name, original)
        self._patches.clear()

    def prune(self) -> None:
        """Forget groups that were deleted and operations whose Work was dropped; called by the hook's thread."""
        for key, communicator in list(self.communicators.items()):
            if communicator.stands_for(None):
                self.communicators.pop(key, None)
        for key, entry in list(self._pending.items()):
            if entry[0]() is None:
                self._pending.pop(key, None)

    def wrap(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return the recording version of one function of torch.distributed."""
        begin, finish, leave = self.begin, self.finish, self.leave
        parameters = list(inspect.signature(original).parameters)
        group_at = parameters.index("group")
        async_at = parameters.index("async_op")
        op_name = op_name_of(name)
        size_of = _SIZES.get(name, _first_bytes)

        @wraps(original)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            group = args[group_at] if len(args) > group_at else kwargs.get("group")
            communicator = self.communicator(group)
            if communicator is None:
                return original(*args, **kwargs)
            operation, timed = begin(communicator, op_name, size_of(args, kwargs))
            try:
                result = original(*args, **kwargs)
            except BaseException:
                leave(timed=timed)
                raise
            if args[async_at] if len(args) > async_at else kwargs.get("async_op"):
                leave(timed=timed)
                self.enqueued(operation, result, communicator)
            else:
                finish(operation, communicator, timed=timed)
            return result

        return recorded

    def communicator(self, group: Any) -> Communicator | None:
        """Return a group's communicator; None if the call must not be recorded.

        Not recorded are calls inside a wrapped one, inside a compiled graph, inside a coalescing block (they have
        no number of their own), and of ranks outside the group.
        """
        recorder = self.recorder
        if recorder.inert or self._is_compiling() or get_ident() in recorder.blocked:
            return None
        world = self._c10d._world  # noqa: SLF001  # torch has no public list of groups
        if world.pg_coalesce_state:
            return None
        if group is None:
            group = world.default_pg
        known = self.communicators.get(id(group))
        if known is not None and known.stands_for(group):
            return known
        return self._meet(group, world)

    def _meet(self, group: Any, world: Any) -> Communicator | None:
        """Create the communicator of a new group; None if this rank is not in it."""
        ranks = world.pg_group_ranks.get(group) if group in world.pg_map else None
        if not ranks:
            return None
        comm_id = comm_id_of(world.pg_names[group], sorted(ranks))
        communicator = Communicator(group, comm_id, sorted(ranks, key=ranks.get))
        self.communicators[id(group)] = communicator
        return communicator

    def begin(self, line: Line, op_name: str, size: int) -> tuple[Operation, bool]:
        """Note that the calling thread enters an operation; return it, and whether its time counts for the phases."""
        seq = line.next_seq()
        recorder = self.recorder
        timer = recorder.timer
        timed = timer.is_timed()
        if timed:
            timer.enter(COMMUNICATION)
        operation = Operation(line.comm_id, op_name, seq, size, _now_ns())
        recorder.blocked[get_ident()] = operation
        return operation, timed

    def leave(self, *, timed: bool) -> None:
        """Note that the calling thread returned from an operation."""
        self.recorder.blocked.pop(get_ident(), None)
        if timed:
            self.recorder.timer.leave()

    def finish(self, operation: Operation, line: Line, *, timed: bool) -> None:
        """Note that the calling thread returned and that the operation is done."""
        comm_id, op_name, seq, size, start, _ = operation
        line.last = done = Operation(comm_id, op_name, seq, size, start, _now_ns())
        self.recorder.completed.append(done)
        self.leave(timed=timed)

    def enqueued(self, operation: Operation, work: Any, line: Line) -> None:
        """Note an asynchronous operation, which ends when its Work is waited for."""
        if work is not None:
            self._pending[id(work)] = (weakref.ref(work), operation, line)

    def _wrap_wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the recording version of ``Work.wait``, at which an asynchronous operation ends for the script."""
        pending = self._pending

        @wraps(original)
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            entry = pending.pop(id(work), None) if pending else None
            if entry is None or entry[0]() is not work or self.recorder.inert:
                return original(work, *args, **kwargs)
            _, operation, line = entry
            recorder = self.recorder
            timed = recorder.timer.is_timed()
            if timed:
                recorder.timer.enter(COMMUNICATION)
            recorder.blocked[get_ident()] = operation
            try:
                result = original(work, *args, **kwargs)
            except BaseException:
                self.leave(timed=timed)
                raise
            self.finish(operation, line, timed=timed)
            return result

        return wait

    def patch(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        """Replace an attribute until ``uninstall``."""
        self._patches.append((owner, name, getattr(owner, name), wrapper))
        setattr(owner, name, wrapper)


def _first_bytes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Return the bytes of the first tensor, which all_reduce, broadcast, reduce, send and recv move; -1 if unknown."""
    first = args[0] if args else next(iter(kwargs.values()), None)
    return getattr(first, "nbytes", -1)


def _larger_bytes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Return the bytes of the larger of output and input, lists of tensors included; equal on all members."""
    return max((_bytes_of(value) for value in (args or tuple(kwargs.values()))[:2]), default=-1)


def _bytes_of(value: Any) -> int:
    """Return the bytes of a tensor or a list of tensors, -1 if unknown."""
    if isinstance(value, list | tuple):
        return sum(getattr(item, "nbytes", 0) for item in value)
    return getattr(value, "nbytes", -1)


def _no_bytes(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> int:
    """Return 0, the size of a barrier."""
    return 0


_SIZES: dict[str, Callable[[tuple[Any, ...], dict[str, Any]], int]] = {
    "barrier": _no_bytes,
    **dict.fromkeys(
        (
            "all_gather",
            "all_gather_into_tensor",
            "reduce_scatter",
            "reduce_scatter_tensor",
            "all_to_all",
            "all_to_all_single",
        ),
        _larger_bytes,
    ),
}
