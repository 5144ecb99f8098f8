"""Read and write the JSON files of a recording: ``manifest.json``, ``metrics.json``, ``truth.json``."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tocsin.pipeline.recording.limits import DEFAULT_LIMITS, ReadLimits, check_json_size, check_limit
from tocsin.pipeline.recording.tables import FORMAT_VERSION, METRIC_NAMES, Manifest
from tocsin.schemas.errors import FieldError, RecordingError
from tocsin.schemas.wire.validate import check_name

_TAKEN = ("ts_ns", "host", "gpu")
_DAY_NS = 86_400 * 1_000_000_000
_INT64_MAX = 2**63 - 1
_FLOAT_MAX = sys.float_info.max


def no_folder(path: Path) -> str:
    """Return why a path is not a recording's folder, for an error: it is a file, or it does not exist."""
    return "is a file: a recording is a folder with a manifest.json" if path.exists() else "no such folder"


def read_manifest(folder: Path, limits: ReadLimits = DEFAULT_LIMITS) -> Manifest:
    """Read ``manifest.json``.

    Args:
        folder: the recording.
        limits: limits on its length.

    Raises:
        RecordingError: the folder or file is missing, or a field is invalid.
    """
    name = "manifest.json"
    if not folder.is_dir():
        raise RecordingError(str(folder), no_folder(folder))
    if not is_there(folder / name):
        raise RecordingError(name, f"missing in {folder}: a recording is a folder with a manifest")
    values = _read_object(folder / name)
    version = _integer(name, values, "format_version", 0)
    if version != FORMAT_VERSION:
        raise RecordingError(name, f"{version}: this program reads {FORMAT_VERSION}", column="format_version")
    job_id = _name(name, "job_id", values.get("job_id"))
    start_ns, end_ns = _integer(name, values, "start_ns", 0), _integer(name, values, "end_ns", 0)
    if end_ns < start_ns:
        raise RecordingError(name, f"{end_ns}: lies before start_ns ({start_ns})", column="end_ns")
    days = (end_ns - start_ns) / _DAY_NS
    check_limit(limits, "days", days, (name, "end_ns"), f"end_ns lies {days:.1f} days after start_ns")
    tick_seconds = values.get("tick_seconds", 1.0)
    if not _is_number(tick_seconds) or not 0.001 <= tick_seconds <= 3600:
        raise RecordingError(name, f"{tick_seconds!r}: must be a number from 0.001 to 3600", column="tick_seconds")
    cluster = _name(name, "cluster", values.get("cluster", "default"))
    return Manifest(
        job_id,
        _integer(name, values, "attempt", 0),
        start_ns,
        end_ns,
        float(tick_seconds),
        values.get("notes"),
        cluster,
    )


def manifest_object(manifest: Manifest) -> dict[str, Any]:
    """Return the content of ``manifest.json`` for a manifest."""
    found: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "job_id": manifest.job_id,
        "attempt": manifest.attempt,
        "start_ns": manifest.start_ns,
        "end_ns": manifest.end_ns,
        "tick_seconds": manifest.tick_seconds,
        "cluster": manifest.cluster,
    }
    if manifest.notes is not None:
        found["notes"] = manifest.notes
    return found


def read_user_metrics(folder: Path, limits: ReadLimits = DEFAULT_LIMITS) -> dict[str, dict[str, Any]]:
    """Read ``metrics.json``: metric name -> declaration; {} if the file is missing.

    Args:
        folder: the recording.
        limits: limits on the number of metrics.

    Raises:
        RecordingError: a declaration is invalid.
    """
    path = folder / "metrics.json"
    if not is_there(path):
        return {}
    found = {}
    declared = _read_object(path)
    check_limit(limits, "metrics", len(declared), (path.name, ""), f"{len(declared)} metrics")
    for metric, values in declared.items():
        _name(path.name, metric, metric)
        if metric in METRIC_NAMES or metric in _TAKEN:
            raise RecordingError(path.name, "is a built-in column: choose another name", column=metric)
        if not isinstance(values, dict):
            raise RecordingError(path.name, f"{values!r}: must be an object", column=metric)
        found[metric] = _user_metric(path.name, metric, values)
    return found


def _user_metric(file: str, metric: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked declaration of one user-defined metric."""
    choices = {"bad": ("high", "low", "both"), "scope": ("host", "gpu")}
    read: dict[str, Any] = {"unit": values.get("unit", "")}
    if not isinstance(read["unit"], str):
        raise RecordingError(file, f"unit = {read['unit']!r}: must be a text", column=metric)
    for key, words in choices.items():
        read[key] = values.get(key, words[0] if key == "scope" else "both")
        if read[key] not in words:
            raise RecordingError(file, f"{key} = {read[key]!r}: must be {' or '.join(words)}", column=metric)
    for key in ("min", "max"):
        read[key] = values.get(key)
        if read[key] is not None and not _is_number(read[key]):
            raise RecordingError(file, f"{key} = {read[key]!r}: must be a number or null", column=metric)
    if read["min"] is not None and read["max"] is not None and read["min"] >= read["max"]:
        raise RecordingError(file, f"min {read['min']} is not below max {read['max']}", column=metric)
    return read


def read_truth(folder: Path) -> dict[str, Any] | None:
    """Read ``truth.json``, None if it is missing.

    Raises:
        RecordingError: it does not match the format.
    """
    path = folder / "truth.json"
    if not is_there(path):
        return None
    truth = _read_object(path)
    faults = truth.get("faults")
    if not isinstance(faults, list):
        raise RecordingError(path.name, f"{faults!r}: must be a list", column="faults")
    for row, fault in enumerate(faults):
        _check_fault(path.name, row, fault)
    return truth


def _check_fault(file: str, row: int, fault: object) -> None:
    """Check one fault of ``truth.json``."""
    if not isinstance(fault, dict):
        raise RecordingError(file, f"{fault!r}: must be an object", column="faults", row=row)
    for key in ("onset_ns", "end_ns"):
        if not isinstance(fault.get(key), int) or isinstance(fault.get(key), bool):
            raise RecordingError(file, f"{fault.get(key)!r}: must be an integer", column=f"faults.{key}", row=row)
    suspects = fault.get("suspects")
    if not isinstance(suspects, list) or not all(isinstance(s, dict) and "name" in s for s in suspects):
        text = f"{suspects!r}: must be a list of objects with a name"
        raise RecordingError(file, text, column="faults.suspects", row=row)


def is_there(path: Path) -> bool:
    """Return whether a file of a recording exists.

    Raises:
        RecordingError: something other than a file has its name (a folder, a broken link).
    """
    if path.is_file():
        return True
    if path.exists() or path.is_symlink():
        what = "a folder" if path.is_dir() else "a link to nothing" if path.is_symlink() else "no file"
        raise RecordingError(path.name, f"is {what}: must be one file")
    return False


def _read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that must hold an object."""
    check_json_size(path)
    try:
        value = json.loads(path.read_text("utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise RecordingError(path.name, f"cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise RecordingError(path.name, f"holds a {type(value).__name__}: must be an object")
    return value


def _integer(file: str, values: Mapping[str, Any], key: str, low: int) -> int:
    """Return a required integer field, from ``low`` on."""
    if key not in values:
        raise RecordingError(file, "the required field is missing", column=key)
    value = values[key]
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= _INT64_MAX:
        raise RecordingError(file, f"{value!r}: must be an integer from {low} on", column=key)
    return value


def _name(file: str, field: str, value: object) -> str:
    """Return a field that must be a valid name."""
    try:
        return check_name(value, field)
    except FieldError as error:
        raise RecordingError(file, f"{error}", column=field[:80]) from error


def _is_number(value: object) -> bool:
    """Return whether a value is a finite number, but not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -_FLOAT_MAX <= value <= _FLOAT_MAX
