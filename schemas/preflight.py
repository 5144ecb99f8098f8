"""Results of checks under load: what each check of a host found, why, and beside which peers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeVar

from tocsin.schemas.errors import FieldError
from tocsin.schemas.reasons import NamedReason

E = TypeVar("E", bound=StrEnum)

VERSION: Final = 1
"""Version of the JSON form of a host's answer."""
_MOST_COUNT: Final = 2**31 - 1


class CheckName(StrEnum):
    """A check. The order is that of a stop-time flow: the vendor's tools, exchanges, then bitwise computation.

    The order follows ByteRobust (SOSP 2025): diagnostics of each GPU, bandwidth inside the machine, bandwidth between
    machines, bitwise alignment. The cheap checks of a host's own parts stand between them.
    """

    ANSWER = "answer"
    NVIDIA_SMI = "nvidia_smi"
    DCGM = "dcgm"
    GPU_MEMORY_BANDWIDTH = "gpu_memory_bandwidth"
    MEMORY_BANDWIDTH = "memory_bandwidth"
    DISK_WRITE_BANDWIDTH = "disk_write_bandwidth"
    DISK_READ_BANDWIDTH = "disk_read_bandwidth"
    GROUP_ALL_REDUCE = "group_all_reduce"
    PAIR_ALL_REDUCE = "pair_all_reduce"
    COMPUTATION = "computation"
    TENSOR_COMPUTATION = "tensor_computation"
    CPU_CLOCKS = "cpu_clocks"
    GPU_CLOCKS = "gpu_clocks"


class CheckOutcome(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class CheckReason(NamedReason):
    """Why a check ended as it did."""

    # passed
    EXACT = "exact", "Every result is bit for bit the known one."
    AS_PEERS = "as_peers", "The figure is like that of the peers."
    TOO_FEW_PEERS = "too_few_peers", "Measured; with fewer than three peers of its kind there is nothing to compare."
    STEADY = "steady", "No throttling under load, and the settings are the same before and after."
    HEALTHY = "healthy", "The vendor's tool found no fault."
    # failed
    WRONG_RESULT = "wrong_result", "A result differs from the known one."
    NOT_REPEATABLE = "not_repeatable", "The same computation gave two results on the same device."
    DIFFERS_FROM_PEERS = "differs_from_peers", "Most peers with the same device and software have another result."
    SLOWER_THAN_PEERS = "slower_than_peers", "The figure is below the limit beside the peers' median."
    OTHER_WRITER = "other_writer", "Something else wrote to the disk during the check."
    READ_BACK_DIFFERS = "read_back_differs", "What was read from the disk is not what was written."
    THROTTLED = "throttled", "The hardware lowered its clock under load because of heat or power supply."
    SETTINGS_CHANGED = "settings_changed", "A clock or power setting differs between before and after the checks."
    TOOL_FOUND_FAULT = "tool_found_fault", "The vendor's tool reports a fault."
    TOOL_FAILED = "tool_failed", "The vendor's tool is installed, and ended with an error or found no device."
    TIMED_OUT = "timed_out", "The check did not end in its time."
    CHECK_DIED = "check_died", "The check's process ended without an answer."
    DISK_REFUSES = "disk_refuses", "The disk cannot be written: full, read-only, or an I/O error."
    UNREACHABLE = "unreachable", "The host cannot reach the group's first host."
    NO_ANSWER = "no_answer", "The host gave no answer in the time."
    # skipped
    NO_GPU = "no_gpu", "The host has no GPU that answers."
    ONE_HOST = "one_host", "Only one host was asked: there is no exchange between hosts."
    GROUP_INCOMPLETE = (
        "group_incomplete",
        "Another host of the group is missing or at fault: the exchange says nothing about this one.",
    )
    NO_TORCH = "no_torch", "PyTorch is not installed on the host."
    NOT_INSTALLED = "not_installed", "The vendor's tool is not installed on the host."
    UNREADABLE = "unreadable", "The host does not show this value (a virtual machine, or no rights)."
    NOT_ASKED = "not_asked", "The check was left out by a flag."
    EARLIER_FAILURE = "earlier_failure", "An earlier check failed, and the first failure was enough."


@dataclass(frozen=True, slots=True)
class PreflightResult:
    """What one check of one host found.

    Attributes:
        name: the check.
        outcome: how it ended.
        reason: why.
        figure: what was measured, in ``unit``; None where nothing was.
        unit: unit of ``figure``, "" without one.
        peers_median: median of the peers' figures; None with fewer than three peers.
        detail: the place and the values, for people; "" for none.
        digest: digest of a result that must be equal on like hosts, "" for none.
        kind: what must be alike for two hosts to be compared (processor, device, software).
        against: peers with which an exchange was wrong: their names, before that their ranks as text.
    """

    name: CheckName
    outcome: CheckOutcome
    reason: CheckReason
    figure: float | None = None
    unit: str = ""
    peers_median: float | None = None
    detail: str = ""
    digest: str = ""
    kind: str = ""
    against: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return the result as a JSON object."""
        return {
            "name": str(self.name),
            "outcome": str(self.outcome),
            "reason": str(self.reason),
            "figure": self.figure,
            "unit": self.unit,
            "peers_median": self.peers_median,
            "detail": self.detail,
            "digest": self.digest,
            "kind": self.kind,
            "against": list(self.against),
        }


@dataclass(frozen=True, slots=True)
class HostAnswer:
    """All results of one host.

    Attributes:
        host: its name.
        checks: its results, in the order in which they ran.
        seconds: how long they took together.
        boot_id: the kernel's boot id during the checks, "" if it is not known.
        gpu_count: number of GPUs that worked under load.
        known_gpu_count: number of GPUs that the host shows: to the driver, or on its PCI bus.
    """

    host: str
    checks: tuple[PreflightResult, ...] = field(default=())
    seconds: float = 0.0
    boot_id: str = ""
    gpu_count: int = 0
    known_gpu_count: int = 0

    @property
    def is_failed(self) -> bool:
        """Whether at least one check failed."""
        return any(check.outcome is CheckOutcome.FAILED for check in self.checks)

    def to_json(self) -> dict[str, object]:
        """Return the answer as a JSON object of this version."""
        checks = [check.to_json() for check in self.checks]
        fields = {"version": VERSION, "host": self.host, "seconds": self.seconds, "boot_id": self.boot_id}
        gpus = {"gpu_count": self.gpu_count, "known_gpu_count": self.known_gpu_count}
        return {**fields, **gpus, "checks": checks}


def passed(name: CheckName, reason: CheckReason, detail: str = "") -> PreflightResult:
    """Return a result without a figure of a check that passed."""
    return PreflightResult(name, CheckOutcome.PASSED, reason, detail=detail)


def failed(name: CheckName, reason: CheckReason, detail: str = "") -> PreflightResult:
    """Return a result without a figure of a check that failed."""
    return PreflightResult(name, CheckOutcome.FAILED, reason, detail=detail)


def skipped(name: CheckName, reason: CheckReason, detail: str = "") -> PreflightResult:
    """Return a result of a check that did not run."""
    return PreflightResult(name, CheckOutcome.SKIPPED, reason, detail=detail)


def answer_of(value: object, where: str = "answer") -> HostAnswer:
    """Return a host's answer from its JSON object.

    Args:
        value: the parsed JSON.
        where: name of the source, for the error.

    Raises:
        FieldError: a field is missing or has a value that is not allowed.
    """
    fields = _object(value, where)
    if fields.get("version") != VERSION:
        raise FieldError(f"{where}.version", fields.get("version"), str(VERSION))
    checks = fields.get("checks")
    if not isinstance(checks, list):
        raise FieldError(f"{where}.checks", checks, "a list of results")
    found = tuple(_check_of(one, f"{where}.checks[{index}]") for index, one in enumerate(checks))
    seconds = _figure(fields.get("seconds"), f"{where}.seconds")
    host, boot_id = _text(fields, "host", where, is_needed=True), _text(fields, "boot_id", where)
    gpu_counts = (_count(fields, name, where) for name in ("gpu_count", "known_gpu_count"))
    return HostAnswer(host, found, seconds or 0.0, boot_id, *gpu_counts)


def _check_of(value: object, where: str) -> PreflightResult:
    """Return one result from its JSON object."""
    fields = _object(value, where)
    return PreflightResult(
        _member(CheckName, fields, "name", where),
        _member(CheckOutcome, fields, "outcome", where),
        _member(CheckReason, fields, "reason", where),
        figure=_figure(fields.get("figure"), f"{where}.figure"),
        unit=_text(fields, "unit", where),
        peers_median=_figure(fields.get("peers_median"), f"{where}.peers_median"),
        detail=_text(fields, "detail", where),
        digest=_text(fields, "digest", where),
        kind=_text(fields, "kind", where),
        against=_names(fields.get("against", []), f"{where}.against"),
    )


def _object(value: object, where: str) -> Mapping[str, object]:
    """Return a value that must be a JSON object."""
    if not isinstance(value, dict):
        raise FieldError(where, value, "an object")
    return value


def _member(kind: type[E], fields: Mapping[str, object], name: str, where: str) -> E:
    """Return a field that must be one of an enumeration's values."""
    value = fields.get(name)
    try:
        return kind(str(value))
    except ValueError:
        raise FieldError(f"{where}.{name}", value, "one of " + ", ".join(kind)) from None


def _text(fields: Mapping[str, object], name: str, where: str, *, is_needed: bool = False) -> str:
    """Return a field that must be a text; "" where it is missing and not needed."""
    value = fields.get(name, None if is_needed else "")
    if not isinstance(value, str) or (is_needed and not value):
        raise FieldError(f"{where}.{name}", value, "a text")
    return value


def _count(fields: Mapping[str, object], name: str, where: str) -> int:
    """Return a field that must be a number of things; 0 where it is missing."""
    value = fields.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_COUNT:
        raise FieldError(f"{where}.{name}", value, f"an integer from 0 to {_MOST_COUNT}")
    return value


def _names(value: object, where: str) -> tuple[str, ...]:
    """Return a list of names."""
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise FieldError(where, value, "a list of names")
    return tuple(value)


def _figure(value: object, where: str) -> float | None:
    """Return a number that is finite and not negative, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise FieldError(where, value, "a finite number of at least 0, or null")
    return float(value)
