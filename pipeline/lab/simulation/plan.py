"""Plans: everything that happens in a case as plain values, drawn by faults and benign disturbances.

Times are seconds since the recording's start, in true time (not any host's clock). ``physics`` and ``telemetry``
simulate a plan without knowing who is at fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
EnvelopeShape = Literal["sudden", "linear", "exponential", "stairs", "flicker"]
NEVER_SECONDS = float("inf")


@dataclass(frozen=True, slots=True)
class Envelope:
    """The strength of an effect over time, 0 to 1.

    Attributes:
        onset_seconds: begin of the effect.
        end_seconds: end of the effect.
        rise_seconds: time until full strength (``linear``, ``exponential``, ``stairs``); period of ``flicker``.
        shape: how the strength rises.
        duty_ratio: share of a ``flicker`` period in which the effect is on.
    """

    onset_seconds: float
    end_seconds: float = NEVER_SECONDS
    rise_seconds: float = 0.0
    shape: EnvelopeShape = "sudden"
    duty_ratio: float = 1.0

    def at(self, seconds: Floats) -> Floats:
        """Return the strength at these times, same shape."""
        since = np.asarray(seconds, dtype=np.float64) - self.onset_seconds
        within = (since >= 0) & (np.asarray(seconds) < self.end_seconds)
        rise = max(self.rise_seconds, 1e-9)
        if self.shape == "linear":
            strength = np.clip(since / rise, 0.0, 1.0)
        elif self.shape == "exponential":
            strength = 1.0 - np.exp(-3.0 * np.maximum(since, 0.0) / rise)
        elif self.shape == "stairs":
            strength = np.clip(np.floor(since / rise * 4.0 + 1.0) / 4.0, 0.0, 1.0)
        elif self.shape == "flicker":
            strength = ((since % rise) < self.duty_ratio * rise).astype(np.float64)
        else:
            strength = np.ones_like(since)
        return np.where(within, strength, 0.0)

    def touches(self, begin_seconds: float, end_seconds: float) -> bool:
        """Return whether the strength can be above zero in the span."""
        return self.onset_seconds < end_seconds and self.end_seconds > begin_seconds


Dilution = Literal["clock", "kernel", "starved"]
"""Way in which a slower computation shows in metrics. ``clock``: as busy as before, fewer bytes a second. ``kernel``:
kernels run longer and do less. ``starved``: the GPU is idle in between."""


@dataclass(frozen=True, slots=True)
class PlannedSlowdown:
    """Ranks that need more time for some of their own phases.

    Attributes:
        ranks: the slow ranks.
        factor: factor of the time at full strength.
        envelope: strength over time.
        phases: affected phases: ``data``, ``compute``, ``optimizer``.
        dilution: how the GPU's activity changes meanwhile.
    """

    ranks: tuple[int, ...]
    factor: float
    envelope: Envelope
    phases: tuple[str, ...] = ("compute", "optimizer")
    dilution: Dilution = "kernel"


@dataclass(frozen=True, slots=True)
class PlannedSlowLink:
    """A slow part of the network, which makes all transfers take longer.

    Attributes:
        factor: factor of the time at full strength.
        envelope: strength over time.
    """

    factor: float
    envelope: Envelope


@dataclass(frozen=True, slots=True)
class DataWait:
    """Ranks that wait longer for their next batch in each step.

    Attributes:
        ranks: the waiting ranks, empty for all.
        wait_seconds: additional wait a step at full strength.
        envelope: strength over time.
        spread_ratio: relative variation of the wait between ranks and steps.
    """

    ranks: tuple[int, ...]
    wait_seconds: float
    envelope: Envelope
    spread_ratio: float = 0.3


@dataclass(frozen=True, slots=True)
class Stall:
    """Ranks that pause once, within one step, while the others wait.

    Attributes:
        ranks: the pausing ranks.
        at_seconds: time of the pause.
        stall_seconds: length of the pause.
    """

    ranks: tuple[int, ...]
    at_seconds: float
    stall_seconds: float


@dataclass(frozen=True, slots=True)
class Break:
    """A checkpoint or an evaluation of the whole job between two steps.

    Attributes:
        at_seconds: planned time; it happens at the next step's end.
        phase: ``checkpoint`` or ``evaluation``.
        break_seconds: duration for the ranks with the least work.
        writers: ranks with more work.
        writer_seconds: duration for these.
        announced: whether phase events are sent.
    """

    at_seconds: float
    phase: Literal["checkpoint", "evaluation"]
    break_seconds: float
    writers: tuple[int, ...] = ()
    writer_seconds: float = 0.0
    announced: bool = True


StopManner = Literal["exit", "idle", "spin"]


@dataclass(frozen=True, slots=True)
class Stop:
    """Ranks that stop for good, which stalls the whole job.

    Attributes:
        ranks: the ranks that stop first.
        at_seconds: time of the stop.
        manner: ``exit``: their processes end. ``idle``: they hang with an idle GPU. ``spin``: GPU at 100 %, no
            progress.
        host_lag_seconds: time after which the launcher ends the other ranks of the host (inf: it does not).
        peers_lag_seconds: time after which the peers' processes end (inf: they wait until the end).
        peers_spread_seconds: spread of the peers' ends.
    """

    ranks: tuple[int, ...]
    at_seconds: float
    manner: StopManner = "exit"
    host_lag_seconds: float = NEVER_SECONDS
    peers_lag_seconds: float = NEVER_SECONDS
    peers_spread_seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class Shift:
    """A change of one metric on some machines: ``value * scale + add``, then clipped at ``high``.

    Attributes:
        metric: column name.
        hosts: indices of the hosts, empty for all.
        gpu: index of the GPU; -1 for all of the host, or for a host metric.
        scale_factor: factor at full strength.
        add_value: summand at full strength, in the metric's unit.
        high: limit at full strength (a power cap).
        envelope: strength over time.
    """

    metric: str
    hosts: tuple[int, ...]
    envelope: Envelope
    gpu: int = -1
    scale_factor: float = 1.0
    add_value: float = 0.0
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """Missing samples of a host or GPU.

    Attributes:
        host_index: index of the host.
        begin_seconds: begin of the gap.
        end_seconds: end of the gap.
        gpu: only this GPU's rows; -1: all rows of the host.
    """

    host_index: int
    begin_seconds: float
    end_seconds: float
    gpu: int = -1


@dataclass(frozen=True, slots=True)
class Corruption:
    """A rank whose numbers become NaN or infinite; the others' follow some steps later.

    Attributes:
        rank: the first affected rank.
        at_seconds: time of the first affected step.
        value: ``nan`` or ``inf``.
        lag_steps: steps until the others are affected (0: the same step).
    """

    rank: int
    at_seconds: float
    value: float
    lag_steps: int = 1


@dataclass(frozen=True, slots=True)
class Happening:
    """A planned event row.

    Attributes:
        at_seconds: true time.
        host_index: index of the host.
        rank: global rank, -1 for the host.
        source: source word of the recording format.
        name: event name of the recording format.
        severity: severity word of the recording format.
        payload: JSON object.
    """

    at_seconds: float
    host_index: int
    rank: int
    source: str
    name: str
    severity: str = "info"
    payload: Mapping[str, Any] = field(default_factory=dict)


Part = PlannedSlowdown | PlannedSlowLink | DataWait | Stall | Break | Stop | Shift | Gap | Corruption | Happening


@dataclass(frozen=True, slots=True)
class Truth:
    """One fault of ``truth.json``.

    Attributes:
        kind: ``fail_stop hang fail_slow silent_corruption``.
        cause: cause word of the recording format.
        host_index: index of the host at fault.
        onset_seconds: begin of the fault.
        end_seconds: end of the fault (inf: with the recording).
    """

    kind: str
    cause: str
    host_index: int
    onset_seconds: float
    end_seconds: float = NEVER_SECONDS


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that happens in one case.

    Attributes:
        parts: effects in any order.
        truths: the true faults.
        benign_disturbances: names of the benign disturbances.
    """

    parts: tuple[Part, ...] = ()
    truths: tuple[Truth, ...] = ()
    benign_disturbances: tuple[str, ...] = ()

    def of(self, kind: type[Any]) -> list[Any]:
        """Return the parts of one type."""
        return [part for part in self.parts if isinstance(part, kind)]


def merged(plans: Iterable[Plan]) -> Plan:
    """Return one plan with the content of all plans."""
    listed = list(plans)
    return Plan(
        tuple(part for plan in listed for part in plan.parts),
        tuple(truth for plan in listed for truth in plan.truths),
        tuple(name for plan in listed for name in plan.benign_disturbances),
    )
