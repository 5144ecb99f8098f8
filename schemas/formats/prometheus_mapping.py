"""Mapping of Prometheus metrics to metric columns: the mapping file and the built-in mapping.

The file is JSON. A column is one term or a list of terms, which are added up::

    {
        "gpu_label": "UUID",
        "columns": {
            "gpu_power_watts": {"names": ["DCGM_FI_DEV_POWER_USAGE"]},
            "tcp_bytes_per_second": [
                {"names": ["node_network_receive_bytes_total"], "kind": "counter", "labels": {"device": "eth.*"}},
                {"names": ["node_network_transmit_bytes_total"], "kind": "counter", "labels": {"device": "eth.*"}},
            ],
        },
        "xid": ["DCGM_FI_DEV_XID_ERRORS"],
    }

Of a term's names, the first one on the page is used (old and new names of the same thing).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from tocsin.schemas.errors import ConfigError
from tocsin.schemas.metrics import GPU_METRICS, HOST_METRICS

SETTING: Final = "prometheus-mapping"
GPU_COLUMNS: Final = frozenset(metric.name for metric in GPU_METRICS)
HOST_COLUMNS: Final = frozenset(metric.name for metric in HOST_METRICS)
Kind = Literal["gauge", "counter"]
Combine = Literal["sum", "mean", "max"]
_MAX_PATTERN: Final = 200


@dataclass(frozen=True, slots=True)
class Term:
    """One summand of a column: which metrics of the page, and how they become one number.

    Attributes:
        names: metric names; the first one on the page is used.
        kind: ``gauge``: the value itself. ``counter``: its rate per second.
        factor: factor into base units.
        base_value: constant added after the factor; 1 with a factor of -1 gives one minus the value.
        labels: label -> pattern that must match its whole value.
        combine: how several series of one GPU, or of the host, become one number.
        divide_by: metric names; the combined value is divided by theirs.
        is_optional: whether the column has a value also without this term.
    """

    names: tuple[str, ...]
    kind: Kind = "gauge"
    factor: float = 1.0
    base_value: float = 0.0
    labels: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    combine: Combine = "sum"
    divide_by: tuple[str, ...] = ()
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class PrometheusMapping:
    """Selection of samples from a Prometheus page.

    Attributes:
        columns: column name -> its terms.
        gpu_label: label that holds a GPU's UUID.
        xid: names of gauges that hold a GPU's last XID.
    """

    columns: Mapping[str, tuple[Term, ...]]
    gpu_label: str = "UUID"
    xid: tuple[str, ...] = ()

    def names(self) -> frozenset[str]:
        """Return all metric names that the mapping uses."""
        terms = [term for terms in self.columns.values() for term in terms]
        return frozenset({*self.xid, *(name for term in terms for name in (*term.names, *term.divide_by))})


def parse_mapping(text: str, path: str) -> PrometheusMapping:
    """Parse a mapping file.

    Args:
        text: content of the file.
        path: name of the file, for errors.

    Raises:
        ConfigError: the text is no mapping; the message names file and entry.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(SETTING, path, f"a JSON file ({str(error)[:120]})") from error
    if not isinstance(found, dict) or not isinstance(found.get("columns"), dict):
        raise ConfigError(SETTING, path, 'a JSON object with "columns"')
    unknown = sorted(set(found) - {"columns", "gpu_label", "xid"})
    if unknown:
        raise ConfigError(SETTING, f"{path}: {unknown[0]}", "one of columns, gpu_label, xid")
    columns: dict[str, tuple[Term, ...]] = {}
    for column, terms in found["columns"].items():
        if column not in GPU_COLUMNS | HOST_COLUMNS:
            raise ConfigError(SETTING, f"{path}: {column[:80]}", "a column of the recording format")
        listed = terms if isinstance(terms, list) else [terms]
        columns[column] = tuple(_term(item, f"{path}: {column}") for item in listed)
    gpu_label = found.get("gpu_label", "UUID")
    if not isinstance(gpu_label, str):
        raise ConfigError(SETTING, f"{path}: gpu_label", "a text")
    return PrometheusMapping(columns, gpu_label, _texts(found.get("xid", []), f"{path}: xid"))


_TERM_KEYS: Final = {"names", "kind", "factor", "base_value", "labels", "combine", "divide_by", "is_optional"}


def _term(item: object, where: str) -> Term:
    """Read one term; ``where`` names its place for errors."""
    if not isinstance(item, dict) or not set(item) <= _TERM_KEYS:
        raise ConfigError(SETTING, where, f"an object with {', '.join(sorted(_TERM_KEYS))}")
    names = _texts(item.get("names", []), f"{where}: names")
    if not names:
        raise ConfigError(SETTING, f"{where}: names", "at least one metric name")
    kind, combine, optional = item.get("kind", "gauge"), item.get("combine", "sum"), item.get("is_optional", False)
    if kind not in {"gauge", "counter"} or combine not in {"sum", "mean", "max"} or not isinstance(optional, bool):
        raise ConfigError(SETTING, where, "kind gauge or counter, combine sum, mean or max, is_optional true or false")
    return Term(
        names,
        kind,
        _float(item.get("factor", 1.0), f"{where}: factor"),
        _float(item.get("base_value", 0.0), f"{where}: base_value"),
        _patterns(item.get("labels", {}), f"{where}: labels"),
        combine,
        _texts(item.get("divide_by", []), f"{where}: divide_by"),
        optional,
    )


def _texts(value: object, where: str) -> tuple[str, ...]:
    """Return a name or a list of names as a tuple."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) and item for item in items):
        raise ConfigError(SETTING, where, "a list of names")
    return tuple(items)


def _float(value: object, where: str) -> float:
    """Return the value as a float if it is a number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e30:
        raise ConfigError(SETTING, f"{where} = {str(value)[:40]}", "a number")
    return float(value)


def _patterns(value: object, where: str) -> dict[str, re.Pattern[str]]:
    """Return label -> compiled pattern."""
    if not isinstance(value, dict):
        raise ConfigError(SETTING, where, "an object of label and pattern")
    found: dict[str, re.Pattern[str]] = {}
    for label, pattern in value.items():
        if not isinstance(pattern, str) or len(pattern) > _MAX_PATTERN:
            raise ConfigError(SETTING, f"{where}: {label}", f"a pattern of at most {_MAX_PATTERN} characters")
        try:
            found[label] = re.compile(pattern)
        except re.error as error:
            raise ConfigError(SETTING, f"{where}: {label} = {pattern}", f"a regular expression ({error})") from error
    return found


def _one(*names: str, **keys: Any) -> tuple[Term, ...]:
    """Return a column of one term, with these metric names and settings."""
    return (Term(names, **keys),)


def _counters(*names: str, labels: Mapping[str, str] | None = None) -> tuple[Term, ...]:
    """Return a column that adds up the rates of these counters, each limited to matching labels."""
    patterns = {label: re.compile(pattern) for label, pattern in (labels or {}).items()}
    return tuple(Term((name,), "counter", labels=patterns) for name in names)


_PHYSICAL: Final = {"device": r"(?!lo$|veth|docker|cali|cni|flannel|br-|virbr|vxlan|tun|tap|bond|dummy).*"}
_ROOT: Final = {"mountpoint": re.compile("/")}

BUILTIN_MAPPING: Final = PrometheusMapping(
    columns={
        # dcgm-exporter: names up to DCGM 4.5, and since 4.6. Utilization is 0-100 under both (DCGM passes
        # NVML's number through), the profiling ratios are 0-1, the profiling bytes are rates already.
        "gpu_util_ratio": _one("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO", factor=0.01),
        "gpu_sm_active_ratio": _one("DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_UTIL_RATIO"),
        "gpu_tensor_active_ratio": _one("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_TENSOR_UTIL_RATIO"),
        "gpu_graphics_active_ratio": _one("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO"),
        "gpu_dram_active_ratio": _one("DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_PROF_DRAM_UTIL_RATIO"),
        "gpu_fp_active_ratio": tuple(
            Term((f"DCGM_FI_PROF_PIPE_FP{bits}_ACTIVE", f"DCGM_FI_PROF_FP{bits}_UTIL_RATIO"), is_optional=True)
            for bits in (64, 32, 16)
        ),
        "gpu_power_watts": _one("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS"),
        "gpu_temperature_celsius": _one("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS"),
        "gpu_sm_clock_hertz": _one("DCGM_FI_DEV_SM_CLOCK", factor=1e6),
        "gpu_memory_used_bytes": _one("DCGM_FI_DEV_FB_USED", factor=float(1 << 20)),
        "nvlink_bytes_per_second": (
            Term(("DCGM_FI_PROF_NVLINK_TX_BYTES",)),
            Term(("DCGM_FI_PROF_NVLINK_RX_BYTES",)),
        ),
        "pcie_bytes_per_second": (Term(("DCGM_FI_PROF_PCIE_TX_BYTES",)), Term(("DCGM_FI_PROF_PCIE_RX_BYTES",))),
        # node_exporter
        "cpu_util_ratio": tuple(
            Term(
                ("node_cpu_seconds_total",),
                "counter",
                factor=-1.0,
                base_value=base,
                labels={"mode": re.compile(mode)},
                combine="mean",
            )
            for mode, base in (("idle", 1.0), ("iowait", 0.0))
        ),
        "memory_used_ratio": _one(
            "node_memory_MemAvailable_bytes", factor=-1.0, base_value=1.0, divide_by=("node_memory_MemTotal_bytes",)
        ),
        "disk_used_ratio": _one(
            "node_filesystem_avail_bytes",
            factor=-1.0,
            base_value=1.0,
            divide_by=("node_filesystem_size_bytes",),
            labels=_ROOT,
        ),
        "tcp_bytes_per_second": _counters(
            "node_network_receive_bytes_total", "node_network_transmit_bytes_total", labels=_PHYSICAL
        ),
        "rdma_bytes_per_second": _counters(
            "node_infiniband_port_data_received_bytes_total", "node_infiniband_port_data_transmitted_bytes_total"
        ),
    },
    xid=("DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR"),
)
"""Mapping for dcgm-exporter and node_exporter, on one page or on two."""
