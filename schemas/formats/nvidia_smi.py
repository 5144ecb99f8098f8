"""Pure parser of ``nvidia-smi -q -x``: the faults that the driver knows of each GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from xml.etree import ElementTree as ET

from tocsin.schemas.errors import DecodeError

MAX_BYTES: Final = 4 * 2**20
"""Greatest size of the report: a host of sixteen GPUs has some hundred kilobytes."""
_COUNTERS: Final = {
    "ecc_errors/volatile/dram_uncorrectable": "uncorrectable ECC errors in memory",
    "ecc_errors/volatile/sram_uncorrectable": "uncorrectable ECC errors in SRAM",
    "ecc_errors/volatile/sram_uncorrectable_parity": "uncorrectable parity errors in SRAM",
    "ecc_errors/volatile/sram_uncorrectable_secded": "uncorrectable ECC errors in SRAM",
}
"""Place of a counter since the driver was loaded -> what it counts."""
_FLAGS: Final = {
    "remapped_rows/remapped_row_failure": "a memory row could not be remapped",
    "remapped_rows/remapped_row_pending": "a memory row waits for a reset to be remapped",
    "retired_pages/pending_retirement": "a memory page waits for a reset to be retired",
    "ecc_errors/aggregate/sram_threshold_exceeded": "SRAM errors exceed the threshold for replacement",
}
_ACTION: Final = "gpu_recovery_action"
_NOTHING: Final = frozenset({"", "none", "n/a", "[n/a]"})


def faults_in(text: bytes) -> tuple[int, list[str]]:
    """Return the number of GPUs in a report and a sentence for each fault in it.

    Args:
        text: what ``nvidia-smi -q -x`` printed.

    Raises:
        DecodeError: it is no such report.
    """
    if len(text) > MAX_BYTES:
        raise DecodeError(f"nvidia-smi's report has {len(text)} bytes, more than {MAX_BYTES}")
    try:
        root = ET.fromstring(text)  # noqa: S314  # of the driver's own tool; expat refuses entity bombs
    except ET.ParseError as error:
        raise DecodeError(f"nvidia-smi's report is no XML: {error}") from error
    if root.tag != "nvidia_smi_log":
        raise DecodeError(f"nvidia-smi's report begins with {root.tag!r}, not 'nvidia_smi_log'")
    gpus = root.findall("gpu")
    return len(gpus), [fault for gpu in gpus for fault in _faults_of(gpu)]


def _faults_of(gpu: ET.Element) -> Iterator[str]:
    """Give a sentence for each fault of one GPU."""
    name = _value(gpu, "uuid") or gpu.get("id", "")
    for path, meaning in _COUNTERS.items():
        value = _value(gpu, path)
        if value.isdecimal() and int(value):
            yield f"{name}: {value} {meaning}"
    for path, meaning in _FLAGS.items():
        if _value(gpu, path).lower() == "yes":
            yield f"{name}: {meaning}"
    action = _value(gpu, _ACTION)
    if action.lower() not in _NOTHING:
        yield f"{name}: the driver asks for {action}"


def _value(gpu: ET.Element, path: str) -> str:
    """Return the text at a place below a GPU, "" where there is none."""
    return (gpu.findtext(path) or "").strip()
