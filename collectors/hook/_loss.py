"""The losses on which ``backward`` was called: read without ever waiting for a GPU."""

import math
from collections import deque
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

from tocsin.collectors.hook._torch import module

MAX_COPIES = 64
"""Copies from a GPU that may be under way at a time; further losses are not read."""
_UNSCALED = "_tocsin_unscaled"
"""Attribute of a scaled loss: the loss before a ``GradScaler`` multiplied it."""
_UNREADABLE = (RuntimeError, TypeError, ValueError, AssertionError)
"""Errors that torch raises for a tensor without a value: fake, vmapped, or on a GPU that failed."""


class _Slot(NamedTuple):
    """Pinned memory for one number of a GPU, and the event that says when the number is there."""

    number: Any
    event: Any
    kind: tuple[Any, Any]


class _Copy:
    """A number on its way from a GPU.

    Attributes:
        step: the step that it is the loss of, None: it is wanted no more.
        may_overflow: whether an infinite number may be a scaler's.
        slot: where it arrives.
    """

    __slots__ = ("may_overflow", "slot", "step")

    def __init__(self, step: int, slot: _Slot, *, may_overflow: bool) -> None:
        self.step: int | None = step
        self.slot = slot
        self.may_overflow = may_overflow


class LossWatch:
    """The losses of one rank since they were last taken.

    A loss on the CPU is read at once. A loss on a GPU is copied to pinned memory without waiting, and counts from the
    first step's end at which the copy has arrived.

    Attributes:
        is_scaled: whether a ``GradScaler`` has multiplied a loss: an infinite one may be an overflow since.
        is_empty: whether there is nothing to take.
    """

    __slots__ = ("_copies", "_free", "_losses", "_slot_count", "is_empty", "is_scaled")

    def __init__(self) -> None:
        self.is_scaled = False
        self.is_empty = True
        self._losses: dict[int, float] = {}
        self._copies: deque[_Copy] = deque()
        self._free: dict[tuple[Any, Any], list[_Slot]] = {}
        self._slot_count = 0

    def see_all(self, kind: type[Any], tensors: Any, step: int) -> None:
        """See the losses among what ``backward`` is called on: plain tensors of one element.

        Args:
            kind: the class of a plain tensor; to read one of a subclass may ask other ranks.
            tensors: one tensor, or several.
            step: the step that they belong to.
        """
        for one in tensors if isinstance(tensors, list | tuple) else (tensors,):
            if type(one) is kind and one.numel() == 1:
                self.see(one, step)

    def see(self, loss: Any, step: int) -> None:
        """Read the tensor on which ``backward`` is called; of a scaled loss, the unscaled one.

        Several losses of a step count as the last of them, or as the first that is not finite.
        """
        unscaled = getattr(loss, _UNSCALED, None)
        try:
            if loss.is_cuda:
                self._copy(
                    loss if unscaled is None else unscaled, step, may_overflow=self._may_overflow(loss, unscaled)
                )
                return
            number = (loss if unscaled is None else unscaled).item()
            if not math.isinf(number) or not self._may_overflow(loss, unscaled):
                self._add(step, number)
        except _UNREADABLE:
            return

    def take(self, step: int, *, is_reported: bool) -> list[tuple[int, float]]:
        """Return the (step, loss) pairs that have become known, the oldest step first.

        Args:
            step: the step that ends.
            is_reported: whether the script itself has told the step's loss: what was seen of it is dropped.
        """
        if self._copies:
            self._land()
        losses, self._losses = self._losses, {}
        if is_reported:
            losses.pop(step, None)
            for copy in self._copies:
                if copy.step == step:
                    copy.step = None
        self.is_empty = not self._copies
        return sorted(losses.items())

    def _add(self, step: int, number: float) -> None:
        if math.isfinite(self._losses.get(step, 0.0)):
            self._losses[step] = number
        self.is_empty = False

    def _may_overflow(self, loss: Any, unscaled: Any) -> bool:
        """Return whether an infinite loss may be a healthy one that a scaler has multiplied."""
        return unscaled is None and (self.is_scaled or loss.dtype is module("torch").float16)

    def _copy(self, loss: Any, step: int, *, may_overflow: bool) -> None:
        cuda = module("torch").cuda
        if cuda.is_current_stream_capturing():  # the copy would become part of the graph
            return
        slot = self._slot(loss)
        if slot is None:
            return
        slot.number.copy_(loss.detach(), non_blocking=True)
        slot.event.record(cuda.current_stream(loss.device))
        self._copies.append(_Copy(step, slot, may_overflow=may_overflow))
        self.is_empty = False

    def _slot(self, loss: Any) -> _Slot | None:
        kind = (loss.device, loss.dtype)
        free = self._free.setdefault(kind, [])
        if free:
            return free.pop()
        if self._slot_count >= MAX_COPIES:
            return None
        self._slot_count += 1
        torch = module("torch")
        return _Slot(torch.empty((), dtype=loss.dtype, pin_memory=True), torch.cuda.Event(), kind)

    def _land(self) -> None:
        """Take the copies that have arrived; they arrive in order."""
        try:
            while self._copies and self._copies[0].slot.event.query():
                copy = self._copies.popleft()
                slot = copy.slot
                number = slot.number.item()
                self._free[slot.kind].append(slot)
                if copy.step is not None and not (copy.may_overflow and math.isinf(number)):
                    self._add(copy.step, number)
        except _UNREADABLE:  # the GPU failed: training will see it itself
            self._copies.clear()


class ScalerPatch:
    """Remembers the unscaled loss where a ``GradScaler`` multiplies it.

    A scaled loss overflows in a healthy job now and then: the scaler skips that step and lowers its scale.
    """

    def __init__(self, losses: LossWatch) -> None:
        self._losses = losses
        self._wrapped: list[tuple[type, Any, Any]] = []

    def install(self) -> None:
        """Wrap ``scale`` of ``torch.amp.GradScaler`` and of its subclasses; a second call does nothing."""
        scaler = getattr(getattr(module("torch"), "amp", None), "GradScaler", None)
        if self._wrapped or scaler is None:
            return
        for kind in _with_subclasses(scaler):
            if "scale" in vars(kind):
                original = vars(kind)["scale"]
                ours = self._wrap(original)
                self._wrapped.append((kind, original, ours))
                kind.scale = ours  # type: ignore[attr-defined]  # of a scaler

    def uninstall(self) -> None:
        """Put the originals back, unless somebody has wrapped ours since."""
        for kind, original, ours in self._wrapped:
            if vars(kind).get("scale") is ours:
                kind.scale = original  # type: ignore[attr-defined]  # of a scaler
        self._wrapped.clear()

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        losses = self._losses
        is_compiling = module("torch").compiler.is_compiling

        @wraps(original)
        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            if not is_compiling() and scaled is not outputs:
                _remember(scaled, outputs)
                losses.is_scaled = True
            return scaled

        return scale


def _remember(scaled: Any, unscaled: Any) -> None:
    """Keep the unscaled losses at the scaled ones, which take them along when they are dropped."""
    if isinstance(unscaled, list | tuple):
        for one, before in zip(scaled, unscaled, strict=False):
            _remember(one, before)
    elif hasattr(unscaled, "detach"):
        setattr(scaled, _UNSCALED, unscaled.detach())


def _with_subclasses(kind: type) -> list[type]:
    children: list[type] = kind.__subclasses__()
    return [kind, *(one for child in children for one in _with_subclasses(child))]
