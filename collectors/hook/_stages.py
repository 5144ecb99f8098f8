"""Stages of this process's start, told to the agent when they begin and end.

====================  =============================================  =============================================
env_setup             the process starts                             the first ``init_process_group`` is called
model_init            ``init_process_group`` has returned            ``attach`` with a model, or the first step
checkpoint_resume     ``phase("checkpoint")`` before the first step  its end
compile               ``phase("compile")`` before the first step     its end
first_step            the first step begins                          it ends
====================  =============================================  =============================================

In ``init_process_group`` a rank waits for all others, so that time is no stage's: a late rank would make all look late.
The begin of env_setup is told by ``tocsin exec``; its end says how long this process has run. An end says what share of
lookups the caches answered, where that is known (``_caches``). Standard library only.
"""

import os
import sys
import time
from collections.abc import Callable
from functools import partial, wraps
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from tocsin.collectors.hook import _identity as _hook_identity
from tocsin.collectors.hook._caches import CacheCount
from tocsin.collectors.hook._identity import start_kind
from tocsin.collectors.hook._places import agent_sockets
from tocsin.collectors.hook._recorder import Recorder
from tocsin.collectors.hook._sender import Sender

C10D = "torch.distributed.distributed_c10d"
ENTRY = "init_process_group"
PHASE_STAGES = {"checkpoint": "checkpoint_resume", "compile": "compile"}
"""Announced phase -> the stage that it is before the first step."""
STARTED = "TOCSIN_STARTED_NS"
"""Variable with the time (Unix ns) at which ``tocsin exec`` started this rank."""
_MOST_SECONDS = 1e7


class StartMarks:
    """Tells the stages of one process's start, each edge once; nothing after the first step."""

    __slots__ = ("_caches", "_early", "_ours", "_pid", "_told", "is_over", "recorder")

    def __init__(self) -> None:
        """Start with nothing told."""
        self.recorder: Recorder | None = None
        """The running hook's; before there is one, the identity of the environment speaks."""
        self.is_over = False
        self._caches = CacheCount()
        self._early: Recorder | None = None
        self._ours: Callable[..., Any] | None = None
        self._pid = os.getpid()
        self._told: set[tuple[str, str]] = set()

    def adopt(self) -> None:
        """Take this process, which was forked after the hook was imported, as the one whose start is told."""
        self._pid = os.getpid()
        self._caches.skip()

    def install(self) -> None:
        """Wrap ``init_process_group``, now or as soon as torch defines it."""
        if self._ours is not None or self.is_over:
            return
        loaded = sys.modules.get(C10D)
        if loaded is not None:
            self._wrap(loaded)
        elif not any(isinstance(finder, TorchFinder) for finder in sys.meta_path):
            sys.meta_path.insert(0, TorchFinder(self._wrap))

    def follow(self, recorder: Recorder) -> None:
        """Speak as this hook from now on; where the marks so far named another job or rank, tell no more."""
        early = self._early.identity if self._early is not None else recorder.identity
        if (early.job, early.rank) != (recorder.identity.job, recorder.identity.rank):
            self.is_over = True
        self.recorder = None if self.is_over else recorder
        recorder.start = None if self.is_over else self

    def tell(self, stage: str, edge: str, **more: object) -> None:
        """Tell that a stage begins or ends."""
        if self.is_over or (stage, edge) in self._told or os.getpid() != self._pid:
            return
        self._told.add((stage, edge))
        if edge == "begin":
            self._caches.begin(stage)
        elif (ratio := self._caches.end(stage)) is not None:
            more["cache_hit_ratio"] = ratio
        speaker = self.recorder or self._speaker()
        if speaker is not None:
            speaker.send("stage", stage=stage, edge=edge, start_kind=start_kind(), **more)

    def on_lookups(self, hits: float, lookups: float) -> None:
        """Take how many lookups in its caches the program says, and how many of them were answered."""
        if not self.is_over and os.getpid() == self._pid:
            self._caches.add(hits, lookups)

    def on_model(self) -> None:
        """Take that the model is attached."""
        if ("model_init", "begin") in self._told:
            self.tell("model_init", "end")

    def on_phase(self, name: str, edge: str) -> None:
        """Take that an announced phase begins or ends."""
        stage = PHASE_STAGES.get(name)
        if stage is not None and ("first_step", "begin") not in self._told:
            self.tell(stage, edge)

    def on_step_begin(self) -> None:
        """Take that a step begins."""
        self.on_model()
        self.tell("first_step", "begin")

    def on_step_end(self) -> None:
        """Take that the first step has ended: the start is over."""
        self.tell("first_step", "end")
        self.stop()

    def stop(self) -> None:
        """Tell no more, and remove the wrapper unless somebody has wrapped it since."""
        self.is_over = True
        if self.recorder is not None:
            self.recorder.start = None
        original = getattr(self._ours, "__wrapped__", None)
        for name in (C10D, "torch.distributed"):
            place = sys.modules.get(name)
            if original is not None and getattr(place, ENTRY, None) is self._ours:
                setattr(place, ENTRY, original)
        if self._early is not None:
            self._early.sender.close()

    def _wrap(self, c10d: ModuleType) -> None:
        """Wrap ``init_process_group`` in torch's module, and where torch.distributed has taken it over."""
        original = getattr(c10d, ENTRY, None)
        if original is None or self.is_over:
            return
        self._ours = _marked(original, self)
        setattr(c10d, ENTRY, self._ours)
        distributed = sys.modules.get("torch.distributed")
        if getattr(distributed, ENTRY, None) is original:
            setattr(distributed, ENTRY, self._ours)

    def _speaker(self) -> Recorder | None:
        """Return who speaks before there is a hook: the environment's rank; None where it names none."""
        if self._early is None and _hook_identity.has_rank():
            try:
                sender = Sender(*agent_sockets())
            except OSError:  # no descriptor is left
                return None
            sender.connect()
            self._early = Recorder(_hook_identity.from_environment(), sender)
        return self._early


MARKS = StartMarks()
"""Those of this process."""


def process_seconds() -> float | None:
    """Return for how long this process has run, None if the kernel does not tell.

    What ``tocsin exec`` says of its start counts where the process is older: it waited to be used.
    """
    try:
        with open("/proc/self/stat", "rb") as file:
            began_ticks = int(file.read().rpartition(b")")[2].split()[19])
        seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - began_ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
    started = os.environ.get(STARTED, "")
    if started.isascii() and started.isdigit():
        seconds = min(seconds, time.time() - int(started) / 1e9)
    return round(seconds, 3) if 0 <= seconds < _MOST_SECONDS else None


def _marked(original: Callable[..., Any], marks: StartMarks) -> Callable[..., Any]:
    """Return ``init_process_group`` with its first call marked."""

    @wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        marks.tell("env_setup", "end", seconds=process_seconds())
        result = original(*args, **kwargs)
        marks.tell("model_init", "begin")
        return result

    return init_process_group


class TorchFinder:
    """Entry of ``sys.meta_path`` that waits for torch's module, lets it load as always, and is gone then."""

    def __init__(self, then: Callable[[ModuleType], None]) -> None:
        self._then = then

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        """Return None for other modules; for torch's, its own spec, with a call after it has loaded."""
        if name != C10D:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = find_spec(name)
        loader = None if spec is None else spec.loader
        if loader is not None and hasattr(loader, "__dict__"):
            setattr(loader, "exec_module", partial(_load, loader, self._then))  # noqa: B010  # mypy: a method
        return spec


def _load(loader: Any, then: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Load a module by its own loader, then call."""
    del loader.exec_module  # the class's own is found again
    loader.exec_module(module)
    then(module)
