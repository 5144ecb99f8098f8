"""The interface of a collector: a name, a period and the method ``collect``.

If its source does not exist on this host, a collector raises ``NothingHere``, which is logged at debug level and is no
failure. Any other exception is a failure of this collector and of no other. The agent measures and reports
success and duration of each.
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
    """A single event that a collector saw; the agent turns it into an ``Event``.

    Attributes:
        name: name of the event, one of ``tocsin.schemas.events``.
        source: component that saw it.
        severity: severity of the event by itself.
        payload: JSON object.
        rank: global rank, -1 for the host.
        job: the job concerned. None: the jobs whose ranks use the GPU ``payload["uuid"]`` (or ``["pci"]``), or whose
            process is ``payload["pid"]``; if there are none, every job on this host.
    """

    name: str
    source: EventSource
    severity: Severity
    payload: Mapping[str, Any]
    rank: int = -1
    job: JobKey | None = None


@dataclass(frozen=True, slots=True)
class GpuPlace:
    """The position of a GPU on its host, which links ranks and kernel messages to its UUID.

    Attributes:
        gpu: index in bus order (CUDA_DEVICE_ORDER=PCI_BUS_ID, nvidia-smi), -1 if unknown.
        pci: bus address in the form of ``tocsin.schemas.formats.pci``, "" if unknown.
        pids: processes that compute on it, in this host's numbering, as far as the collector sees them.
    """

    gpu: int = -1
    pci: str = ""
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of one call of a collector.

    Attributes:
        host: metric name -> value, for the host.
        gpus: GPU uuid -> metric name -> value.
        events: events that were seen, oldest first.
        places: GPU uuid -> its position, as far as this collector knows it.
    """

    host: Mapping[str, float] = field(default_factory=dict)
    gpus: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    events: tuple[HostEvent, ...] = ()
    places: Mapping[str, GpuPlace] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Return whether the reading has any content."""
        return bool(self.host or self.gpus or self.events or self.places)


class Collector(Protocol):
    """Interface of one telemetry source on the training host; ``collect`` is always called from the same thread."""

    @property
    def name(self) -> str:
        """Name under which success and duration are reported."""

    @property
    def period_seconds(self) -> float:
        """Time between two calls; calls are aligned to its multiples of the wall clock."""

    # A collector may have ``skipped: Mapping[str, int]``: what it passed over since start, by reason.

    def collect(self, now_ns: int) -> Reading:
        """Return the source's values and events now.

        Args:
            now_ns: tick of the sample, Unix nanoseconds.

        Raises:
            NothingHere: the source does not exist on this host.
        """
