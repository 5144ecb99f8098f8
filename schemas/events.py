"""Fixed names of events and the keys of their payloads (JSON objects).

State events are sent on change only. The names of the first block belong to the recording format, those of
the second to this project.
"""

from __future__ import annotations

from typing import Final

PCIE_LINK: Final = "pcie_link"  # {"gen": 5, "width": 16, "max_gen": 5, "max_width": 16}
CLOCKS_EVENT: Final = "clocks_event"  # {"reasons": ["hw_thermal"]}
ECC: Final = "ecc"  # {"kind": "uncorrected|corrected", "count": 1}
NVLINK_ERROR: Final = "nvlink_error"
ROW_REMAP: Final = "row_remap"  # {"pending": true, "failure": false}
IB_PORT: Final = "ib_port"  # {"port", "state", "rate_gbps", "link_downed"}
PHASE: Final = "phase"  # {"phase": "checkpoint|evaluation|compile", "edge": "begin|end"}
AGENT: Final = "agent"  # {"edge": "start|stop"}
XID: Final = "xid"  # {"code": 94, "pci": "0000:c1:00.0"}
EXIT: Final = "exit"  # {"code": 1, "signal": 0, "stderr_tail": ""}; said again: "ended_ns" (event_payloads.ENDED_NS)
STAGE: Final = "stage"  # {"stage", "edge", "start_kind"}; at an end also "seconds", "cache_hit_ratio"
LOADER: Final = "loader"
# {"source", "queue_depth", "fetch_seconds", "rows"}; optional "step", "recovery_seconds" and the other LOADER_COUNTS
LOADER_COUNTS: Final = (
    "queue_depth",
    "rows",
    "tokens",
    "max_length",
    "sum_squared_lengths",
    "memory_bytes",
    "worker_count",
    "restarts",
)
HOST_FACTS: Final = "host_facts"
# {"boot_id", "booted_ns", "kernel", "driver", "firmware", "minipod"}: at start, at a change, every five minutes
NAN: Final = "nan"  # {"step": 12, "what": "loss|grad_norm|local_…" (its own), "value": "nan|inf|-inf"}

INCIDENT_CLOSE: Final = "incident_close"  # {"id": a verdict's, "note", "actor": "uid:1000"}; only the control socket
ACTION_CHANGE: Final = "action_change"
# {"id", "verdict_id", "kind", "state", "changed_ns", "signature"}: an action on the job changed; only the controller
CONTROL_HOST: Final = "engine:control"  # the host of what the control socket says

HELLO: Final = "hello"  # {"pid", "world_size", "hook_version"}: a rank's hook said hello for the first time
# and, where the environment has them, JOB_FACT_KEYS
JOB_FACT_KEYS: Final = (
    "slurm_job_id",
    "slurm_restart_count",
    "slurm_node_name",
    "pod_name",
    "pod_namespace",
    "pod_uid",
    "node_name",
)
MODEL: Final = "model"
# {"flops_per_step", "parameters", "tokens_per_step", "layers", "hidden_size", "sequence_length", "world_size"}: of the
# whole job, as its user gives them; {"rank_parameters", "rank_tokens_per_step"}: of this rank, as its hook counts them;
# {"gpu_name", "peak_flops_per_second"}: of this rank's GPU. All are optional. At a change, and every five minutes
BYE: Final = "bye"  # {}: a rank's hook closed in order: training is over for it
STOPPED: Final = "stopped"  # {"pid", "edge": "begin|end", "seconds"}: the process is stopped (state T)
PROCESS_GONE: Final = "process_gone"  # {"pid"}: it left without an exit event (nobody waits for it)
STALL: Final = "stall"
# {"edge": "begin|change|still|end", "step", "phase", "elapsed_seconds", "in_collective": bool,
#  "beat_age_seconds"}: a rank's step is overdue: its phase, whether it waits in a collective, and
#  how old the last sign of life of its hook's thread is
CLOCK_AHEAD: Final = "clock_ahead"  # {"ahead_seconds"}: the receiver refused this host's stamps
CLOCK_STEP: Final = "clock_step"  # {"step_seconds"}: the wall clock jumped by more than 0.5 s
SPOOL_OVERFLOW: Final = "spool_overflow"  # {"dropped_count"}: the oldest records went

# Hardware; those of one GPU carry "uuid" and "pci" where they are known, those of the kernel "text" and "repeats"
SXID: Final = "sxid"  # {"code": 24007, "pci", "severity": "fatal|non-fatal|", "link", "text"}: an NVSwitch's error
GPU_LOST: Final = "gpu_lost"  # {"uuid", "pci", "text"}: a GPU stopped answering
GPU_RECOVERY: Final = "gpu_recovery"  # {"action": 1}: what the driver asks for (NVML's number; 0: nothing any more)
OOM: Final = "oom"  # {"pid", "process", "cgroup": bool, "text"}: the kernel killed a process for memory
SEGFAULT: Final = "segfault"  # {"pid", "process", "library", "text"}
FILE_SYSTEM: Final = "file_system"  # {"kind": "error|read_only|io_error|not_responding|ok", "device", "remote": bool}
NET_LINK: Final = "net_link"  # {"device", "pci", "state": "down|up|cable_error", "text"}: a network interface
THERMAL: Final = "thermal"  # {"device": "cpu3", "critical": bool, "text"}: a part of the machine is too hot
PCIE_ERROR: Final = "pcie_error"  # {"pci", "kind": "corrected|non_fatal|fatal", "text"}: the kernel's AER
KERNEL_LOG_LOST: Final = "kernel_log_lost"  # {"dropped_count"}: the kernel overwrote lines before they were read

ANNOUNCED_PHASES: Final = ("checkpoint", "evaluation", "compile")
STEP_PHASES: Final = ("data", "forward", "backward", "optimizer", "communication")
