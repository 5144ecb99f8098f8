"""The hook in the training process: it reports this rank's steps, phases and collectives to the host's agent.

Standard library only. Nothing here blocks, raises because of the agent, or reads a GPU. Plain PyTorch::

    from tocsin.collectors import hook

    loader = hook.attach(model, optimizer, loader)  # after init_process_group

``attach`` sees the loss by itself: it is what ``backward`` is called on. A loop of one's own::

    for batch in batches:
        with hook.step():
            with hook.phase("forward"):
                ...
            hook.loss(value)
        with hook.phase("checkpoint"):
            ...

Both can be mixed. ``init`` is optional: the first use reads the identity from the environment
(``tocsin.collectors.hook._identity``). Settings: ``TOCSIN_AGENT_SOCKET``, ``TOCSIN_DUMP_DIR``,
``TOCSIN_STUCK_DUMP_SECONDS``, ``TOCSIN_HOOK=off`` (or 0, false, no).

A forked child inherits an inactive hook (workers of a loader); ``init``, ``attach`` or ``step`` in it start its
own.
"""

import atexit
import dataclasses
import os
import sys
import time
import traceback
import warnings
from collections.abc import Iterable
from typing import Any

from tocsin.collectors.hook import _identity as _hook_identity
from tocsin.collectors.hook import _names as _hook_names
from tocsin.collectors.hook import _places as _hook_places
from tocsin.collectors.hook._attach import (
    BackwardPatch,
    TimedLoader,
    attach_model,
    attach_optimizer,
)
from tocsin.collectors.hook._caches import checked
from tocsin.collectors.hook._collectives import CollectiveTracker
from tocsin.collectors.hook._identity import Identity
from tocsin.collectors.hook._loss import ScalerPatch
from tocsin.collectors.hook._recorder import Recorder, Step
from tocsin.collectors.hook._sender import ReplySocket, Sender
from tocsin.collectors.hook._stages import MARKS
from tocsin.collectors.hook._thread import Reporter
from tocsin.collectors.hook._timer import PhaseContext
from tocsin.collectors.hook._torch import module
from tocsin.collectors.hook._work import work_of

__all__ = ["Hook", "Identity", "attach", "cache_hits", "close", "grad_norm", "init", "loss", "phase", "step"]

OFF_WORDS = ("off", "0", "false", "no")
TAIL_LETTERS = 4096
GOODBYE_SECONDS = 2.0
"""Longest wait of the last datagram for room in the agent's socket. Eight ranks end at once, and it holds ten."""


class Hook:
    """The hook of one rank. Scripts use the functions of this module, which share one.

    Attributes:
        recorder: what is known, and the counters.
        reporter: the thread that tells the agent of it.
        tracker: the wrapped collectives.
    """

    __slots__ = (
        "_backward",
        "_handles",
        "_paths",
        "_phases",
        "_pid",
        "_reply",
        "_scaler",
        "_step",
        "recorder",
        "reporter",
        "tracker",
    )

    def __init__(self, identity: Identity, *agent_sockets: str) -> None:
        self.recorder = Recorder(identity, Sender(*agent_sockets))
        self._paths = agent_sockets
        self.tracker = CollectiveTracker(self.recorder)
        self._backward = BackwardPatch(self.recorder)
        self._scaler = ScalerPatch(self.recorder.losses)
        self._handles: list[Any] = []
        self._phases = self.recorder.phases
        self._pid = os.getpid()
        self._reply = ReplySocket(*agent_sockets)
        self.reporter = Reporter(self.recorder, self.tracker, self._reply)
        self._step = Step(self.recorder)

    def start(self) -> None:
        """Greet the agent and start the thread; the first rank of a host says so where nobody will take its word."""
        self.reporter.start()
        identity = self.recorder.identity
        trouble = _hook_names.refused_name(identity.job_id)
        if not trouble and not self.recorder.sender.connected:
            trouble = _hook_places.no_agent(self._paths)
        if trouble and identity.is_first_here:
            try:
                warnings.warn(f"tocsin: {trouble}", RuntimeWarning, stacklevel=4)
            except RuntimeWarning:  # warnings are errors here: training goes on all the same
                pass

    def step(self, number: int | None = None) -> Step:
        """Return the context manager of a step; see the module's ``step``."""
        step = self._step
        step.number = number
        return step

    def phase(self, name: str) -> PhaseContext:
        """Return the context manager of a phase; see the module's ``phase``."""
        try:
            return self._phases[name]
        except KeyError:
            raise ValueError(f"unknown phase {name!r}; there are: {', '.join(self._phases)}") from None

    def attach(
        self,
        model: Any = None,
        optimizer: Any = None,
        loader: Any = None,
        *,
        collectives: bool = True,
        source: str | None = None,
        **work: float,
    ) -> Any:
        """Time a model, an optimizer and a loader, and return the wrapped loader; see the module's ``attach``."""
        known = work_of(work, model)
        if self.recorder.inert:
            return loader
        self.recorder.work = {**self.recorder.work, **known}
        self.reporter.tell_work()
        if not self.recorder.timer.owner:
            self.recorder.timer.adopt()
        if model is not None:
            self._handles += attach_model(model, self.recorder)
            self._backward.install()
            self._scaler.install()
            if self.recorder.start is not None:
                MARKS.on_model()
        if optimizer is not None:
            self._handles += attach_optimizer(optimizer, self.recorder)
        if collectives:
            self.tracker.install()
        return None if loader is None else TimedLoader(loader, self.recorder, source)

    def close(self) -> None:
        """Send the goodbye, end the thread and remove all wrappers; a second call does nothing."""
        if not self.recorder.inert:
            self.reporter.stop()
            self.recorder.take_losses()  # of a step that nobody ends any more
            self._say_last("bye")
            self.abandon()

    def die(self, error: BaseException) -> None:
        """Report an uncaught exception as the end of this process, and remove all wrappers."""
        if not self.recorder.inert:
            self.reporter.stop()
            self.recorder.take_losses()  # of a step that nobody ends any more
            tail = "".join(traceback.format_exception(error))[-TAIL_LETTERS:]
            self._say_last("exit", pid=os.getpid(), code=1, signal=0, stderr_tail=tail)
            self.abandon()

    def _say_last(self, kind: str, **keys: object) -> None:
        """Send the last datagram, waiting for room, because without it a normal end looks like a death."""
        deadline = time.monotonic() + GOODBYE_SECONDS
        while not self.recorder.send(kind, **keys) and self.recorder.sender.connected and time.monotonic() < deadline:
            time.sleep(0.01)

    def abandon(self) -> None:
        """Remove all wrappers and stop recording without a message; a forked child must not send for its parent."""
        self.recorder.inert = True
        self.tracker.uninstall()
        self._backward.uninstall()
        self._scaler.uninstall()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.recorder.sender.close()
        self._reply.close()

    def is_inherited(self) -> bool:
        """Return whether this is a parent's hook in its forked child."""
        return self._pid != os.getpid()


_hook: Hook | None = None


def init(
    job_id: str | None = None,
    rank: int | None = None,
    cluster: str | None = None,
    *,
    agent_socket: str | None = None,
    **place: Any,
) -> Hook:
    """Start the hook, or restart it with another identity. Optional.

    Args:
        job_id: name of the job, the same on all ranks.
        rank: global rank.
        cluster: name of the cluster.
        agent_socket: path of the agent's datagram socket.
        **place: any of ``attempt world_size local_rank gpu gpu_uuid dp pp tp``. What is not given is read from the
            environment (``Identity``, ``from_environment``).

    Raises:
        TypeError: a keyword is unknown.
    """
    given = {"job_id": job_id, "rank": rank, "cluster": cluster, **place}
    identity = dataclasses.replace(
        _hook_identity.from_environment(), **{key: value for key, value in given.items() if value is not None}
    )
    return _start(identity, *((agent_socket,) if agent_socket else _hook_places.agent_sockets()))


def step(n: int | None = None) -> Step:
    """Mark one training step: ``with hook.step():``. Steps are numbered automatically unless a number is given."""
    return _training_hook().step(n)


def phase(name: str) -> PhaseContext:
    """Mark a phase: ``with hook.phase("forward"):``.

    data, forward, backward, optimizer, communication are exclusive times of the step (an inner phase is not
    part of its outer one). checkpoint, evaluation, compile are announced to the engine when they begin and
    end, so that it tolerates the pause; step phases inside them do not count.
    """
    return (_hook or _default_hook()).phase(name)


def loss(value: Any) -> None:
    """Report the step's loss: a number or a CPU tensor. A GPU tensor is ignored, because reading it would block."""
    (_hook or _default_hook()).recorder.set_value("loss", value)


def cache_hits(hits: float, lookups: float = 1) -> None:
    """Tell before the first step what a cache had of what was looked up: ``hook.cache_hits(7, 8)``, or a share alone.

    It counts for the stage of the start that began last and has not ended; outside of stages, and once the first step
    has ended, it does nothing.

    Args:
        hits: lookups that the cache answered; numbers, bytes or files alike.
        lookups: all of them.

    Raises:
        TypeError: one is no number.
        ValueError: one is negative or not finite, or there are more hits than lookups.
    """
    MARKS.on_lookups(*checked(hits, lookups))


def grad_norm(value: Any) -> None:
    """Report the step's gradient norm; the same rules as for ``loss``."""
    (_hook or _default_hook()).recorder.set_value("grad_norm", value)


def attach(
    model: Any = None,
    optimizer: Any = None,
    loader: Iterable[Any] | None = None,
    *,
    collectives: bool = True,
    source: str | None = None,
    **work: float,
) -> Any:
    """Time a plain PyTorch loop; return a wrapper of the loader, to iterate over in its place.

    The wrapper behaves like the loader (``isinstance``, attributes read and set, pickle and copy). Only ``type`` and
    special methods other than ``iter`` and ``len`` show the difference.

    Args:
        model: its forward passes are timed (for a DistributedDataParallel, the inner module's), and backward.
        optimizer: its steps are timed.
        loader: fetching is the data phase; a step lasts from one fetch to the next, unless the script marks its steps
            with ``step``.
        collectives: whether to record the calls of ``torch.distributed``. Call ``attach`` after ``init_process_group``,
            and write ``dist.all_reduce(...)``; names imported before are not recorded.
        source: name of the loader's source in reports. Without it: a text ``source``, ``name`` or ``dataset_name`` of
            the loader's data set, else the data set's class. A batch that is a dictionary with a text (or one a
            row) at ``source`` or ``dataset`` names its own.
        **work: what the model needs, for its FLOPs utilization (docs/mfu.md): ``flops_per_step`` of the whole job; or
            ``parameters`` and ``tokens_per_step`` of the whole job, with ``layers hidden_size sequence_length`` for
            the attention; ``peak_flops_per_second`` of this rank's GPU. What is not given is counted where it can be.

    Raises:
        TypeError: a keyword is unknown, or its value is no number.
        ValueError: a keyword's value is negative or not finite.
    """
    return _training_hook().attach(model, optimizer, loader, collectives=collectives, source=source, **work)


def close() -> None:
    """Send the goodbye to the agent, because training is over for this rank. Done at exit in any case."""
    if _hook is not None and not _hook.is_inherited():
        _hook.close()


def _at_exit() -> None:
    """Send the goodbye, or report the exception that ended the script."""
    error = getattr(sys, "last_value", None)  # set by the interpreter for what nobody caught
    if _hook is None or _hook.is_inherited() or error is None or isinstance(error, KeyboardInterrupt):
        close()
    else:
        _hook.die(error)


def _training_hook() -> Hook:
    """Return the hook for calls that only a training process makes; a forked child gets its own."""
    hook = _hook or _default_hook()
    if hook.recorder.inert and hook.is_inherited():
        hook = _default_hook()
    return hook


def _default_hook() -> Hook:
    """Start the hook with the identity from the environment."""
    return _start(_hook_identity.from_environment(), *_hook_places.agent_sockets())


def _start(identity: Identity, *agent_sockets: str) -> Hook:
    """Replace the module's hook; it stays inactive if switched off or in a loader's worker."""
    global _hook  # noqa: PLW0603  # one hook a process: the script has no object to pass around
    close()
    _hook = Hook(identity, *agent_sockets)
    if _is_off() or _is_loader_worker():
        _hook.abandon()
    else:
        _hook.start()
        MARKS.install()
        MARKS.follow(_hook.recorder)
    return _hook


def _is_off() -> bool:
    """Return whether the environment switches the hook off."""
    return os.environ.get("TOCSIN_HOOK", "").strip().lower() in OFF_WORDS


def _is_loader_worker() -> bool:
    """Return whether this process is a worker of a PyTorch DataLoader."""
    data = module("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def _after_fork_in_child() -> None:
    """Deactivate the inherited hook in a forked child."""
    if _hook is not None:
        _hook.abandon()


if not _is_off():
    MARKS.install()
atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork_in_child)
