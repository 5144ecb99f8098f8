"""The simulated fault kinds: Minder's table 1, and power cap, heat, CPU contention, loader stall, NaN.

Each function draws one fault of its kind at a site and returns its plan. Effects on the peers are not set here; they
follow from ``physics``. Which metric families change in addition is drawn by shares. Those of ECC errors and PCIe
downgrades are Minder's (from memory, low confidence), the others are guesses from the mechanism.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

from tocsin.pipeline.lab.simulation.draw import Draw
from tocsin.pipeline.lab.simulation.levels import USER_METRIC
from tocsin.pipeline.lab.simulation.plan import (
    NEVER_SECONDS,
    Corruption,
    DataWait,
    Dilution,
    Envelope,
    Gap,
    Happening,
    Part,
    Plan,
    PlannedSlowdown,
    PlannedSlowLink,
    Shift,
)
from tocsin.pipeline.lab.simulation.shape import SimulatedShape
from tocsin.pipeline.lab.simulation.symptoms import (
    Site,
    envelope,
    event,
    fault,
    halt,
    level,
    shift,
    slow_factor,
    sometimes_reported,
    symptoms,
)

_PCI = "0000:c1:00.0"


def _xid(site: Site, code: int) -> Happening:
    """Draw an XID event at the site."""
    return event(site, "xid", {"code": code, "pci": _PCI})


def _slow_kernels(site: Site, dilution: Dilution = "kernel") -> tuple[PlannedSlowdown, Envelope]:
    """Draw a slowdown of one GPU or of the whole host, and its envelope."""
    env = envelope(site)
    ranks = (site.rank,) if site.draw.chance(0.5) else site.host_ranks
    return PlannedSlowdown(ranks, slow_factor(site), env, dilution=dilution), env


def ecc_error(site: Site) -> Plan:
    """Draw memory errors: mostly the process dies; sometimes it hangs, or pages are retired and kernels slow down."""
    shares = {"cpu": 0.8, "gpu": 0.66, "pfc": 0.09, "throughput": 0.46, "disk": 0.11, "memory": 0.57}
    mode = site.draw.weighted({"fail_stop": 0.6, "hang": 0.15, "fail_slow": 0.25})
    ecc = event(site, "ecc", {"kind": "uncorrected", "count": 1 + site.draw.index(8)})
    events = sometimes_reported(site, 0.5, ecc, _xid(site, site.draw.pick((48, 63, 64, 94, 95))))
    if mode == "fail_slow":
        slow, env = _slow_kernels(site)
        return fault(site, mode, "ecc_error", [slow, *symptoms(site, shares, env), *events])
    env = Envelope(site.onset_seconds)
    stop = halt(site, "exit" if mode == "fail_stop" else "idle")
    light = {family: share * 0.5 for family, share in shares.items()}
    return fault(site, mode, "ecc_error", [*stop, *symptoms(site, light, env), *events], NEVER_SECONDS)


def pcie_downgrade(site: Site) -> Plan:
    """Draw a link of one GPU or NIC below its width: buffers fill, PFC surges, all transfers wait."""
    draw, env, factor = site.draw, envelope(site), site.draw.log_band(1.3, 4.0)
    surge = draw.log_band(100.0, 50_000.0)
    parts: list[Part] = [
        PlannedSlowLink(factor, env),
        shift(site, "pfc_tx_packets_per_second", env, add=surge),
        shift(site, "pcie_usage_ratio", env, gpu=site.gpu, scale=draw.band(1.1, 2.0)),
        shift(site, "pcie_bytes_per_second", env, gpu=site.gpu, scale=draw.band(0.4, 0.95)),
    ]
    if draw.chance(0.5):
        parts.append(DataWait((site.rank,), site.shape.pace.step_seconds * draw.log_band(0.02, 0.4), env))
    near = [h for h in range(site.shape.host_count) if _same_leaf(site.shape, h, site.host_index)]
    for metric in ("ecn_packets_per_second", "cnp_packets_per_second"):
        parts.append(Shift(metric, tuple(near), env, add_value=surge * draw.log_uniform(0.01, 0.2)))
        parts.append(shift(site, metric, env, add=surge * draw.log_uniform(0.05, 0.5)))
    width = draw.pick((1, 2, 4, 8))
    link = {"gen": 5, "width": width, "max_gen": 5, "max_width": 16}
    parts += symptoms(site, {"gpu": 0.08, "throughput": 0.33}, env)
    parts += sometimes_reported(site, 0.4, event(site, "pcie_link", link, severity="warning"))
    return fault(site, "fail_slow", "pcie_downgrade", parts)


def _same_leaf(shape: SimulatedShape, host: int, other: int) -> bool:
    """Return whether two different hosts are behind the same leaf switch."""
    return host != other and bool(shape.leaf_of_host[host] == shape.leaf_of_host[other])


def nic_dropout(site: Site) -> Plan:
    """Draw a port that leaves the fabric: the job stalls, or continues over the host's other ports."""
    draw = site.draw
    port = {"port": f"mlx5_{site.gpu}/1", "state": "down", "rate_gbps": 400, "link_downed": 1}
    events = sometimes_reported(site, 0.5, event(site, "ib_port", port))
    if draw.chance(0.4):
        env, factor = envelope(site), draw.log_band(1.15, 3.0)
        parts: list[Part] = [PlannedSlowLink(factor, env), *events]
        parts.append(shift(site, "rdma_bytes_per_second", env, scale=draw.band(0.4, 0.9)))
        parts += symptoms(site, {"pfc": 0.7, "cpu": 0.3, "throughput": 0.3}, env)
        return fault(site, "fail_slow", "nic_dropout", parts)
    env = Envelope(site.onset_seconds)
    manner = draw.weighted({"spin": 0.5, "exit": 0.5})
    parts = [*halt(site, "exit" if manner == "exit" else "spin"), *events]
    shares = {"cpu": 0.5, "gpu": 0.3, "throughput": 0.7, "pfc": 0.1, "memory": 0.3}
    parts += symptoms(site, shares, env, at_least_one=manner == "spin")
    return fault(site, "fail_stop" if manner == "exit" else "hang", "nic_dropout", parts, NEVER_SECONDS)


def gpu_card_drop(site: Site) -> Plan:
    """Draw a GPU that falls off the bus: its samples end, its process dies or hangs."""
    draw, env = site.draw, Envelope(site.onset_seconds)
    manner = draw.weighted({"exit": 0.75, "idle": 0.25})
    parts: list[Part] = halt(site, "exit" if manner == "exit" else "idle")
    if draw.chance(0.8):
        parts.append(Gap(site.host_index, site.onset_seconds + draw.uniform(0, 3), NEVER_SECONDS, gpu=site.gpu))
    parts += symptoms(site, {"cpu": 0.4, "gpu": 0.5, "throughput": 0.3, "disk": 0.1, "memory": 0.3}, env)
    parts += sometimes_reported(site, 0.6, _xid(site, 79))
    return fault(site, "fail_stop" if manner == "exit" else "hang", "gpu_card_drop", parts, NEVER_SECONDS)


def nvlink_error(site: Site) -> Plan:
    """Draw NVLink errors: traffic is replayed and the tensor-parallel peers slow down too, or the process dies."""
    draw = site.draw
    events = sometimes_reported(site, 0.5, _xid(site, 74), event(site, "nvlink_error", {"link": draw.index(18)}))
    if draw.chance(0.6):
        slow, env = _slow_kernels(site)
        narrow = shift(site, "nvlink_bytes_per_second", env, gpu=site.gpu, scale=draw.band(0.2, 0.9))
        extra = symptoms(site, {"cpu": 0.3, "gpu": 0.3, "pfc": 0.1, "throughput": 0.2}, env)
        return fault(site, "fail_slow", "nvlink_error", [slow, narrow, *extra, *events])
    extra = symptoms(site, {"cpu": 0.3, "gpu": 0.4, "memory": 0.3}, Envelope(site.onset_seconds))
    return fault(site, "fail_stop", "nvlink_error", [*halt(site, "exit"), *extra, *events], NEVER_SECONDS)


def aoc_error(site: Site) -> Plan:
    """Draw a degraded optical cable: transfers are repeated, mostly in bursts."""
    draw, factor = site.draw, site.draw.log_band(1.3, 5.0)
    env = envelope(site)
    if draw.chance(0.4):
        period = draw.log_band(10.0, 60.0)
        env = Envelope(site.onset_seconds, site.end_seconds, period, "flicker", draw.band(0.4, 0.9))
    parts: list[Part] = [PlannedSlowLink(factor, env)]
    parts += symptoms(site, {"pfc": 0.75, "throughput": 0.5, "cpu": 0.15}, env, at_least_one=True)
    port = {"port": f"mlx5_{site.gpu}/1", "state": "active", "rate_gbps": 400, "link_downed": 1 + draw.index(3)}
    parts += sometimes_reported(site, 0.3, event(site, "ib_port", port, severity="warning"))
    return fault(site, "fail_slow", "aoc_error", parts)


def cuda_execution_error(site: Site) -> Plan:
    """Draw a failed kernel: the process dies, or hangs in its exception handler."""
    manner = site.draw.weighted({"exit": 0.75, "idle": 0.25})
    parts = halt(site, "exit" if manner == "exit" else "idle")
    shares = {"cpu": 0.4, "gpu": 0.4, "pfc": 0.05, "throughput": 0.3, "disk": 0.1, "memory": 0.3}
    parts += symptoms(site, shares, Envelope(site.onset_seconds))
    parts += sometimes_reported(site, 0.4, _xid(site, site.draw.pick((13, 31, 43))))
    return fault(site, "fail_stop" if manner == "exit" else "hang", "cuda_execution_error", parts, NEVER_SECONDS)


def gpu_execution_error(site: Site) -> Plan:
    """Draw a GPU that fails while executing: it spins without progress, slows down, or ends the process."""
    mode = site.draw.weighted({"fail_slow": 0.4, "hang": 0.3, "fail_stop": 0.3})
    events = sometimes_reported(site, 0.4, _xid(site, site.draw.pick((45, 62, 109, 119))))
    shares = {"cpu": 0.35, "gpu": 0.4, "pfc": 0.1, "throughput": 0.3, "memory": 0.2}
    if mode == "fail_slow":
        slow, env = _slow_kernels(site, site.draw.pick(("kernel", "clock")))
        return fault(site, mode, "gpu_execution_error", [slow, *symptoms(site, shares, env), *events])
    parts = halt(site, "spin" if mode == "hang" else "exit")
    parts += symptoms(site, shares, Envelope(site.onset_seconds), at_least_one=mode == "hang")
    return fault(site, mode, "gpu_execution_error", [*parts, *events], NEVER_SECONDS)


def hdfs_error(site: Site) -> Plan:
    """Draw a host without its file system: its loaders retry, or its processes hang in input and output."""
    draw = site.draw
    shares = {"cpu": 0.6, "throughput": 0.6, "disk": 0.15, "memory": 0.3}
    slow_disk = shift(site, USER_METRIC.name, Envelope(site.onset_seconds), scale=draw.log_band(1.5, 50.0))
    if draw.chance(0.55):
        env, wait = envelope(site), site.shape.pace.step_seconds * draw.log_band(0.15, 2.0)
        slow_disk = dataclasses.replace(slow_disk, envelope=env)
        parts: list[Part] = [DataWait(site.host_ranks, wait, env, draw.uniform(0.0, 0.6)), slow_disk]
        parts += symptoms(site, shares, env)
        parts += sometimes_reported(site, 0.3, _loader(site, wait))
        return fault(site, "fail_slow", "hdfs_error", parts)
    parts = [*halt(site, "idle", whole_host=True), slow_disk]
    parts += symptoms(site, shares, Envelope(site.onset_seconds))
    return fault(site, "hang", "hdfs_error", parts, NEVER_SECONDS)


def _loader(site: Site, wait_seconds: float) -> Happening:
    """Draw the event of a slow loader."""
    payload = {"source": "train", "queue_depth": 0, "fetch_seconds": round(wait_seconds, 3), "rows": 0}
    return event(site, "loader", payload, source="loader", severity="warning")


def machine_unreachable(site: Site) -> Plan:
    """Draw an unreachable machine: its samples end, its peers wait."""
    parts = halt(site, "idle", whole_host=True)
    parts.append(Gap(site.host_index, site.onset_seconds + site.draw.uniform(0.0, 2.0), NEVER_SECONDS))
    return fault(site, "hang", "machine_unreachable", parts, NEVER_SECONDS)


def power_cap(site: Site) -> Plan:
    """Draw a lower power limit on one GPU or the whole host."""
    draw, env, factor = site.draw, envelope(site), site.draw.log_band(1.1, 2.2)
    one = draw.chance(0.35)
    gpu, ranks = (site.gpu, (site.rank,)) if one else (-1, site.host_ranks)
    power = level(site, "gpu_power_watts") * factor ** draw.uniform(-1.4, -0.8)
    cap = Shift("gpu_power_watts", (site.host_index,), env, gpu=gpu, high=power)
    parts: list[Part] = [
        PlannedSlowdown(ranks, factor, env, dilution="clock"),
        cap,
        shift(site, "gpu_sm_clock_hertz", env, gpu=gpu, scale=factor**-1.0),
    ]
    clocks = {"reasons": ["sw_power_cap"]}
    parts += sometimes_reported(site, 0.4, event(site, "clocks_event", clocks, severity="warning"))
    return fault(site, "fail_slow", "power_cap", parts)


def thermal_throttle(site: Site) -> Plan:
    """Draw a GPU or host that gets hot and then lowers its clocks."""
    draw, factor = site.draw, site.draw.log_band(1.1, 2.0)
    env = envelope(site, gradual=draw.chance(0.8))
    one = draw.chance(0.35)
    gpu, ranks = (site.gpu, (site.rank,)) if one else (-1, site.host_ranks)
    parts: list[Part] = [
        PlannedSlowdown(ranks, factor, env, dilution="clock"),
        shift(site, "gpu_sm_clock_hertz", env, gpu=gpu, scale=factor**-1.0),
        shift(site, "gpu_power_watts", env, gpu=gpu, scale=factor ** -draw.uniform(0.3, 1.2)),
        shift(site, "gpu_temperature_celsius", env, gpu=gpu, add=draw.band(8.0, 32.0)),
    ]
    clocks = {"reasons": [draw.pick(("hw_thermal", "sw_thermal"))]}
    parts += sometimes_reported(site, 0.4, event(site, "clocks_event", clocks, severity="warning"))
    return fault(site, "fail_slow", "thermal_throttle", parts)


def cpu_contention(site: Site) -> Plan:
    """Draw CPU contention on a host: kernels are launched late."""
    draw, env = site.draw, envelope(site)
    phases = ("data", "compute") if draw.chance(0.6) else ("data", "compute", "optimizer")
    parts: list[Part] = [
        PlannedSlowdown(site.host_ranks, slow_factor(site), env, phases, "starved"),
        shift(site, "cpu_util_ratio", env, add=draw.band(0.08, 0.7)),
    ]
    parts += symptoms(site, {"memory": 0.3, "disk": 0.1}, env)
    return fault(site, "fail_slow", "cpu_contention", parts)


def loader_stall(site: Site) -> Plan:
    """Draw a rank (or whole host) that waits for its own data loader in every step."""
    draw, env = site.draw, envelope(site)
    wait = site.shape.pace.step_seconds * draw.log_band(0.1, 2.0)
    ranks = (site.rank,) if draw.chance(0.5) else site.host_ranks
    parts: list[Part] = [DataWait(ranks, wait, env, draw.uniform(0.0, 0.8))]
    parts += symptoms(site, {"cpu": 0.4, "throughput": 0.2, "memory": 0.15}, env)
    parts += sometimes_reported(site, 0.4, _loader(site, wait))
    return fault(site, "fail_slow", "loader_stall", parts)


def nan_gradient(site: Site) -> Plan:
    """Draw a rank with NaN or infinite numbers, which reach all ranks a step later; the job continues or is ended."""
    draw = site.draw
    value = draw.pick((math.nan, math.nan, math.inf))
    parts: list[Part] = [Corruption(site.rank, site.onset_seconds, value, draw.pick((1, 1, 1, 2)))]
    if draw.chance(0.5):
        payload = {"step": 0, "what": draw.pick(("loss", "grad_norm")), "value": "nan"}
        at = site.onset_seconds + site.shape.pace.step_seconds
        parts.append(Happening(at, site.host_index, site.rank, "process", "nan", "error", payload))
    return fault(site, "silent_corruption", "nan_gradient", parts, NEVER_SECONDS)


FAULTS: Mapping[str, Callable[[Site], Plan]] = {
    function.__name__: function
    for function in (
        ecc_error,
        pcie_downgrade,
        nic_dropout,
        gpu_card_drop,
        nvlink_error,
        aoc_error,
        cuda_execution_error,
        gpu_execution_error,
        hdfs_error,
        machine_unreachable,
        power_cap,
        thermal_throttle,
        cpu_contention,
        loader_stall,
        nan_gradient,
    )
}
"""Kind of fault -> function that draws it. The kind is the cause's word."""

_MINDER_SHARES = {
    "ecc_error": 38.9,
    "pcie_downgrade": 6.6,
    "nic_dropout": 5.7,
    "gpu_card_drop": 2.0,
    "nvlink_error": 1.7,
    "aoc_error": 0.9,
    "cuda_execution_error": 14.6,
    "gpu_execution_error": 7.7,
    "hdfs_error": 5.7,
    "machine_unreachable": 6.0,
}
SHARES: dict[str, float] = {kind: math.sqrt(_MINDER_SHARES.get(kind, 4.0)) for kind in FAULTS}
"""Kind of fault -> weight with which it is drawn: the square root of Minder's share, so that rare ones occur too."""


def draw_fault(draw: Draw, shape: SimulatedShape, kind: str, case_seconds: float) -> Plan:
    """Draw one fault of this kind at a random place and time of the job."""
    onset = draw.uniform(max(min(180.0, 0.4 * case_seconds), 0.25 * case_seconds), 0.6 * case_seconds)
    lasts = draw.chance(0.75)
    end = NEVER_SECONDS if lasts else min(onset + draw.log_uniform(90.0, 500.0), case_seconds)
    site = Site(
        draw,
        shape,
        draw.index(shape.host_count),
        draw.index(shape.gpus_per_host_count),
        onset,
        NEVER_SECONDS if end >= case_seconds else end,
        case_seconds,
    )
    return FAULTS[kind](site)
