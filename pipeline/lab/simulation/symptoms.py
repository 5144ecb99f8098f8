"""Helpers shared by fault kinds: envelopes, symptoms by metric family, ways in which a job ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tocsin.pipeline.lab.simulation.draw import Draw
from tocsin.pipeline.lab.simulation.plan import (
    NEVER_SECONDS,
    Envelope,
    EnvelopeShape,
    Happening,
    Part,
    Plan,
    Shift,
    Stop,
    StopManner,
    Truth,
)
from tocsin.pipeline.lab.simulation.shape import SimulatedShape, compute_level


@dataclass(frozen=True, slots=True)
class Site:
    """The place and time of a fault.

    Attributes:
        draw: source of further random draws.
        shape: the job.
        host_index: index of the host at fault.
        gpu: index of the GPU on it, for faults of one GPU.
        onset_seconds: begin of the fault.
        end_seconds: end of the fault (inf: it lasts); only faults that let the job run can end early.
        case_seconds: length of the case.
    """

    draw: Draw
    shape: SimulatedShape
    host_index: int
    gpu: int
    onset_seconds: float
    end_seconds: float
    case_seconds: float

    @property
    def rank(self) -> int:
        """Rank on this GPU."""
        return self.host_index * self.shape.gpus_per_host_count + self.gpu

    @property
    def host_ranks(self) -> tuple[int, ...]:
        """All ranks of the host."""
        return self.shape.ranks_of(self.host_index)


def envelope(site: Site, *, gradual: bool = False) -> Envelope:
    """Draw how a fail-slow fault sets in: at once, or over up to four minutes."""
    draw = site.draw
    if not gradual and draw.chance(0.6):
        return Envelope(site.onset_seconds, site.end_seconds)
    shape: EnvelopeShape = draw.shape(("linear",), ("stairs",), ("exponential",))
    return Envelope(site.onset_seconds, site.end_seconds, draw.log_band(8.0, 240.0), shape)


def slow_factor(site: Site) -> float:
    """Draw the factor by which a slow part takes longer."""
    return site.draw.log_band(1.1, 3.0)


def fault(site: Site, kind: str, cause: str, parts: list[Part], end_seconds: float | None = None) -> Plan:
    """Return a plan with these parts and its true fault."""
    end = site.end_seconds if end_seconds is None else end_seconds
    return Plan(tuple(parts), (Truth(kind, cause, site.host_index, site.onset_seconds, end),))


def shift(site: Site, metric: str, env: Envelope, *, gpu: int = -1, scale: float = 1.0, add: float = 0.0) -> Shift:
    """Return a change of a metric on the faulty host."""
    return Shift(metric, (site.host_index,), env, gpu=gpu, scale_factor=scale, add_value=add)


def event(
    site: Site, name: str, payload: Mapping[str, object], *, source: str = "kernel", severity: str = "error"
) -> Happening:
    """Draw an event of the faulty host, up to four seconds after the onset."""
    at = site.onset_seconds + site.draw.uniform(0.0, 4.0)
    return Happening(at, site.host_index, -1, source, name, severity, payload)


def sometimes_reported(site: Site, ratio: float, *parts: Part) -> list[Part]:
    """Return these events with this probability, else none; many sites do not collect them."""
    return list(parts) if site.draw.chance(ratio) else []


FAMILIES: Mapping[str, tuple[str, ...]] = {
    "cpu": ("cpu_util_ratio",),
    "gpu": ("gpu_util_ratio", "gpu_graphics_active_ratio", "gpu_sm_active_ratio", "gpu_tensor_active_ratio"),
    "pfc": ("pfc_tx_packets_per_second", "ecn_packets_per_second", "cnp_packets_per_second"),
    "throughput": ("tcp_bytes_per_second", "rdma_bytes_per_second", "nvlink_bytes_per_second"),
    "disk": ("disk_used_ratio",),
    "memory": ("memory_used_ratio",),
}
"""Metric families of Minder -> their metrics."""


def symptoms(site: Site, shares: Mapping[str, float], env: Envelope, *, at_least_one: bool = False) -> list[Part]:
    """Draw changes of metric families beyond those of the physics, each family with its own probability."""
    draw, parts = site.draw, list[Part]()
    moved = [family for family, share in shares.items() if draw.chance(share)]
    if at_least_one and not moved:
        moved = [draw.weighted(dict(shares))]
    for family in moved:
        late = Envelope(env.onset_seconds + draw.log_uniform(0.5, 15.0), env.end_seconds, env.rise_seconds, env.shape)
        for metric in FAMILIES[family]:
            if family == "pfc":
                parts.append(shift(site, metric, late, add=draw.log_band(30.0, 30_000.0)))
            elif family == "disk":
                parts.append(shift(site, metric, late, add=draw.log_band(0.005, 0.15)))
            elif family == "memory":
                parts.append(shift(site, metric, late, add=draw.pick((-1, 1)) * draw.band(0.02, 0.3)))
            elif family == "cpu":
                scale = draw.pick((draw.band(0.2, 0.85), draw.log_band(1.2, 2.5)))
                parts.append(shift(site, metric, late, scale=scale))
            else:
                parts.append(shift(site, metric, late, scale=draw.band(0.3, 0.95)))
    return parts


def halt(site: Site, manner: StopManner, *, whole_host: bool = False) -> list[Part]:
    """Draw the stop of a rank (or its host) for good, which ends the job, with events where they are collected."""
    draw = site.draw
    lag = draw.weighted({"fast": 0.15, "medium": 0.5, "never": 0.35})
    peers = {
        "fast": draw.log_band(1.0, 20.0),
        "medium": draw.log_band(30.0, 400.0),
        "never": NEVER_SECONDS,
    }[lag]
    host = draw.log_uniform(0.5, 15.0) if manner == "exit" or draw.chance(0.3) else NEVER_SECONDS
    ranks = site.host_ranks if whole_host else (site.rank,)
    parts: list[Part] = [Stop(ranks, site.onset_seconds, manner, host, peers, draw.log_uniform(0.2, 6.0))]
    if manner == "exit" and draw.chance(0.5):
        signal = draw.pick((0, 6, 9, 11))
        payload = {"code": 0 if signal else 1, "signal": signal, "stderr_tail": ""}
        at = site.onset_seconds + draw.uniform(0.0, 1.0)
        parts.append(Happening(at, site.host_index, site.rank, "process", "exit", "error", payload))
    if manner == "exit" and draw.chance(0.3):  # a core dump
        env = Envelope(site.onset_seconds, site.onset_seconds + draw.log_band(10.0, 120.0))
        parts.append(shift(site, "cpu_util_ratio", env, add=draw.band(0.02, 0.2)))
    return parts


def level(site: Site, metric: str) -> float:
    """Return the level of a metric while the job computes."""
    return compute_level(site.shape, metric)
