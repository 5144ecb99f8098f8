"""Benign disturbances: simulated effects that look like faults and are none, so that nobody may be accused.

Each function draws one disturbance for a job (``shape``) of a recording of ``seconds``, and returns its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tocsin.pipeline.lab.simulation.draw import Draw
from tocsin.pipeline.lab.simulation.levels import GPU_INDEX, IDLE, USER_METRIC
from tocsin.pipeline.lab.simulation.plan import (
    Break,
    DataWait,
    Envelope,
    Gap,
    Happening,
    Part,
    Plan,
    PlannedSlowdown,
    PlannedSlowLink,
    Shift,
    Stall,
)
from tocsin.pipeline.lab.simulation.shape import SimulatedShape, compute_level


def _span(draw: Draw, at: float, low_seconds: float, high_seconds: float) -> Envelope:
    """Draw the envelope of a temporary disturbance."""
    length = draw.log_uniform(low_seconds, high_seconds)
    shape = draw.pick(("sudden", "linear"))
    return Envelope(at, at + length, length / 4, "linear" if shape == "linear" else "sudden")


def checkpoint(draw: Draw, shape: SimulatedShape, seconds: float) -> list[Part]:
    """Draw periodic checkpoints: all ranks pause every few minutes, the writing ones longer."""
    period, length = draw.log_band(120.0, 900.0), draw.log_band(1.5, 60.0)
    writers: tuple[int, ...] = ()
    if draw.chance(0.4):  # one replica writes
        ranks = range(shape.rank_count)
        writers = tuple(rank for rank in ranks if (rank // shape.tp) % shape.dp == 0)
    announced = draw.chance(0.6)
    longer = length * draw.uniform(1.0, 2.0) if length < 20.0 else length + draw.uniform(0.0, 15.0)
    first = draw.uniform(0.1, 1.0) * min(period, seconds / 2)
    count = int(max(0.0, seconds - first) / period) + 1
    return [Break(first + index * period, "checkpoint", length, writers, longer, announced) for index in range(count)]


def upload(draw: Draw, shape: SimulatedShape, seconds: float) -> list[Part]:
    """Draw background uploads of one host: more traffic and CPU for minutes, no slower steps."""
    hosts = (draw.index(shape.host_count),)
    period, length = draw.log_band(180.0, 1200.0), draw.log_band(5.0, 60.0)
    traffic, cpu = draw.log_band(1e7, 1e9), draw.band(0.002, 0.06)
    parts: list[Part] = []
    at = draw.uniform(0.0, 1.0) * min(period, seconds)
    while at < seconds:
        env = Envelope(at, at + length * draw.uniform(0.8, 1.2))
        parts.append(Shift("tcp_bytes_per_second", hosts, env, add_value=traffic))
        parts.append(Shift("cpu_util_ratio", hosts, env, add_value=cpu))
        at += period
    return parts


def evaluation(draw: Draw, shape: SimulatedShape, seconds: float) -> list[Part]:  # noqa: ARG001  # a BenignDisturbance
    """Draw evaluations: all ranks compute forward passes only for a while."""
    announced = draw.chance(0.6)
    length = draw.log_band(8.0, 150.0)
    return [Break(at, "evaluation", length, announced=announced) for at in draw.times(seconds, per_hour=3.0)]


def jitter(draw: Draw, shape: SimulatedShape, seconds: float) -> list[Part]:
    """Draw short stalls: single hosts or ranks pause for some seconds, each time others."""
    parts: list[Part] = []
    per_hour = draw.log_uniform(3.0, 60.0) + 0.05 * shape.host_count
    for at in draw.times(seconds, per_hour):
        host = draw.index(shape.host_count)
        ranks = shape.ranks_of(host)
        if draw.chance(0.5):
            ranks = (draw.pick(ranks),)
        parts.append(Stall(ranks, at, draw.log_band(0.5, 7.0)))
    return parts


def garbage_collection(draw: Draw, shape: SimulatedShape, seconds: float) -> list[Part]:
    """Draw garbage collections: changing ranks pause for fractions of a second."""
    pause = draw.log_band(0.1, 0.9)
    return [
        Stall((draw.index(shape.rank_count),), at, pause)
        for at in draw.times(seconds, per_hour=draw.log_uniform(30.0, 600.0))
    ]


def warm_host(draw: Draw, shape: SimulatedShape, seconds: float) -> list[Part]:
    """Draw hot hosts: hotter than their peers and as fast, always or from some time on."""
    parts: list[Part] = []
    for _ in range(1 + shape.host_count // 200):
        begin = -1e9 if draw.chance(0.9) else draw.uniform(0.1, 0.8) * seconds
        env = Envelope(begin, rise_seconds=draw.log_uniform(20.0, 300.0), shape="linear")
        hosts = (draw.index(shape.host_count),)
        parts.append(Shift("gpu_temperature_celsius", hosts, env, add_value=draw.band(4.0, 16.0)))
        parts.append(Shift("gpu_power_watts", hosts, env, scale_factor=draw.uniform(1.0, 1.04)))
    return parts


def cpu_daemon(draw: Draw, shape: SimulatedShape, seconds: float) -> list[Part]:
    """Draw CPU daemons: CPU use of a host for about ten seconds, without an effect on training."""
    parts: list[Part] = []
    per_hour = draw.log_uniform(3.0, 40.0) + 0.05 * shape.host_count
    for at in draw.times(seconds, per_hour):
        env = Envelope(at, at + draw.log_uniform(3.0, 10.5))
        parts.append(Shift("cpu_util_ratio", (draw.index(shape.host_count),), env, add_value=draw.band(0.05, 0.7)))
    return parts


def agent_restart(draw: Draw, shape: SimulatedShape, seconds: float) -> list[Part]:
    """Draw agent restarts: samples of a host are missing for some seconds."""
    parts: list[Part] = []
    for at in draw.times(seconds, per_hour=2.0 + 0.02 * shape.host_count):
        host, gap = draw.index(shape.host_count), draw.log_band(2.0, 24.0)
        parts.append(Gap(host, at, at + gap))
        if draw.chance(0.7):
            for when, edge in ((at, "stop"), (at + gap, "start")):
                parts.append(Happening(when, host, -1, "process", "agent", "info", {"edge": edge}))
    return parts


def shared_storage(draw: Draw, shape: SimulatedShape, seconds: float) -> list[Part]:
    """Draw slow shared storage: every rank waits for data."""
    parts: list[Part] = []
    for at in draw.times(seconds, per_hour=2.0):
        env = _span(draw, at, 15.0, 240.0)
        wait = shape.pace.step_seconds * draw.log_band(0.1, 3.0)
        parts.append(DataWait((), wait, env, draw.uniform(0.1, 0.9)))
        parts.append(Shift("tcp_bytes_per_second", (), env, scale_factor=draw.band(0.2, 0.9)))
        parts.append(Shift(USER_METRIC.name, (), env, scale_factor=draw.log_band(1.5, 30.0)))
    return parts


def congestion(draw: Draw, shape: SimulatedShape, seconds: float) -> list[Part]:
    """Draw network congestion of one minipod, seen by all its hosts."""
    parts: list[Part] = []
    for at in draw.times(seconds, per_hour=2.0):
        env = _span(draw, at, 15.0, 240.0)
        pod = int(shape.minipod_of_host[draw.index(shape.host_count)])
        hosts = tuple(h for h in range(shape.host_count) if int(shape.minipod_of_host[h]) == pod)
        if len(hosts) < 3:
            hosts = ()
        for name in ("pfc_tx", "ecn", "cnp"):
            metric, packets = f"{name}_packets_per_second", draw.log_band(100.0, 20_000.0)
            parts += [
                Shift(metric, (host,), env, add_value=packets * draw.log_uniform(0.4, 2.5))
                for host in hosts or range(shape.host_count)
            ]
        parts.append(PlannedSlowLink(draw.log_band(1.1, 2.5), env))
    return parts


def packet_burst(draw: Draw, shape: SimulatedShape, seconds: float) -> list[Part]:
    """Draw packet bursts: one host's network counters jump for some seconds."""
    parts: list[Part] = []
    for at in draw.times(seconds, per_hour=draw.log_uniform(4.0, 40.0)):
        env = Envelope(at, at + draw.log_uniform(1.0, 12.0))
        hosts = (draw.index(shape.host_count),)
        for name in ("pfc_tx", "ecn", "cnp"):
            metric = f"{name}_packets_per_second"
            parts.append(Shift(metric, hosts, env, add_value=draw.log_band(50.0, 20_000.0)))
    return parts


def workload_change(draw: Draw, shape: SimulatedShape, seconds: float) -> list[Part]:
    """Draw a workload change of all ranks together: longer sequences, another batch size."""
    env = Envelope(draw.uniform(0.2, 0.8) * seconds)
    every = tuple(range(shape.rank_count))
    parts: list[Part] = [PlannedSlowdown(every, draw.log_band(1.05, 1.8), env)]
    parts.append(Shift("gpu_memory_used_bytes", (), env, scale_factor=draw.band(0.8, 1.05)))
    return parts


def odd_host(draw: Draw, shape: SimulatedShape, seconds: float) -> list[Part]:  # noqa: ARG001  # a BenignDisturbance
    """Draw hosts that differ from the start: more CPU, less power, another firmware."""
    parts: list[Part] = []
    always = Envelope(-1e9)
    for _ in range(1 + shape.host_count // 100):
        hosts = (draw.index(shape.host_count),)
        idle = float(shape.levels.gpu[IDLE, GPU_INDEX["gpu_power_watts"]])
        parts.append(Shift("cpu_util_ratio", hosts, always, scale_factor=draw.band(0.8, 1.6)))
        parts.append(Shift("gpu_power_watts", hosts, always, add_value=idle * draw.band(-0.3, 0.3)))
        parts.append(Shift("memory_used_ratio", hosts, always, add_value=draw.band(-0.1, 0.15)))
    return parts


def side_job(draw: Draw, shape: SimulatedShape, seconds: float) -> list[Part]:
    """Draw harmless side jobs: a little more CPU and memory on one host for minutes, no slower steps."""
    parts: list[Part] = []
    for at in draw.times(seconds, per_hour=2.0):
        env = _span(draw, at, 30.0, 300.0)
        hosts = (draw.index(shape.host_count),)
        cpu = compute_level(shape, "cpu_util_ratio")
        parts.append(Shift("cpu_util_ratio", hosts, env, add_value=cpu * draw.band(0.05, 0.5)))
        parts.append(Shift("memory_used_ratio", hosts, env, add_value=draw.band(0.0, 0.05)))
        parts.append(Shift("disk_used_ratio", hosts, Envelope(at), add_value=draw.log_band(0.001, 0.03)))
    return parts


BenignDisturbance = Callable[[Draw, SimulatedShape, float], list[Part]]


def _of_the_shape(draw: Draw, shape: SimulatedShape, seconds: float) -> list[Part]:  # noqa: ARG001  # a BenignDisturbance
    """Return no parts, because ``draw_shape`` built the disturbance into the job."""
    return []


BENIGN_DISTURBANCES: Mapping[str, BenignDisturbance] = {
    **{
        function.__name__: function
        for function in (
            checkpoint,
            upload,
            evaluation,
            jitter,
            garbage_collection,
            warm_host,
            cpu_daemon,
            agent_restart,
            shared_storage,
            congestion,
            packet_burst,
            workload_change,
            odd_host,
            side_job,
        )
    },
    **dict.fromkeys(("lost_samples", "clock_offset", "stage_load", "data_skew"), _of_the_shape),
}
"""Name -> function that draws the disturbance. The last four are properties of the job."""

_SHARES = {
    "checkpoint": 0.5,
    "upload": 0.04,
    "evaluation": 0.2,
    "jitter": 0.5,
    "garbage_collection": 0.3,
    "warm_host": 0.2,
    "cpu_daemon": 0.4,
    "agent_restart": 0.3,
    "shared_storage": 0.2,
    "congestion": 0.08,
    "packet_burst": 0.3,
    "workload_change": 0.1,
    "odd_host": 0.3,
    "side_job": 0.04,
}
"""Name -> share of the cases that have the disturbance."""


def draw_benign_disturbances(draw: Draw, shape: SimulatedShape, seconds: float, must: str | None = None) -> Plan:
    """Draw a random set of disturbances as a plan; ``must``: one that is always included."""
    parts: list[Part] = []
    names: list[str] = []
    for name, share in _SHARES.items():
        if draw.chance(share) or name == must:
            parts += BENIGN_DISTURBANCES[name](draw, shape, seconds)
            names.append(name)
    names += [name for name in _traits(shape) if name not in names]
    return Plan(tuple(parts), benign_disturbances=tuple(names))


def _traits(shape: SimulatedShape) -> list[str]:
    """Return the names of disturbances that are built into the job."""
    found = {
        "lost_samples": shape.lost_ratio > 0.0,
        "clock_offset": float(abs(shape.clock_offset_seconds).max()) > 0.02,
        "stage_load": shape.pp > 1,
        "data_skew": shape.pace.skew_ratio > 0.0,
    }
    return [name for name, there in found.items() if there]
