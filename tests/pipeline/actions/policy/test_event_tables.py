"""Events of other programs as tables, and as lines with odd values."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.actions.policy.samples import event, event_line, verdict, write_lines
from tocsin.pipeline.actions.policy.verdict_lines import read_event_lines, read_verdict_lines
from tocsin.schemas.errors import RecordingError

EVENTS = [event("xid", {"code": 999_999}, 5.0), event("exit", {"stderr_tail": 'a "b",\nc'}, 1.0, on="n2")]


def _csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def _parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_tables_hold_the_same_events_as_lines(tmp_path: Path) -> None:
    rows = [{**event_line(one), "job_id": one.job.job_id, "unknown_column": 1} for one in EVENTS]
    wanted = sorted(EVENTS, key=lambda one: one.ts_ns)

    assert read_event_lines(write_lines(tmp_path / "e.jsonl", rows)) == wanted
    assert read_event_lines(_csv(tmp_path / "e.csv", rows)) == wanted
    assert read_event_lines(_parquet(tmp_path / "e.parquet", rows)) == wanted


@pytest.mark.parametrize("write", [_csv, _parquet])
def test_a_wrong_row_is_named_by_file_row_and_column(tmp_path: Path, write: Any) -> None:
    row = event_line(EVENTS[0])
    for name, value in (("source", "dmesg"), ("severity", "bad"), ("payload", "no object")):
        with pytest.raises(RecordingError, match=rf"e\.\w+:[12], column {name}: {name} = '{value}'"):
            read_event_lines(write(tmp_path / f"e.{write.__name__[1:]}", [{**row, name: value}]))
    del row["name"]
    with pytest.raises(RecordingError, match="column name: name = None: must be present"):
        read_event_lines(write(tmp_path / f"e.{write.__name__[1:]}", [row]))


@pytest.mark.parametrize(("name", "must"), [("e.parquet", "a parquet table"), ("e.csv", "a csv table")])
def test_what_is_no_table_is_named(tmp_path: Path, name: str, must: str) -> None:
    (tmp_path / name).write_bytes(b"\xff\x00\xfe" * 99)
    with pytest.raises(RecordingError, match=f"{name}.*{must}"):
        read_event_lines(tmp_path / name)
    with pytest.raises(RecordingError, match=r"absent.*No such file"):
        read_event_lines((tmp_path / "absent").with_suffix(Path(name).suffix))


def test_nulls_and_a_byte_order_mark_are_as_nothing(tmp_path: Path) -> None:
    line = verdict().to_line()
    nulls = dict.fromkeys(("reason", "witnesses", "common", "evidence", "update", "cluster", "attempt", "expires_ns"))
    path = write_lines(tmp_path / "v.jsonl", [{**line, **nulls}])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    [found] = read_verdict_lines(path)

    assert (found.reason, found.witnesses, found.evidence, found.update) == ("", (), (), 0)
    assert read_verdict_lines(write_lines(tmp_path / "w.jsonl", [])) == []
    [told] = read_event_lines(write_lines(tmp_path / "e.jsonl", [{**event_line(EVENTS[0]), "host": None}]))
    assert told.host == ""
