"""MLPerf's logs: labels of launchers, foreign and torn lines, and the real logs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.schemas.formats.mllog import Skipped, SkipReason, Stamp, StampKind, stamps_of
from tocsin.schemas.formats.task_labels import task_of

ENTRY = {"namespace": "", "time_ms": 1746119101618, "event_type": "POINT_IN_TIME", "key": "seed", "value": 7}


def line_of(prefix: str = "", **changes: object) -> str:
    return f"{prefix}:::MLLOG {json.dumps({**ENTRY, **changes})}\n"


def _read(*lines: str) -> tuple[list[Stamp], Skipped]:
    skipped = Skipped()
    return list(stamps_of(lines, skipped)), skipped


@pytest.mark.parametrize(
    ("prefix", "task"),
    [
        ("", ""),
        ("0: ", "0"),
        (" 12: ", "12"),
        ("[3] ", "3"),
        ("[1,7]<stdout>:", "7"),
        ("[rank5]:", "5"),
        ("INFO: ", ""),
        ("node01: ", ""),
        ("training  | [0] ", ""),
        ("12: epoch 3: ", ""),
    ],
)
def test_the_launchers_label_is_the_process(prefix: str, task: str) -> None:
    assert task_of(prefix) == task
    assert [stamp.process for stamp in _read(line_of(prefix))[0]] == [task]


def test_a_namespace_is_the_process_where_the_launcher_says_nothing() -> None:
    assert [stamp.process for stamp in _read(line_of(namespace="worker3"), line_of("4: ", namespace="w"))[0]] == [
        "worker3",
        "4",
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Loading data ...\n", SkipReason.FOREIGN),
        (line_of()[:-9] + "\n", SkipReason.TORN),
        (":::MLLOG [1, 2]\n", SkipReason.TORN),
        (":::MLLOG\n", SkipReason.TORN),
        (":::MLLOG " + "[" * 20_000 + "\n", SkipReason.TORN),
        (line_of(key=None), SkipReason.BAD_FIELD),
        (line_of(event_type="END"), SkipReason.BAD_FIELD),
        (line_of(event_type=["POINT_IN_TIME"]), SkipReason.BAD_FIELD),
        (line_of(time_ms=0), SkipReason.NO_TIME),
        (line_of(time_ms="now"), SkipReason.NO_TIME),
        (line_of(time_ms=True), SkipReason.NO_TIME),
        (line_of(time_ms=float("nan")), SkipReason.NO_TIME),
        (line_of(time_ms=10**400), SkipReason.NO_TIME),
        (line_of(value="x" * 70_000), SkipReason.TOO_LONG),
    ],
)
def test_what_is_no_entry_is_counted_by_reason_and_line(text: str, reason: SkipReason) -> None:
    stamps, skipped = _read(line_of(), text, "\n", text, line_of(key="init_start", event_type="INTERVAL_START"))

    assert [stamp.key for stamp in stamps] == ["seed", "init_start"]
    assert (skipped.counts, skipped.first_lines) == ({reason: 2}, {reason: 2})


def test_two_entries_in_one_line_are_both_read() -> None:
    stamps, skipped = _read(line_of("3: ").strip() + line_of(key="second"), line_of()[:30] + line_of(key="third"))

    assert [stamp.key for stamp in stamps] == ["seed", "second", "third"]
    assert skipped.counts == {SkipReason.TORN: 1}


@given(st.lists(st.text() | st.text().map(lambda text: f":::MLLOG {text}")))
def test_any_text_is_read_without_an_error(lines: list[str]) -> None:
    stamps, skipped = _read(*lines)
    assert not stamps
    assert sum(skipped.counts.values()) >= sum(":::MLLOG" in line for line in lines)


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("8xXE9712x4GB200_llama2_70b_lora/result_0.txt", {"cache_clear": 32, "init_start": 1, "init_stop": 1}),
        ("dgxa100_n48_maskrcnn/result_3.txt", {"cache_clear": 48, "init_start": 384, "init_stop": 1}),
    ],
)
def test_real_logs_are_read_whole(shared_data: Path, name: str, counts: dict[str, int]) -> None:
    path = shared_data / "mllog" / name
    if not path.is_file():
        pytest.skip(f"no MLPerf log at {path}")
    with path.open(encoding="utf-8") as lines:
        stamps, skipped = _read(*lines)

    assert skipped.counts == {}
    assert {key: sum(stamp.key == key for stamp in stamps) for key in counts} == counts
    assert {stamp.kind for stamp in stamps} == set(StampKind)
    assert {stamp.process for stamp in stamps} <= {"", "0"}
