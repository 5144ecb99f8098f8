"""Wrappers of the point-to-point functions of torch.distributed.

The messages from one rank to another are a sequence of their own: the n-th send of the one is the n-th receive
of the other (tags aside), so the numbers can be compared as in a group. Both ends call it ``send_recv``.
A receive from any source belongs to no sequence and is not recorded.
"""

import inspect
import time
from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol

from tocsin.collectors.hook._lines import Communicator, Line
from tocsin.collectors.hook._recorder import Operation

OP_NAME = "send_recv"
_BLOCKING = ("send", "recv")
_ASYNCHRONOUS = ("isend", "irecv")


class Tracker(Protocol):
    """Interface to record operations, implemented by ``CollectiveTracker``."""

    def communicator(self, group: Any) -> Communicator | None:
        """Return the communicator of a torch group, None if the call must not be recorded."""

    def begin(self, line: Line, op_name: str, size: int) -> tuple[Operation, bool]:
        """Begin an operation of ``size`` bytes; return it, and whether this call's time counts."""

    def leave(self, *, timed: bool) -> None:
        """Note that a call returned."""

    def finish(self, operation: Operation, line: Line, *, timed: bool) -> None:
        """Note that a call returned and its operation is done."""

    def enqueued(self, operation: Operation, work: Any, line: Line) -> None:
        """Keep an operation that ends when torch's ``Work`` is waited for."""

    def patch(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        """Replace a function of torch until the tracker is uninstalled."""


class PointToPoint:
    """The point-to-point part of a tracker."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker

    def install(self, c10d: Any, dist: Any) -> None:
        """Wrap the functions. ``isend`` and ``irecv`` stay unchanged inside torch, which compares them by identity."""
        patch = self._tracker.patch
        for name in _BLOCKING:
            wrapper = self.wrap(getattr(c10d, name), name)
            patch(c10d, name, wrapper)
            patch(dist, name, wrapper)
        own = {}
        for name in _ASYNCHRONOUS:
            original = getattr(c10d, name)
            wrapper = self.wrap(original, name)
            own[wrapper] = original
            patch(dist, name, wrapper)
        self._accept_wrapped_ops(c10d.P2POp, own)
        batch = self._wrap_batch(c10d.batch_isend_irecv)
        patch(c10d, "batch_isend_irecv", batch)
        patch(dist, "batch_isend_irecv", batch)

    def wrap(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return the recording version of one function."""
        tracker = self._tracker
        is_send = name.endswith("send")
        is_blocking = name in _BLOCKING
        parameters = list(inspect.signature(original).parameters)
        group_at, peer_at = parameters.index("group"), 1
        peer_name = parameters[peer_at]

        @wraps(original)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            group = args[group_at] if len(args) > group_at else kwargs.get("group")
            communicator = tracker.communicator(group)
            peer = args[peer_at] if len(args) > peer_at else kwargs.get(peer_name)
            group_peer = kwargs.get(f"group_{peer_name}")
            line = _line(communicator, peer, group_peer, is_send=is_send)
            if line is None:
                return original(*args, **kwargs)
            tensor = args[0] if args else kwargs.get("tensor")
            operation, timed = tracker.begin(line, OP_NAME, getattr(tensor, "nbytes", -1))
            try:
                result = original(*args, **kwargs)
            except BaseException:
                tracker.leave(timed=timed)
                raise
            if is_blocking:
                tracker.finish(operation, line, timed=timed)
            else:
                tracker.leave(timed=timed)
                tracker.enqueued(operation, result, line)
            return result

        return recorded

    def _wrap_batch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the recording version of ``batch_isend_irecv``; each operation ends when its Work is waited for."""
        tracker = self._tracker

        @wraps(original)
        def batch(p2p_op_list: list[Any]) -> list[Any]:
            start = time.perf_counter_ns()
            communicator = tracker.communicator(p2p_op_list[0].group) if p2p_op_list else None
            works: list[Any] = original(p2p_op_list)
            for index, op in enumerate(p2p_op_list):
                is_send = op.op.__name__ == "isend"
                line = _line(communicator, op.peer, None, is_send=is_send)
                if line is not None and works:
                    size = getattr(op.tensor, "nbytes", -1)
                    operation = Operation(line.comm_id, OP_NAME, line.next_seq(), size, start)
                    if index < len(works):  # NCCL returns one Work for all: it stands for the first
                        tracker.enqueued(operation, works[index], line)
            return works

        return batch

    def _accept_wrapped_ops(self, p2p_op: Any, own: dict[Any, Any]) -> None:
        """Make ``P2POp(dist.isend, ...)`` hold torch's own function, which the batch compares by identity."""
        make, initialise = p2p_op.__new__, p2p_op.__init__

        @wraps(make)
        def new(cls: type, op: Any, *args: Any, **kwargs: Any) -> Any:
            return make(cls, own.get(op, op), *args, **kwargs)

        @wraps(initialise)
        def init(self: Any, op: Any, *args: Any, **kwargs: Any) -> None:
            initialise(self, own.get(op, op), *args, **kwargs)

        self._tracker.patch(p2p_op, "__new__", new)
        self._tracker.patch(p2p_op, "__init__", init)


def _line(communicator: Communicator | None, peer: int | None, group_peer: int | None, *, is_send: bool) -> Line | None:
    """Return the sequence of messages between this rank and a peer, given by global or by group rank.

    None if unknown.
    """
    if communicator is None:
        return None
    if group_peer is not None:
        peer = communicator.members[group_peer] if 0 <= group_peer < len(communicator.members) else None
    if peer is None:
        return None
    own = communicator.members[communicator.own_rank]
    return communicator.line(own, peer) if is_send else communicator.line(peer, own)
