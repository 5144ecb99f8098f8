"""The documented list of causes: the meaning of each word and the action that it proposes.

``tocsin causes`` prints it. Where the evidence does not decide, the cause is ``unknown``: the right machine
with cause ``unknown`` is better than a wrong cause.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tocsin.schemas.verdicts import ActionKind

Blames = Literal["machine", "program", "nobody"]


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause of the list.

    Attributes:
        name: the word in a verdict.
        blames: ``machine``: a host may be evicted for it. ``program``: code or data of the named ranks, never evicted.
            ``nobody``: the suspects stay empty.
        action: the action proposed at full confidence.
        meaning: one sentence for people.
    """

    name: str
    blames: Blames
    action: ActionKind
    meaning: str


_A = ActionKind

CAUSES: dict[str, Cause] = {
    c.name: c
    for c in (
        Cause("ecc_error", "machine", _A.EVICT, "GPU memory reports uncorrectable errors"),
        Cause("pcie_downgrade", "machine", _A.EVICT, "a PCIe link runs below its width or generation"),
        Cause("nic_dropout", "machine", _A.EVICT, "a network port left the fabric"),
        Cause("gpu_card_drop", "machine", _A.EVICT, "a GPU fell off the bus"),
        Cause("nvlink_error", "machine", _A.EVICT, "an NVLink reports errors"),
        Cause("aoc_error", "machine", _A.EVICT, "an optical cable degrades"),
        Cause("gpu_execution_error", "machine", _A.EVICT, "a GPU failed while executing"),
        Cause("hdfs_error", "machine", _A.RESTART, "this machine lost its distributed file system"),
        Cause("machine_unreachable", "machine", _A.EVICT, "the machine stopped answering, and its peers wait"),
        Cause("power_cap", "machine", _A.DRAIN, "a GPU runs under a lower power limit than its peers"),
        Cause("thermal_throttle", "machine", _A.DRAIN, "a GPU lowers its clocks because it is hot"),
        Cause("cpu_contention", "machine", _A.DRAIN, "the rank's process does not get the CPU it needs"),
        Cause("network_slow", "machine", _A.DRAIN, "every group of this rank moves data slower than the others"),
        Cause(
            "startup_slow", "program", _A.NOTIFY, "the machine takes much longer than its peers for a stage of a start"
        ),
        Cause("process_exit", "program", _A.RESTART, "a rank's process ended, and the others depend on it"),
        Cause(
            "cuda_execution_error",
            "program",
            _A.RESTART,
            "a CUDA kernel failed: the program's own fault (an index, an address), unless its GPU reports more",
        ),
        Cause("process_frozen", "program", _A.RESTART, "a rank's process exists but does not run"),
        Cause("collective_mismatch", "program", _A.NOTIFY, "a rank entered another collective than its peers"),
        Cause("loader_stall", "program", _A.NOTIFY, "a rank waits for its own data loader"),
        Cause("nan_gradient", "program", _A.ROLLBACK, "this rank's loss or gradient was the first that is no number"),
        Cause("data_imbalance", "nobody", _A.NOTIFY, "the slowest rank changes with the data"),
        Cause("stage_imbalance", "nobody", _A.NOTIFY, "one pipeline stage is slower on every replica"),
        Cause(
            "communication", "nobody", _A.NOTIFY, "transfers take longer than usual once all of their members have come"
        ),
        Cause("placement", "nobody", _A.NOTIFY, "groups that cross switches are slower, no part is broken"),
        Cause("shared_service", "nobody", _A.NOTIFY, "all ranks wait for the same service (storage, loader, registry)"),
        Cause("software_jitter", "nobody", _A.NOTIFY, "changing ranks pause (garbage collection, allocator)"),
        Cause("divergence", "nobody", _A.NOTIFY, "loss or gradient norm of all ranks rose to five times their past"),
        Cause("gradual_slowdown", "nobody", _A.NOTIFY, "all ranks' steps became longer little by little"),
        Cause("workload_change", "nobody", _A.NONE, "all ranks changed together"),
        Cause(
            "common_driver", "nobody", _A.NOTIFY, "many machines report the same error of the GPU's driver or firmware"
        ),
        Cause(
            "common_component", "nobody", _A.NOTIFY, "many machines report the same: what they share is to be checked"
        ),
        Cause("planned_work", "nobody", _A.NOTIFY, "many machines report the same while work on them is planned"),
        Cause(
            "monitoring_fault",
            "nobody",
            _A.NOTIFY,
            "many machines' monitoring failed together: nothing is known of them",
        ),
        Cause("unknown", "machine", _A.DRAIN, "the evidence names who, not why"),
    )
}
"""Cause name -> cause, in the order in which ``tocsin causes`` prints them."""
