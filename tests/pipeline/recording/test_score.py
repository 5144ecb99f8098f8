"""The rules of the recording format for verdicts against truth, one by one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.pipeline.recording.kit import START_NS, good_tables, manifest, write_folder
from tocsin.pipeline.recording.score import FolderScore, Score, add_up, read_lines, score_folder, score_lines
from tocsin.schemas.errors import RecordingError

Line = dict[str, object]


def at(seconds: float) -> int:
    return START_NS + round(seconds * 1e9)


def line(
    seconds: float,
    *hosts: str,
    name: str = "v",
    state: str = "open",
    fault: str = "fail_slow",
    cause: str = "power_cap",
) -> Line:
    suspects = [{"kind": "host", "name": host} for host in hosts]
    return {
        "id": name,
        "fault": fault,
        "cause": cause,
        "suspects": suspects,
        "detected_ns": at(seconds),
        "state": state,
    }


def fault(onset: float = 100, end: float = 200, *hosts: str, cause: str = "power_cap") -> Line:
    suspects = [{"kind": "host", "name": host} for host in hosts or ("a",)]
    return {"kind": "fail_slow", "cause": cause, "suspects": suspects, "onset_ns": at(onset), "end_ns": at(end)}


def judged(lines: list[Line], *faults: Line) -> tuple[list[float | None], int]:
    score = score_lines(lines, faults, 1.0)
    return [found.delay_seconds for found in score.faults], score.false_count


@pytest.mark.parametrize(
    ("seconds", "delay"),
    [(97.9, None), (98.0, -2.0), (100.0, 0.0), (150.0, 50.0), (320.0, 220.0), (320.1, None)],
)
def test_from_two_seconds_before_the_onset_to_two_minutes_after_the_end(seconds: float, delay: float | None) -> None:
    delays, false_count = judged([line(seconds, "a")], fault())

    assert delays == [delay if delay is None else pytest.approx(delay)]
    assert false_count == (delay is None)


@pytest.mark.parametrize(
    "last",
    [
        line(120, "b", state="cancelled"),
        line(120, "b", fault="degraded"),
        line(120, cause="data_imbalance"),
    ],
    ids=["cancelled", "degraded", "no suspects"],
)
def test_what_is_no_accusation(last: Line) -> None:
    assert judged([line(110, "b"), last], fault()) == ([None], 0)


def test_the_last_line_decides_and_the_first_with_its_suspects_is_timed() -> None:
    lines = [line(110, "b"), line(130, "a"), line(500, "a", state="resolved")]

    assert judged(lines, fault()) == ([30.0], 0)
    assert judged([line(110, "a"), line(130, "b")], fault()) == ([None], 1)
    assert judged([line(110, "a"), line(120, "b"), line(130, "a")], fault()) == ([10.0], 0)


@pytest.mark.parametrize("hosts", [("b",), ("a", "b")])
def test_wrong_suspects_are_a_false_accusation(hosts: tuple[str, ...]) -> None:
    assert judged([line(110, *hosts)], fault()) == ([None], 1)


def test_who_was_ever_named_wrongly_is_counted_though_it_was_taken_back() -> None:
    lines = [line(110, "b"), line(120, "a", "c"), line(130, "a"), line(140, "d", name="2", fault="degraded")]
    score = score_lines([*lines, line(150, "b", name="3", state="cancelled")], [fault()], 1.0)

    assert score.ever_wrong == {"b", "c"}
    assert add_up([score, score])[0].to_object()["ever_named_wrongly"] == 4


def test_several_suspects_must_be_the_same_ones_in_any_order() -> None:
    assert judged([line(110, "b", "a")], fault(100, 200, "a", "b")) == ([10.0], 0)
    assert judged([line(110, "a")], fault(100, 200, "a", "b")) == ([None], 1)


def test_a_second_verdict_on_a_fault_counts_neither_way() -> None:
    assert judged([line(110, "a", name="1"), line(120, "a", name="2")], fault()) == ([10.0], 0)


def test_any_accusation_is_false_where_nobody_is_at_fault() -> None:
    assert judged([line(110, "a", name="1"), line(120, "b", name="2")]) == ([], 2)


def test_two_faults_of_one_host_are_two_hits() -> None:
    """The second begins while a verdict may still be about the first."""
    lines = [line(110, "a", name="1"), line(260, "a", name="2")]

    assert judged(lines, fault(100, 200), fault(250, 350)) == ([10.0, 10.0], 0)
    assert judged(lines[1:], fault(100, 200), fault(250, 350)) == ([None, 10.0], 0)


def test_the_cause_is_the_last_lines() -> None:
    lines = [line(110, "a", cause="unknown"), line(120, "a", cause="power_cap")]

    assert score_lines(lines, [fault()], 1.0).faults[0].cause_right is True
    assert score_lines(lines[:1], [fault()], 1.0).faults[0].cause_right is False


def test_figures_of_all_folders() -> None:
    one = score_lines([line(110, "a", name="1"), line(120, "b", name="2")], [fault()], 0.5)
    two = score_lines([], [fault(cause="ecc_error")], 1.5)
    total, kinds = add_up([one, two])

    assert (total.precision, total.recall, total.f1) == (0.5, 0.5, 0.5)
    assert total.false_per_machine_day == 0.5
    assert total.cause_accuracy == 1.0
    assert {name: score.recall for name, score in kinds.items()} == {"ecc_error": 0.0, "power_cap": 1.0}
    assert json.loads(json.dumps(total.to_object()))["false_accusations"] == 1


def test_nothing_to_divide_by() -> None:
    total, kinds = add_up([FolderScore((), 0, 0.0)])

    assert kinds == {}
    assert {total.precision, total.recall, total.f1, total.median_seconds, total.p90_seconds} == {None}
    assert total.false_per_machine_day is None


@pytest.mark.parametrize(("count", "p90"), [(1, 1), (2, 2), (9, 9), (10, 9), (11, 10), (20, 18), (100, 90)])
def test_p90_is_the_least_time_within_which_nine_of_ten_hits_came(count: int, p90: int) -> None:
    assert Score(delays_seconds=[float(i) for i in range(count, 0, -1)]).p90_seconds == p90


def test_machine_days_are_hosts_times_duration(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, good_tables(), reported=manifest(86_400), truth={"faults": []})
    (folder / "verdicts.jsonl").write_text("")
    assert score_folder(folder).machine_days == 3.0

    (folder / "topology.parquet").unlink()
    assert score_folder(folder).machine_days == 2.0

    (folder / "host_metrics.parquet").unlink()
    assert score_folder(folder).machine_days == 1.0


def test_a_line_is_what_ends_with_a_line_feed(tmp_path: Path) -> None:
    """Not what Python's ``splitlines`` makes of a name with U+2028 or U+0085."""
    path = tmp_path / "verdicts.jsonl"
    path.write_text(json.dumps(line(1, "a\u2028b\u0085c"), ensure_ascii=False) + "\n\n", "utf-8")

    assert len(read_lines(path)) == 1


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("{", ""),
        ("[" * 100_000, ""),
        ("7", ""),
        ('"\xff"', ""),
        ("{}", "id"),
        (json.dumps({**line(1), "suspects": "a"}), "suspects"),
        (json.dumps({**line(1), "suspects": [{}]}), "suspects"),
        (json.dumps({**line(1), "detected_ns": "soon"}), "detected_ns"),
    ],
    ids=range(8),
)
def test_a_line_that_is_no_verdict(tmp_path: Path, text: str, column: str) -> None:
    path = tmp_path / "verdicts.jsonl"
    path.write_text(json.dumps(line(1)) + "\n" + text + "\n", "latin-1")
    with pytest.raises(RecordingError) as caught:
        read_lines(path)

    assert (caught.value.file, caught.value.column, caught.value.row) == ("verdicts.jsonl", column, 1)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"truth\.json: missing"):
        score_folder(write_folder(tmp_path, {}))
    with pytest.raises(RecordingError, match="run 'tocsin replay' first"):
        score_folder(write_folder(tmp_path, {}, truth={"faults": []}))
