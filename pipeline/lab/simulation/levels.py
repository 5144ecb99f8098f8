"""Base levels: the value of each metric in each phase of a healthy job.

A matrix (phases, metrics) per job, drawn from public knowledge of GPU servers. A rank that waits in a collective
spins (utilisation near 1, tensor cores idle, half the power) or sleeps, depending on the job's library.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tocsin.pipeline.lab.simulation.draw import Draw
from tocsin.schemas.metrics import GPU_METRICS, Metric
from tocsin.schemas.metrics import HOST_METRICS as BUILTIN_HOST_METRICS

Singles = NDArray[np.float32]

PHASES = ("data", "compute", "optimizer", "transfer", "wait", "idle", "gone", "checkpoint", "evaluation")
DATA, COMPUTE, OPTIMIZER, TRANSFER, WAIT, IDLE, GONE, CHECKPOINT, EVALUATION = range(len(PHASES))
USER_METRIC = Metric("disk_latency_seconds", "host", 0.0, 1.0, "high")
"""A user-defined metric, present in some recordings."""
HOST_METRICS = (*BUILTIN_HOST_METRICS, USER_METRIC)
GPU_INDEX = {metric.name: index for index, metric in enumerate(GPU_METRICS)}
HOST_INDEX = {metric.name: index for index, metric in enumerate(HOST_METRICS)}


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One model of accelerator.

    Attributes:
        name: name of the model.
        limit_watts: power limit.
        clock_hertz: highest SM clock.
        memory_bytes: size of its memory.
        nvlink_bytes_per_second: NVLink bandwidth of both directions, 0 for none.
        pcie_bytes_per_second: PCIe bandwidth of both directions.
        nic_bytes_per_second: network bandwidth of the host per GPU, both directions.
    """

    name: str
    limit_watts: float
    clock_hertz: float
    memory_bytes: float
    nvlink_bytes_per_second: float
    pcie_bytes_per_second: float
    nic_bytes_per_second: float


GPU_MODELS = (
    GpuModel("a100", 400.0, 1.41e9, 80e9, 600e9, 64e9, 50e9),
    GpuModel("h100", 700.0, 1.98e9, 80e9, 900e9, 128e9, 100e9),
    GpuModel("h200", 700.0, 1.98e9, 141e9, 900e9, 128e9, 100e9),
    GpuModel("b200", 1000.0, 1.965e9, 180e9, 1800e9, 128e9, 100e9),
    GpuModel("l40s", 350.0, 2.52e9, 48e9, 0.0, 64e9, 25e9),
)


@dataclass(frozen=True, slots=True)
class Levels:
    """The base levels of one job's machines.

    Attributes:
        gpu: float32 (phases, GPU metrics); temperature here is the rise above idle per watt's share.
        host: float32 (phases, host metrics).
        spins: whether a waiting rank keeps its GPU busy.
        model: model of the accelerators.
        pcie_limit_bytes_per_second: bandwidth of which ``pcie_usage_ratio`` is a share.
    """

    gpu: Singles
    host: Singles
    spins: bool
    model: GpuModel
    pcie_limit_bytes_per_second: float


def _row(**phases: float) -> list[float]:
    """Return one metric's level in each phase; phases not named are 0."""
    return [phases.get(name, 0.0) for name in PHASES]


def draw_levels(draw: Draw, tp: int, pp: int) -> Levels:
    """Draw the base levels of one job."""
    model = draw.pick(GPU_MODELS)
    spins = draw.chance(0.8)
    gpu = np.zeros((len(PHASES), len(GPU_METRICS)), np.float32)
    for name, row in (_activity_rows(draw, spins=spins) | _load_rows(draw, model, tp, spins=spins)).items():
        gpu[:, GPU_INDEX[name]] = row
    gpu[:, GPU_INDEX["pcie_usage_ratio"]] = gpu[:, GPU_INDEX["pcie_bytes_per_second"]] / model.pcie_bytes_per_second
    host = np.zeros((len(PHASES), len(HOST_METRICS)), np.float32)
    for name, row in (_machine_rows(draw) | _network_rows(draw, model, pp)).items():
        host[:, HOST_INDEX[name]] = row
    return Levels(gpu, host, spins, model, model.pcie_bytes_per_second)


def _activity_rows(draw: Draw, *, spins: bool) -> dict[str, list[float]]:
    """Draw the levels of utilisation and activity metrics."""
    busy = draw.uniform(0.9, 1.0)
    waits = draw.uniform(0.92, 1.0) if spins else draw.uniform(0.0, 0.1)
    data = draw.uniform(0.0, 0.3)
    evaluation = draw.uniform(0.7, 1.0)
    tensor, fp = draw.uniform(0.2, 0.65), draw.uniform(0.08, 0.35)
    resident, dram = draw.uniform(0.55, 0.92), draw.uniform(0.2, 0.6)
    collective = draw.uniform(0.03, 0.25)
    util = _row(data=data, compute=busy, optimizer=busy, transfer=1.0, wait=waits, checkpoint=0.1, evaluation=busy)
    return {
        "gpu_util_ratio": util,
        "gpu_graphics_active_ratio": [value * draw.uniform(0.95, 1.0) for value in util],
        "gpu_sm_active_ratio": _row(
            data=data * 0.3,
            compute=resident,
            optimizer=resident,
            transfer=collective,
            wait=collective if spins else 0.0,
            evaluation=resident * evaluation,
        ),
        "gpu_tensor_active_ratio": _row(compute=tensor, optimizer=0.01, evaluation=tensor * evaluation),
        "gpu_fp_active_ratio": _row(compute=fp, optimizer=fp, transfer=0.02, evaluation=fp * evaluation),
        "gpu_dram_active_ratio": _row(
            data=0.02, compute=dram, optimizer=0.75, transfer=0.12, wait=0.02, checkpoint=0.08, evaluation=dram
        ),
    }


def _load_rows(draw: Draw, model: GpuModel, tp: int, *, spins: bool) -> dict[str, list[float]]:
    """Draw the levels of power, clock, memory and link metrics."""
    idle, full = draw.uniform(0.1, 0.2), draw.uniform(0.65, 0.98)
    waits = draw.uniform(0.3, 0.5) if spins else idle * 1.15
    watts = model.limit_watts
    used = model.memory_bytes * draw.uniform(0.4, 0.95)
    boost = draw.uniform(0.82, 1.0)
    nvlink = model.nvlink_bytes_per_second * (draw.uniform(0.04, 0.25) if tp > 1 else draw.uniform(0.0, 0.02))
    ring = model.nvlink_bytes_per_second * draw.uniform(0.05, 0.35)
    pcie = model.pcie_bytes_per_second
    power = _row(
        data=(idle + 0.05) * watts,
        compute=full * watts,
        optimizer=0.6 * watts,
        transfer=max(waits, 0.35) * watts,
        wait=waits * watts,
        idle=idle * watts,
        gone=idle * watts * 0.8,
        checkpoint=(idle + 0.04) * watts,
        evaluation=full * draw.uniform(0.75, 1.0) * watts,
    )
    clock = [model.clock_hertz * (boost if name in {"compute", "evaluation"} else 1.0) for name in PHASES]
    return {
        "gpu_power_watts": power,
        "gpu_sm_clock_hertz": clock,
        "gpu_memory_used_bytes": [used if name != "gone" else 6e8 for name in PHASES],
        "nvlink_bytes_per_second": _row(
            compute=nvlink, optimizer=nvlink * 0.1, transfer=ring, evaluation=nvlink * 0.8, wait=1e6
        ),
        "pcie_bytes_per_second": _row(
            data=pcie * draw.uniform(0.01, 0.08),
            compute=pcie * draw.log_uniform(0.002, 0.05),
            optimizer=pcie * 0.01,
            transfer=pcie * draw.uniform(0.1, 0.45),
            wait=pcie * 0.0005,
            idle=pcie * 0.0002,
            gone=pcie * 0.0001,
            checkpoint=pcie * draw.uniform(0.05, 0.4),
            evaluation=pcie * 0.02,
        ),
    }


def _machine_rows(draw: Draw) -> dict[str, list[float]]:
    """Draw the levels of CPU, memory and disk metrics."""
    cpu = draw.log_uniform(0.04, 0.4)
    loads = draw.uniform(0.02, 0.25)
    memory, own_share = draw.uniform(0.2, 0.8), draw.uniform(0.2, 0.8)
    disk, latency = draw.uniform(0.15, 0.85), draw.log_uniform(2e-4, 5e-3)
    return {
        "cpu_util_ratio": _row(
            data=cpu + loads,
            compute=cpu,
            optimizer=cpu,
            transfer=cpu,
            wait=cpu * draw.uniform(0.8, 1.15),
            idle=cpu * 0.4,
            gone=cpu * draw.uniform(0.03, 0.2),
            checkpoint=cpu + draw.uniform(0.02, 0.3),
            evaluation=cpu,
        ),
        "memory_used_ratio": [memory if name != "gone" else memory * own_share for name in PHASES],
        "disk_used_ratio": [disk for _ in PHASES],
        USER_METRIC.name: [latency * (3.0 if name == "checkpoint" else 1.0) for name in PHASES],
    }


def _network_rows(draw: Draw, model: GpuModel, pp: int) -> dict[str, list[float]]:
    """Draw the levels of network metrics."""
    nic = 8 * model.nic_bytes_per_second
    read = draw.log_uniform(5e6, 1.5e9)
    chatter = draw.log_uniform(2e4, 5e6)
    burst = nic * draw.uniform(0.1, 0.75)
    steady = nic * (draw.uniform(0.005, 0.08) if pp > 1 else draw.uniform(0.0, 0.02))
    rows = {
        "tcp_bytes_per_second": _row(
            data=read + chatter,
            compute=chatter + read * draw.uniform(0.0, 0.6),
            optimizer=chatter,
            transfer=chatter,
            wait=chatter,
            idle=chatter * 0.5,
            gone=chatter * 0.3,
            checkpoint=draw.log_uniform(2e8, 4e9),
            evaluation=read * 0.5 + chatter,
        ),
        "rdma_bytes_per_second": _row(
            compute=steady, optimizer=steady * 0.1, transfer=burst, wait=nic * 1e-5, evaluation=steady * 0.5
        ),
    }
    for name, chance in (("pfc_tx", 0.6), ("ecn", 0.7), ("cnp", 0.7)):
        base = draw.log_uniform(3.0, 3000.0) if draw.chance(chance) else 0.0
        rows[f"{name}_packets_per_second"] = _row(compute=base * 0.2, transfer=base, evaluation=base * 0.1)
    return rows
