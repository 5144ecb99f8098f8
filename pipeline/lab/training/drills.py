"""Recorded drills that teach the default models beside simulated jobs: real steps and collectives of real processes.

A drill's recording is different on every machine and day, so the default models could not be made again from drills
that run while they are made. Therefore some were recorded once, and a compact form of them is part of the program:
``models/training/drills/NAME.npz.xz``, with ``README.md`` beside them. It holds what the trace detectors read: where
each rank is, durations of the phases of steps and of finished collectives, what the job announced, and the truth.
Durations of phases are kept to a sixteenth of an octave (2.2 %), those of collectives to an eighth, ends of steps to
10 ms, ends of collectives to the second.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from importlib.resources.abc import Traversable
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tocsin.pipeline.recording.manifest import manifest_object, read_manifest
from tocsin.pipeline.recording.tables import TABLES, Columns, Recording, Text
from tocsin.pipeline.recording.writer import write_json, write_recording
from tocsin.schemas.errors import RecordingError
from tocsin.schemas.records import NS_PER_SECOND

SUFFIX: Final = ".npz.xz"
"""Ending of a file's name."""
_LEAST_SECONDS: Final = 1e-6
_STEP_CODES: Final = 16
_COLLECTIVE_CODES: Final = 8
"""Codes of an octave of durations."""
_UNKNOWN: Final = -1
_STEP_TIME_NS: Final = 10_000_000
_EVENT: Final = ("ts_ns", "rank", "host", "source", "name", "severity", "payload")
_PLACES: Final = ("rank", "dp", "pp", "tp")
_DURATIONS: Final = tuple(
    f"{name}_seconds" for name in ("duration", "data", "forward", "backward", "optimizer", "communication")
)


def drill_files() -> list[Traversable]:
    """Return the recorded drills that are part of the program, by name."""
    folder = resources.files("tocsin.models.training") / "drills"
    found = [entry for entry in folder.iterdir() if entry.name.endswith(SUFFIX)] if folder.is_dir() else []
    return sorted(found, key=lambda entry: entry.name)


def write_drills(folder: Path) -> list[Path]:
    """Write the recorded drills as recordings below a folder, ``steps-drill-NAME`` each, and return their folders."""
    found = []
    for entry in drill_files():
        place = folder / f"steps-drill-{entry.name.removesuffix(SUFFIX)}"
        unpack(entry.read_bytes(), place)
        found.append(place)
    return found


def pack(recording: Recording) -> bytes:
    """Return the compact form of a recording that has steps, collectives and a truth.

    Args:
        recording: whose ranks keep their hosts, as a drill's do.
    """
    start_ns = recording.manifest.start_ns // NS_PER_SECOND * NS_PER_SECOND
    steps, collectives = recording.tables["steps"], recording.tables["collectives"]
    topology = recording.tables["topology"]
    first = np.unique(np.asarray(topology["rank"]), return_index=True)[1]
    hosts, names = _text(topology, "host"), _text(collectives, "op_name")
    rows = np.flatnonzero(_are_whole(collectives))
    rows = rows[np.lexsort((_ints(collectives, "end_ns")[rows], _ints(collectives, "rank")[rows]))]
    taken_ns = _ints(collectives, "end_ns") - _ints(collectives, "start_ns")
    order = np.lexsort((_ints(steps, "ts_ns"), _ints(steps, "rank")))
    head = {
        "manifest": manifest_object(recording.manifest),
        "truth": recording.truth,
        "hosts": [hosts[int(row)] for row in first],
        "op_names": list(names.words),
        "events": _announced(recording.tables["events"]),
    }
    arrays = {
        "topology": np.stack([_places(topology, name)[first] for name in _PLACES]).astype(np.int16),
        "step_rank": _ints(steps, "rank")[order].astype(np.int16),
        "step": _steps_between(_ints(steps, "step")[order]),
        "step_end": _steps_between((_ints(steps, "ts_ns")[order] - start_ns) // _STEP_TIME_NS),
        **{name: _codes(np.asarray(steps[name], np.float64)[order], _STEP_CODES) for name in _DURATIONS},
        "op_rank": _ints(collectives, "rank")[rows].astype(np.int16),
        "op_name": names.codes[rows].astype(np.int8),
        "op_end": _steps_between((_ints(collectives, "end_ns")[rows] - start_ns) // NS_PER_SECOND),
        "op_seconds": _codes(taken_ns[rows] / NS_PER_SECOND, _COLLECTIVE_CODES),
    }
    whole = BytesIO()
    np.savez(whole, head=np.frombuffer(json.dumps(head).encode(), np.uint8), **arrays)
    return lzma.compress(whole.getvalue(), preset=9)


def unpack(data: bytes, folder: Path) -> None:
    """Write the recording of a compact form to a new folder.

    Args:
        data: what ``pack`` returned.
        folder: new or empty.
    """
    with np.load(BytesIO(lzma.decompress(data)), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    head: dict[str, Any] = json.loads(arrays.pop("head").tobytes())
    folder.mkdir(parents=True)
    write_json(folder / "manifest.json", head["manifest"])
    manifest = read_manifest(folder)
    (folder / "manifest.json").unlink()
    start_ns = manifest.start_ns // NS_PER_SECOND * NS_PER_SECOND
    tables = {
        "topology": _topology(arrays["topology"], head["hosts"]),
        "steps": _steps(arrays, start_ns),
        "collectives": _collectives(arrays, head["op_names"], start_ns),
        "events": _events(head["events"]),
    }
    write_recording(folder, Recording(replace(manifest, notes="a drill in compact form"), tables, truth=head["truth"]))


def _are_whole(collectives: Columns) -> NDArray[np.bool_]:
    """Return which rows are the whole of a finished operation; only these are judged."""
    records = _text(collectives, "record")
    ended = np.isin(records.codes, [code for code, word in enumerate(records.words) if word == "completion"])
    whole: NDArray[np.bool_] = ended & (_ints(collectives, "channel") == -1)
    begun_ns, end_ns = _ints(collectives, "start_ns"), _ints(collectives, "end_ns")
    return whole & (begun_ns > 0) & (end_ns >= begun_ns)


def _announced(events: Columns) -> list[list[Any]]:
    """Return the rows of a job's own events, which announce checkpoints and evaluations, in the order of ``_EVENT``."""
    texts = {name: _text(events, name) for name in _EVENT[2:]}
    rows = [row for row in range(len(texts["source"])) if texts["source"][row] == "job"]
    numbers = {name: _ints(events, name) for name in _EVENT[:2]}
    return [[*(int(one[row]) for one in numbers.values()), *(one[row] for one in texts.values())] for row in rows]


def _events(rows: list[list[Any]]) -> Columns:
    """Return the table of these events."""
    ts_ns, ranks, *texts = zip(*rows, strict=True) if rows else ((), (), *([()] * len(_EVENT[2:])))
    columns = {name: Text.of(list(column)) for name, column in zip(_EVENT[2:], texts, strict=True)}
    return {"ts_ns": np.array(ts_ns, np.int64), "rank": np.array(ranks, np.int32), **columns}


def _topology(numbers: NDArray[np.int16], hosts: list[str]) -> Columns:
    """Return the table of ranks."""
    own = dict(zip(_PLACES, numbers, strict=True))
    return {**own, "rank": own["rank"].astype(np.int32), "host": Text.of(hosts)}


def _steps(arrays: Mapping[str, NDArray[Any]], start_ns: int) -> Columns:
    """Return the table of steps in order of time."""
    ts_ns = start_ns + np.cumsum(arrays["step_end"].astype(np.int64)) * _STEP_TIME_NS
    order = np.argsort(ts_ns, kind="stable")
    nothing = np.full(len(order), np.nan)
    return {
        "ts_ns": ts_ns[order],
        "rank": arrays["step_rank"][order].astype(np.int32),
        "step": np.cumsum(arrays["step"].astype(np.int64))[order],
        **{name: _seconds(arrays[name], _STEP_CODES)[order] for name in _DURATIONS},
        "loss": nothing,
        "grad_norm": nothing,
    }


def _collectives(arrays: Mapping[str, NDArray[Any]], names: list[str], start_ns: int) -> Columns:
    """Return the table of finished collectives in order of time; each rank is the only one of a communicator."""
    end_ns = start_ns + np.cumsum(arrays["op_end"].astype(np.int64)) * NS_PER_SECOND
    order = np.argsort(end_ns, kind="stable")
    count = len(order)
    begun_ns = np.round(_seconds(arrays["op_seconds"], _COLLECTIVE_CODES) * NS_PER_SECOND).astype(np.int64)
    optional = {spec.name for spec in TABLES["collectives"].columns if not spec.required}
    table: dict[str, Any] = {
        "ts_ns": end_ns[order],
        "record": Text.of(["completion"] * count),
        "rank": arrays["op_rank"][order].astype(np.int32),
        "comm_id": Text.of(["0/drill"] * count),
        "op_name": Text(arrays["op_name"][order].astype(np.int32), tuple(names)),
        "op_seq": np.arange(count, dtype=np.int64),
        "msg_bytes": np.full(count, -1, np.int64),
        "start_ns": (end_ns - begun_ns)[order],
        "end_ns": end_ns[order],
    }
    return {name: column for name, column in table.items() if name not in optional}


def _steps_between(values: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the first value and the differences of the following ones, which compress better."""
    return np.diff(values, prepend=0).astype(np.int32)


def _codes(seconds: NDArray[np.float64], per_octave: int) -> NDArray[np.int16]:
    """Return durations as parts of octaves above a microsecond; -1 where unknown."""
    with np.errstate(invalid="ignore"):
        codes = np.round(np.log2(np.maximum(seconds, _LEAST_SECONDS) / _LEAST_SECONDS) * per_octave)
    return np.where(np.isfinite(seconds), codes, _UNKNOWN).astype(np.int16)


def _seconds(codes: NDArray[np.int16], per_octave: int) -> NDArray[np.float64]:
    """Return the durations of codes in seconds; NaN where unknown."""
    octaves = codes.astype(np.float64) / per_octave
    found: NDArray[np.float64] = np.where(codes < 0, np.nan, _LEAST_SECONDS * 2.0**octaves)
    return found


def _ints(columns: Columns, name: str) -> NDArray[np.int64]:
    """Return a column of whole numbers."""
    return np.asarray(columns[name], np.int64)


def _places(topology: Columns, name: str) -> NDArray[np.int64]:
    """Return a column of the table of ranks; -1 where it has none of this name."""
    return _ints(topology, name) if name in topology else np.full(len(topology["rank"]), -1, np.int64)


def _text(columns: Columns, name: str) -> Text:
    """Return a column of texts."""
    column = columns[name]
    if not isinstance(column, Text):
        raise RecordingError(name, "must be a column of texts", column=name)
    return column
