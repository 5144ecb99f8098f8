"""Reads verdicts and events of other programs from files with one JSON object a line, as the recording format has them.

Events may come as a table, too: ``event_tables``. A key whose value is null is one that is not given. A wrong line is
an error that names file, line, field and value.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from tocsin.pipeline.actions.policy.event_tables import SUFFIXES, table_rows
from tocsin.schemas.errors import DecodeError, FieldError, RecordingError
from tocsin.schemas.kinds import EventSource, Severity
from tocsin.schemas.records import NS_PER_SECOND, Event, JobKey
from tocsin.schemas.verdicts import (
    ActionKind,
    Component,
    ComponentKind,
    Evidence,
    FaultKind,
    Suspect,
    Verdict,
    VerdictState,
    Witness,
    WitnessKind,
)
from tocsin.schemas.wire.validate import MAX_ATTEMPT, MAX_RANKS, ObjectReader, load_json

DEADLINE_NS: Final = 600 * NS_PER_SECOND
"""Time for which a verdict's action may be begun, where its line says nothing."""
_MOST_WITNESSES: Final = 100_000
_T = TypeVar("_T")


def read_verdict_lines(path: Path) -> list[Verdict]:
    """Return the verdict updates of a file, in order of ``detected_ns``; those of one time in the file's order.

    Raises:
        RecordingError: a line is no verdict; names file, line, field and value.
    """
    return sorted(_read(path, _lines_of(path), _verdict), key=lambda one: one.detected_ns)


def read_event_lines(path: Path) -> list[Event]:
    """Return the events of a file, in order of ``ts_ns``: lines, or a table where its name ends so.

    Raises:
        RecordingError: a line is no event; names file, line, field and value.
    """
    rows = table_rows(path) if path.suffix.lower() in SUFFIXES else _lines_of(path)
    return sorted(_read(path, rows, _event), key=lambda one: one.ts_ns)


def _read(path: Path, rows: Iterable[tuple[int, object]], read: Callable[[ObjectReader], _T]) -> Iterator[_T]:
    """Yield what each row of a file holds."""
    for number, row in rows:
        try:
            yield read(ObjectReader(row, "line"))
        except FieldError as error:
            field = error.field.removeprefix("line.")
            raise RecordingError(f"{path}:{number}", str(error).removeprefix("line."), column=field) from error


def _lines_of(path: Path) -> Iterator[tuple[int, object]]:
    """Yield the lines of a file with their numbers; empty ones are left out, and so is a mark of the byte order."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordingError(str(path), f"a file that can be read ({error.strerror or error})") from error
    # Not splitlines: a host's name or an error text may hold what Python takes for the end of a line.
    for number, text in enumerate(data.removeprefix(BOM_UTF8).split(b"\n"), 1):
        if not text.strip():
            continue
        try:
            yield number, load_json(text, "line")
        except DecodeError as error:
            raise RecordingError(f"{path}:{number}", str(error)) from error


def _verdict(line: ObjectReader) -> Verdict:
    """Return the verdict of a line."""
    detected_ns = line.integer("detected_ns", 0)
    common = line.optional_object("common")
    return Verdict(
        verdict_id=line.name("id"),
        job=_job(line),
        fault=line.choice("fault", FaultKind),
        cause=line.name("cause"),
        suspects=tuple(_suspect(one) for one in line.objects("suspects")),
        onset_ns=line.integer("onset_ns", 0),
        detected_ns=detected_ns,
        confidence=line.number("confidence", 0.0, 1.0),
        action=line.choice("action", ActionKind),
        reason=_optional_name(line, "reason"),
        evidence=tuple(_evidence(one) for one in line.optional_objects("evidence")),
        state=line.choice("state", VerdictState),
        update=line.integer("update", 0) if _given(line, "update") else 0,
        expires_ns=line.integer("expires_ns", 0) if _given(line, "expires_ns") else detected_ns + DEADLINE_NS,
        common=None if common is None else _component(common),
        witnesses=tuple(_witness(one) for one in line.optional_objects("witnesses")[:_MOST_WITNESSES]),
        costs_ratio=line.optional_number("costs_ratio", 0.0, 1.0),
    )


def _given(line: ObjectReader, key: str) -> bool:
    """Return whether a line has a key whose value is not null."""
    return line.has(key) and line.value(key) is not None


def _optional_name(line: ObjectReader, key: str) -> str:
    """Return a text that can be a key, "" if it is not given."""
    return line.name(key, empty=True) if _given(line, key) else ""


def _job(line: ObjectReader) -> JobKey:
    """Return cluster, job and attempt of a line; the recording format has the job alone."""
    cluster = _optional_name(line, "cluster") or "default"
    return JobKey(
        cluster, line.name("job_id"), line.integer("attempt", 0, MAX_ATTEMPT) if _given(line, "attempt") else 0
    )


def _component(value: ObjectReader) -> Component:
    """Return a component."""
    return Component(value.choice("kind", ComponentKind), value.name("name"))


def _suspect(value: ObjectReader) -> Suspect:
    """Return a suspect."""
    return Suspect(_component(value), value.optional_integers("ranks", 0, MAX_RANKS - 1))


def _witness(value: ObjectReader) -> Witness:
    """Return a witness."""
    return Witness(value.name("host"), value.choice("kind", WitnessKind))


def _evidence(value: ObjectReader) -> Evidence:
    """Return one piece of evidence."""
    start_ns = value.integer("start_ns", 0)
    return Evidence(
        detector=value.name("detector"),
        metric=value.name("metric", empty=True),
        score=value.number("score"),
        start_ns=start_ns,
        end_ns=value.integer("end_ns", 0),
        text=value.text("text") if _given(value, "text") else "",
    )


def _event(line: ObjectReader) -> Event:
    """Return the event of a line; its payload may be an object, or JSON text as in ``events.parquet``."""
    cluster = _optional_name(line, "cluster") or "default"
    return Event(
        job=JobKey(cluster, _optional_name(line, "job_id"), 0),
        host=_optional_name(line, "host") if line.has("host") else line.name("host"),
        ts_ns=line.integer("ts_ns", 0),
        rank=line.integer("rank", -1, MAX_RANKS - 1) if _given(line, "rank") else -1,
        source=line.choice("source", EventSource),
        name=line.name("name"),
        severity=line.choice("severity", Severity),
        payload=_payload(line),
    )


def _payload(line: ObjectReader) -> dict[str, object]:
    """Return the payload of an event's line, empty where there is none."""
    if not _given(line, "payload"):
        return {}
    if isinstance(text := line.value("payload"), str):
        try:
            found = load_json(text.encode(), "payload") if text.strip() else {}
        except (DecodeError, UnicodeEncodeError) as error:
            raise FieldError(line.field("payload"), text, "JSON text of an object") from error
        if not isinstance(found, dict):
            raise FieldError(line.field("payload"), text, "JSON text of an object")
        return found
    return line.mapping("payload")
