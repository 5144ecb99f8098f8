"""What happens in a case, as plain values: faults and innocent disturbances make these.

Times are seconds since the recording's start, true time (not any host's clock). A
plan is what ``physics`` and ``telemetry`` play; they do not know who is to blame.
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
    """How strong an effect is over time, 0 to 1.

    Attributes:
        onset_seconds: nothing before.
        end_seconds: nothing from then on.
        rise_seconds: until full strength (``linear``, ``exponential``, ``stairs``); period of ``flicker``.
        shape: how it comes.
        duty_ratio: share of a ``flicker`` period that is on.
    """

    onset_seconds: float
    end_seconds: float = NEVER_SECONDS
    rise_seconds: float = 0.0
    shape: EnvelopeShape = "sudden"
    duty_ratio: float = 1.0

    def at(self, seconds: Floats) -> Floats:
        """Strength at these times."""
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
        """Whether it can be above zero in the span."""
        return self.onset_seconds < end_seconds and self.end_seconds > begin_seconds


Dilution = Literal["clock", "kernel", "starved"]
"""What a slower computation looks like: ``clock``: as busy as before, fewer bytes a second;
``kernel``: kernels run longer and do less; ``starved``: the GPU is idle in between."""


@dataclass(frozen=True, slots=True)
class PlannedSlowdown:
    """Ranks need more time for some of their own phases.

    Attributes:
        ranks: whose.
        factor: times as long at full strength.
        envelope: when.
        phases: ``data``, ``compute``, ``optimizer``.
        dilution: what the GPU's activity looks like meanwhile.
    """

    ranks: tuple[int, ...]
    factor: float
    envelope: Envelope
    phases: tuple[str, ...] = ("compute", "optimizer")
    dilution: Dilution = "kernel"


@dataclass(frozen=True, slots=True)
class PlannedSlowLink:
    """All transfers take longer because one part of the network is slow.

    Attributes:
        factor: times as long at full strength.
        envelope: when.
    """

    factor: float
    envelope: Envelope


@dataclass(frozen=True, slots=True)
class DataWait:
    """Ranks wait longer for their next batch, by so many seconds a step.

    Attributes:
        ranks: whose; () = all.
        wait_seconds: at full strength.
        envelope: when.
        spread_ratio: how differently the ranks are hit from step to step.
    """

    ranks: tuple[int, ...]
    wait_seconds: float
    envelope: Envelope
    spread_ratio: float = 0.3


@dataclass(frozen=True, slots=True)
class Stall:
    """Ranks stand still once, within one step; the others wait.

    Attributes:
        ranks: whose.
        at_seconds: when.
        stall_seconds: for how long.
    """

    ranks: tuple[int, ...]
    at_seconds: float
    stall_seconds: float


@dataclass(frozen=True, slots=True)
class Break:
    """The whole job does something else between two steps.

    Attributes:
        at_seconds: planned; happens at the next step's end.
        phase: ``checkpoint`` or ``evaluation``.
        break_seconds: how long the ranks that have least to do are busy.
        writers: ranks that have more to do.
        writer_seconds: how long these are busy.
        announced: phase events are sent.
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
    """Ranks stop for good: the whole job stands.

    Attributes:
        ranks: who stops first.
        at_seconds: when.
        manner: ``exit``: their processes end; ``idle``: they stand, GPU idle; ``spin``: GPU at 100 %, no progress.
        host_lag_seconds: the launcher ends the other ranks of the host this long after (inf: it does not).
        peers_lag_seconds: the processes of the peers end this long after (inf: they wait until the end).
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
    """One metric of some machines moves: ``value * scale + add``, then clipped at ``low`` and ``high``.

    Attributes:
        metric: column name.
        hosts: index of the hosts; () = all.
        gpu: only this one; -1: all of the host, or a host metric.
        scale_factor: at full strength.
        add_value: at full strength, in the metric's unit.
        high: limit at full strength (a power cap).
        envelope: when.
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
    """Samples that are missing.

    Attributes:
        host_index: whose.
        begin_seconds: from.
        end_seconds: until.
        gpu: only this GPU's rows; -1: all rows of the host.
    """

    host_index: int
    begin_seconds: float
    end_seconds: float
    gpu: int = -1


@dataclass(frozen=True, slots=True)
class Corruption:
    """A rank's numbers are no numbers from some step on; the others' one step later.

    Attributes:
        rank: the first.
        at_seconds: when.
        value: ``nan`` or ``inf``.
        lag_steps: steps until the others have it (0: the first step already mixes).
    """

    rank: int
    at_seconds: float
    value: float
    lag_steps: int = 1


@dataclass(frozen=True, slots=True)
class Happening:
    """An event row to be.

    Attributes:
        at_seconds: true time.
        host_index: where.
        rank: -1: the host.
        source: word of the format.
        name: word of the format.
        severity: word of the format.
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
        cause: word of the format.
        host_index: who is to blame.
        onset_seconds: when it begins.
        end_seconds: when it ends (inf: with the recording).
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
        parts: in any order.
        truths: the faults among them.
        innocents: names of the disturbances that nobody is to blame for.
    """

    parts: tuple[Part, ...] = ()
    truths: tuple[Truth, ...] = ()
    innocents: tuple[str, ...] = ()

    def of(self, kind: type[Any]) -> list[Any]:
        """The parts of one type."""
        return [part for part in self.parts if isinstance(part, kind)]


def merged(plans: Iterable[Plan]) -> Plan:
    """All of these at once."""
    listed = list(plans)
    return Plan(
        tuple(part for plan in listed for part in plan.parts),
        tuple(truth for plan in listed for truth in plan.truths),
        tuple(name for plan in listed for name in plan.innocents),
    )
