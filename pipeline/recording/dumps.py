"""Read the Flight Recorder dumps in ``flight_recorder/`` of a recording, one file per rank, as probe answers.

A file does not say when it was written, so one time is derived for all. It is not before the newest time in their
content. The job's watchdog writes dumps when the oldest unfinished operation reaches its timeout. The dumps count as
written then, or at the end of their attempt or of the recording, if that is earlier. Dumps whose times lie outside the
recording count as written at its end. For a rank with a dump in ``probes.parquet``, which has the time, the file is
ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

from tocsin.pipeline.rca.evidence.flight_recorder import read_folder
from tocsin.pipeline.recording.places import Places
from tocsin.pipeline.recording.tables import Recording, Text
from tocsin.schemas.errors import ConfigError, RecordingError, SchemaError
from tocsin.schemas.formats.flight_recorder import FlightDump, content_of, parse_dump
from tocsin.schemas.formats.plain_pickle import weigh
from tocsin.schemas.kinds import LEFT_DUMP
from tocsin.schemas.records import NS_PER_SECOND, ProbeAnswer

FOLDER = "flight_recorder"
MAX_PAYLOAD_BYTES = 8_000_000
"""Size above which a dump is reduced to what is judged, because a record has at most 16 MB."""
_KEPT_KEYS = ("version", "pg_config", "pg_status")
_KEPT_GROUP_KEYS = frozenset({"name", "desc", "ranks"})
_KEPT_ENTRY_KEYS = frozenset(
    {
        *("record_id", "id", "pg_id", "process_group", "collective_seq_id", "seq_id", "p2p_seq_id", "op_id"),
        *("profiling_name", "input_sizes", "input_dtypes", "state", "is_p2p", "retired", "time_created_ns"),
        *("time_discovered_started_ns", "time_discovered_completed_ns", "timeout_ms"),
    }
)
_MAX_WEIGHT = 2_000_000
"""Maximum number of values in the copy of a large dump (``tocsin.schemas.formats.plain_pickle.weigh``)."""
_MS = NS_PER_SECOND // 1000


def read_dumps(folder: Path) -> tuple[dict[int, bytes], tuple[str, ...]]:
    """Read the dumps in a recording's folder.

    Returns:
        Rank -> bytes of its file, including files that are not complete dumps; and one sentence for each skipped file.

    Raises:
        RecordingError: ``flight_recorder`` is not a folder, or cannot be read.
    """
    path = folder / FOLDER
    if not path.exists():
        return {}, ()
    if not path.is_dir():
        raise RecordingError(FOLDER, "must be a folder with one dump per rank")
    try:
        content = read_folder(path)
        files = {rank: path / name for rank, name in content.names.items()}
        files |= {rank: path / name for rank, (name, _) in content.unreadable.items()}
        dumps = {rank: file.read_bytes() for rank, file in sorted(files.items())}
    except ConfigError as error:
        return {}, (f"{FOLDER}: nothing to judge: {error}",)
    except OSError as error:
        raise RecordingError(FOLDER, f"cannot be read: {error}") from error
    notes = [f"{FOLDER}: {name} is no whole dump: {why}" for name, why in content.unreadable.values()]
    return dumps, (*notes, *(f"{FOLDER}: {note}" for note in content.notes))


def dump_answers(recording: Recording, places: Places) -> list[ProbeAnswer]:
    """Return the dumps as probe answers, all with the same time."""
    answered = _ranks_in_probes(recording)
    left = {rank: data for rank, data in sorted(recording.dumps.items()) if rank not in answered}
    parsed = [dump for data in left.values() if (dump := _parsed(data)) is not None]
    if not parsed:
        return []
    ts_ns = _there_at_ns(parsed, recording, places)
    job = places.job_at(ts_ns)
    return [
        ProbeAnswer(job, places.host_of(rank, ts_ns), ts_ns, rank, LEFT_DUMP, "flight_recorder", _payload(data))
        for rank, data in left.items()
    ]


def _ranks_in_probes(recording: Recording) -> set[int]:
    """Return the ranks that have a dump in ``probes.parquet``."""
    columns = recording.tables.get("probes")
    if columns is None:
        return set()
    kinds, payloads = cast(Text, columns["kind"]).to_list(), cast(list[bytes], columns["payload"])
    ranks = cast("Iterable[int]", columns["rank"])
    rows = zip(ranks, kinds, payloads, strict=True)
    return {int(rank) for rank, kind, payload in rows if kind == "flight_recorder" and payload}


def _parsed(data: bytes) -> FlightDump | None:
    """Return the parsed dump, None if it is not valid."""
    try:
        return parse_dump(data)
    except SchemaError:
        return None


def _there_at_ns(dumps: Iterable[FlightDump], recording: Recording, places: Places) -> int:
    """Return the time in ns by which the dumps were written."""
    manifest = recording.manifest
    last_ns = max(manifest.start_ns, manifest.end_ns - _MS)
    entries = [entry for dump in dumps for entry in dump.entries]
    newest_ns = max((max(e.created_ns, e.started_ns, e.completed_ns) for e in entries), default=0)
    if not manifest.start_ns <= newest_ns <= manifest.end_ns:
        return last_ns
    over_ns = [e.created_ns + e.timeout_ns for e in entries if not e.is_done and e.created_ns and e.timeout_ns]
    written_ns = max(newest_ns, min(over_ns, default=last_ns))
    return min(written_ns, last_ns, places.attempt_end_ns(newest_ns, last_ns + 1) - 1)


def _payload(data: bytes) -> bytes:
    """Return a dump's bytes; for a dump too large for a record, the parts that are judged."""
    dump = None if len(data) <= MAX_PAYLOAD_BYTES else _parsed(data)
    if dump is None:
        return data[:MAX_PAYLOAD_BYTES]
    content = content_of(data)
    small = {key: content[key] for key in _KEPT_KEYS if key in content}
    small["comm_lib_version"] = dump.comm_lib_version
    small["pg_config"] = {
        name: _with_keys(group, _KEPT_GROUP_KEYS) for name, group in content.get("pg_config", {}).items()
    }
    entries = [_with_keys(entry, _KEPT_ENTRY_KEYS) for entry in content.get("entries") or ()]
    try:
        weigh([small, entries], _MAX_WEIGHT)
    except SchemaError:  # what nobody reads, named in too many places
        return data[:MAX_PAYLOAD_BYTES]
    while True:
        text = json.dumps({**small, "entries": entries}, default=_nothing).encode()
        if len(text) <= MAX_PAYLOAD_BYTES or not entries:
            return text
        entries = _half(entries)


def _with_keys(values: Mapping[str, object], keys: frozenset[str]) -> dict[str, object]:
    """Return the entries with these keys only."""
    return {key: value for key, value in values.items() if key in keys}


def _nothing(_: object) -> None:
    """Return None for bytes, which JSON cannot hold and no judged field contains."""


def _half(entries: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return the entries without the older half of the finished ones; if all are unfinished, only the older half."""
    done = [entry for entry in entries if entry.get("state") == "completed" or entry.get("retired")]
    if not done:
        return entries[: len(entries) // 2]
    old = {id(entry) for entry in done[: -(-len(done) // 2)]}
    return [entry for entry in entries if id(entry) not in old]
