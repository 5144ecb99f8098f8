"""Instrumentation of plain PyTorch: the loader, the module, ``backward`` and the optimizer."""

import copy
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial, wraps
from typing import Any

from tocsin.collectors.hook._loader import source_of
from tocsin.collectors.hook._recorder import Recorder
from tocsin.collectors.hook._timer import BACKWARD, COMMUNICATION
from tocsin.collectors.hook._torch import module


class TimedLoader:
    """Wrapper of a loader whose ``next`` is the data phase and, unless the script marks steps, the begin of a step.

    It behaves like the loader: ``isinstance`` sees the loader's class, attributes are read from
    the loader and set on it, a copy or a pickle is the plain loader. Only ``type(...)`` and special methods
    other than ``iter`` and ``len`` show the difference.
    """

    __slots__ = ("_tocsin_loader", "_tocsin_recorder", "_tocsin_source")

    def __init__(self, loader: Iterable[Any], recorder: Recorder, source: str | None = None) -> None:
        if type(loader) is TimedLoader:  # attached twice: its batches are still fetched once
            loader = loader._tocsin_loader  # noqa: SLF001  # another one of this class
        object.__setattr__(self, "_tocsin_loader", loader)
        object.__setattr__(self, "_tocsin_recorder", recorder)
        object.__setattr__(self, "_tocsin_source", source_of(loader, source))

    @property  # type: ignore[misc]  # object's can be set, nobody sets this one
    def __class__(self) -> type[Any]:
        return type(self._tocsin_loader)

    def __iter__(self) -> Iterator[Any]:
        recorder = self._tocsin_recorder
        recorder.begin_pass()
        with recorder.phases["data"]:  # starting the workers is waiting for data too
            iterator = iter(self._tocsin_loader)
        recorder.loaders.begin_pass(iterator, self._tocsin_source)
        return TimedIterator(iterator, recorder)

    def __len__(self) -> int:
        return len(self._tocsin_loader)  # raises what the loader raises

    def __getattr__(self, name: str) -> Any:
        if name == "_tocsin_loader":  # a copy that is being made has none yet
            raise AttributeError(name)
        return getattr(self._tocsin_loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._tocsin_loader, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._tocsin_loader, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return copy.copy, (self._tocsin_loader,)  # a copy or a pickle is the plain loader


class TimedIterator:
    """Iterator of one pass over a loader; fetching is the data phase."""

    __slots__ = ("_data", "_iterator", "_recorder")

    def __init__(self, iterator: Iterator[Any], recorder: Recorder) -> None:
        self._iterator = iterator
        self._recorder = recorder
        self._data = recorder.phases["data"]

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        recorder, watch = self._recorder, None
        recorder.begin_loader_step()
        if not recorder.inert and recorder.timer.is_timed():
            watch = recorder.loaders
            watch.begin_fetch(self._iterator, recorder.current_step)
        try:
            with self._data:
                batch = next(self._iterator)
        except StopIteration:
            if watch is not None:
                watch.cancel_fetch(failed=False)
            recorder.cancel_loader_step()
            raise
        except BaseException:
            if watch is not None:
                watch.cancel_fetch(failed=True)
            raise
        if watch is not None:
            watch.end_fetch(batch)
        return batch


class LocalHook:
    """A module's hook that stays in this process.

    A script may pickle its module (``torch.save(model)``, spawned workers) or copy it (an average of the
    weights). The copy's hook does nothing, and needs no tocsin where it is loaded.
    """

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call

    def __call__(self, *args: Any) -> None:
        self._call(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (sys.audit, "tocsin.copied_hook")  # takes anything and returns None


def attach_model(model: Any, recorder: Recorder) -> list[Any]:
    """Time a module's forward pass; return the handles that undo it.

    For a DistributedDataParallel the inner module is timed. The wrapper's own forward may wait for other
    ranks (it broadcasts buffers), and their slowness must not count as this rank's.
    """
    is_parallel = any(base.__name__ == "DistributedDataParallel" for base in type(model).__mro__)
    inner = model.module if is_parallel else model
    forward = recorder.phases["forward"]
    torch = module("torch")
    is_compiling = torch.compiler.is_compiling if torch is not None else bool

    def before(_module: Any, _inputs: Any) -> None:
        if not is_compiling():  # traced into the graph a clock would break it (fullgraph=True raises)
            forward.__enter__()

    def after(_module: Any, _inputs: Any, _output: Any) -> None:
        if not is_compiling():
            forward.__exit__(None, None, None)

    return [
        inner.register_forward_pre_hook(LocalHook(before), prepend=True),
        inner.register_forward_hook(LocalHook(after), always_call=True),
    ]


def attach_optimizer(optimizer: Any, recorder: Recorder) -> list[Any]:
    """Time an optimizer's steps; return the handles that undo it."""
    phase = recorder.phases["optimizer"]

    def before(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
        phase.__enter__()

    def after(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
        phase.__exit__(None, None, None)

    return [optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)]


class BackwardPatch:
    """Wrapper of ``torch.autograd.backward`` that times it; ``Tensor.backward`` calls it, too.

    DistributedDataParallel and FSDP wait for their last reductions in callbacks that run after the last
    gradient. A callback queued before theirs marks that moment, and the time after it is communication. Without
    this, one slow rank makes the backward pass of all look slow.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._original: Callable[..., Any] | None = None
        self._ours: Callable[..., Any] | None = None
        self._is_inside = False

    def install(self) -> None:
        """Install the wrapper; a second call does nothing."""
        torch = module("torch")
        if torch is None or self._original is not None:
            return
        self._original = torch.autograd.backward
        self._ours = self._wrap(torch.autograd.backward, torch)
        torch.autograd.backward = self._ours

    def uninstall(self) -> None:
        """Restore the original, unless somebody has wrapped our wrapper since."""
        torch = module("torch")
        if self._original is not None and torch.autograd.backward is self._ours:
            torch.autograd.backward = self._original
        self._original = self._ours = None

    def _wrap(self, original: Callable[..., Any], torch: Any) -> Callable[..., Any]:
        """Return the timed version of ``backward``."""
        recorder, timer = self._recorder, self._recorder.timer
        is_compiling = torch.compiler.is_compiling
        see = partial(recorder.losses.see_all, torch.Tensor)
        queue_callback = torch.autograd.Variable._execution_engine.queue_callback  # noqa: SLF001  # FSDP's way

        def gradients_done() -> None:
            if timer.current == BACKWARD:
                timer.enter(COMMUNICATION)

        def root_reached(_gradient: Any) -> None:
            queue_callback(gradients_done)

        @wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if recorder.inert or is_compiling() or not timer.is_timed():
                return original(tensors, *args, **kwargs)
            if not self._is_inside:  # else a checkpointed part of the model, computed anew
                see(tensors, recorder.current_step)
            is_inside, self._is_inside = self._is_inside, True
            depth = len(timer.stack)
            timer.enter(BACKWARD)
            handle = None
            if isinstance(tensors, torch.Tensor) and tensors.requires_grad and not tensors.is_leaf:
                handle = tensors.register_hook(root_reached)
            try:
                return original(tensors, *args, **kwargs)
            finally:
                if handle is not None:
                    handle.remove()
                timer.unwind(depth)
                self._is_inside = is_inside

        return backward
