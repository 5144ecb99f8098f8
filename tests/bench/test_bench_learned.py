"""The bench of learned detectors: which cases, what is kept of them, what is printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import bench_learned
from tests.bench.learned_cases import EVIDENCE, WITHOUT, Judged, Order, Said, Verdicts, judge_case
from tocsin.pipeline.detect.learned.registry import LEARNED
from tocsin.pipeline.lab.simulation.case import HEALTHY

NAMES = tuple(LEARNED)
WAYS = (WITHOUT, EVIDENCE, *(f"{name}=accuse" for name in NAMES))


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SETS", "CASES", "DRILLS", "KEEP", "SECONDS", "PROCESSES"):
        monkeypatch.delenv(f"TOCSIN_BENCH_{name}", raising=False)


def case(name: str, fault: str, delay: float | None, after: float | None, wrong: int = 0) -> Judged:
    """A case in which the verdicts of all ways are alike, and only the first detector speaks."""
    verdicts = tuple(Verdicts(way, delay, 0, wrong) for way in WAYS)
    said = tuple(Said(name, after if name == NAMES[0] else None, 0) for name in NAMES)
    return Judged(f"held {name}", fault, 0.5, verdicts, said)


def test_the_simulated_sets_come_in_turns_half_of_them_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOCSIN_BENCH_CASES", "4")
    orders = bench_learned.orders()

    assert [order.group for order in orders] == ["held", "minder"] * 4
    assert sum(order.kind == HEALTHY for order in orders) == 4
    assert len({order.key for order in orders}) == 8


def test_drills_come_first_and_only_where_a_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOCSIN_BENCH_SETS", "drills")
    assert bench_learned.orders() == []
    (tmp_path / "none-1").mkdir()
    (tmp_path / "none-1" / "manifest.json").write_text("{}")
    monkeypatch.setenv("TOCSIN_BENCH_DRILLS", str(tmp_path))

    assert [order.key for order in bench_learned.orders()] == ["drills none-1"]


def test_what_is_kept_is_not_judged_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOCSIN_BENCH_KEEP", str(tmp_path / "kept"))
    known = case("1 fault", "fail_slow", 12.0, 30.0)
    bench_learned.keep(known)

    assert bench_learned.judged([Order("held", "1 fault")]) == [known]


def test_where_the_time_is_over_what_is_done_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOCSIN_BENCH_KEEP", str(tmp_path / "kept"))
    monkeypatch.setenv("TOCSIN_BENCH_SECONDS", "0")
    known = case("1 fault", "fail_slow", 12.0, 30.0)
    bench_learned.keep(known)
    left = Order("held", "2", seed=5, kind=HEALTHY, hosts=(4, 4))

    assert bench_learned.judged([Order("held", "1 fault"), left]) == [known]
    assert "time is over: 1 of 2 cases" in capsys.readouterr().out


def test_the_table_counts_hits_wrong_names_and_what_nobody_else_finds(capsys: pytest.CaptureFixture[str]) -> None:
    cases = [case("1", "fail_slow", 12.0, 8.0), case("2", "fail_stop", None, 20.0), case("3", "", None, None, wrong=2)]
    bench_learned.print_set("held", cases, 120)
    lines = capsys.readouterr().out.splitlines()

    assert lines[1] == "held: 3 of 120 cases, 2 with a fault, 1.50 machine-days"
    assert lines[3].split() == [WITHOUT, "2", "1", "12.0", "0", "2", "2"]
    assert len(lines) == 3 + len(WAYS) + len(NAMES)
    assert lines[3 + len(WAYS)] == (
        f"{NAMES[0]}: names the machine of 2 of 2 faults, median 14 s; 1 of them no verdict names (fail_stop), 1 it"
        " names before the verdict; others: 0 machines, 0 in healthy jobs"
    )


def test_a_case_is_judged_without_as_evidence_and_with_each() -> None:
    found = judge_case(Order("held", "1", seed=5, kind="machine_unreachable", hosts=(4, 4), duration_seconds=180.0))

    assert tuple(one.way for one in found.verdicts) == WAYS
    assert found.verdicts[0].delay_seconds is not None
    assert found.verdicts[0].delay_seconds == found.verdicts[1].delay_seconds
    assert [one.detector for one in found.said] == list(NAMES)
    assert Judged.from_object(found.to_object()) == found
