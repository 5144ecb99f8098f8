"""The one interface of a collector: a name, a period, ``collect``.

A source that does not exist on this host raises ``NothingHere``: said at debug
level, no failure. Any other exception is a failure of this collector and of no
other. The agent measures and reports success and duration of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tocsin.schemas.errors import CollectorError, NothingHere
from tocsin.schemas.records import EventSource, JobKey, Severity

__all__ = ["Collector", "CollectorError", "GpuPlace", "HostEvent", "NothingHere", "Reading"]


@dataclass(frozen=True, slots=True)
class HostEvent:
    """Something that a collector saw once; the agent makes an ``Event`` of it.

    Attributes:
        name: fixed name in ``tocsin.schemas.events``.
        source: where it was seen.
        severity: how bad it is by itself.
        payload: JSON object.
        rank: global rank, -1: the host.
        job: whose, None: the jobs whose ranks hold the GPU ``payload["uuid"]`` (or ``["pci"]``), or whose
            process is ``payload["pid"]``; where none does, every job that this host serves.
    """

    name: str
    source: EventSource
    severity: Severity
    payload: Mapping[str, Any]
    rank: int = -1
    job: JobKey | None = None


@dataclass(frozen=True, slots=True)
class GpuPlace:
    """Where a GPU is on its host: what joins a rank's word and the kernel's to a UUID.

    Attributes:
        gpu: index in the order of the bus (CUDA_DEVICE_ORDER=PCI_BUS_ID, nvidia-smi), -1 = not known.
        pci: address in the form of ``tocsin.schemas.formats.pci``, "" = not known.
        pids: processes that compute on it, in this host's numbering, as far as the source sees them.
    """

    gpu: int = -1
    pci: str = ""
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """What one call of a collector gave.

    Attributes:
        host: metric name -> value, for the machine.
        gpus: GPU uuid -> metric name -> value.
        events: what was seen, oldest first.
        places: GPU uuid -> where it is; only what this source knows.
    """

    host: Mapping[str, float] = field(default_factory=dict)
    gpus: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    events: tuple[HostEvent, ...] = ()
    places: Mapping[str, GpuPlace] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Return whether there is anything in it."""
        return bool(self.host or self.gpus or self.events or self.places)


class Collector(Protocol):
    """One source on the training host. ``collect`` is called from one thread, its own."""

    @property
    def name(self) -> str:
        """Return the name under which success and duration are reported."""

    @property
    def period_seconds(self) -> float:
        """Return the time between two calls; calls are aligned to its multiples of the wall clock."""

    # A collector may have ``skipped: Mapping[str, int]``: what it passed over since start, by reason.

    def collect(self, now_ns: int) -> Reading:
        """Return what there is to see at ``now_ns`` (Unix nanoseconds, the tick of the sample).

        Raises:
            NothingHere: the source does not exist on this host.
        """
