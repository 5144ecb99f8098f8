"""What the accuracy benches share: which cases, what is done to them, what is printed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bench import bench_accuracy, bench_comparison, bench_robustness, judged
from tests.bench.judged import CHANGES, How, Order, case_count, changed, fault_and_healthy, host_range, judge_case
from tocsin.pipeline.lab.backtest.trial import Trial
from tocsin.pipeline.lab.simulation.case import HEALTHY, draw_case


def test_half_of_the_cases_are_healthy_and_no_seed_comes_twice() -> None:
    orders = fault_and_healthy(9_000_000, 6, How((4, 8), ("ours",)))

    assert [(order.seed - 9_000_000, order.kind) for order in orders] == [
        (index, kind) for index in range(3) for kind in (None, HEALTHY)
    ]


def test_size_and_number_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CASES", "HOSTS"):
        monkeypatch.delenv(f"TOCSIN_BENCH_{name}", raising=False)
    assert (case_count(600), host_range((4, 256))) == (600, (4, 256))
    monkeypatch.setenv("TOCSIN_BENCH_CASES", "1")
    for text, wanted in (("4-64", (4, 64)), ("16", (16, 16))):
        monkeypatch.setenv("TOCSIN_BENCH_HOSTS", text)
        assert (case_count(600), host_range((4, 256))) == (2, wanted)


def trials(changes: tuple[str, ...] = CHANGES) -> list[Trial]:
    return judge_case(Order(5, "machine_unreachable", How((4, 4), ("plain",), changes, 300.0)))


def test_a_case_is_judged_once_for_each_change_and_always_alike() -> None:
    found = trials()

    assert len(found) == len(CHANGES) == 6
    assert found == trials()
    assert found[0].faults
    assert all(trial.faults == found[0].faults for trial in found)


def test_a_change_is_what_its_name_says() -> None:
    recording = draw_case(5, 4, HEALTHY, "held", duration_seconds=60.0).recording()

    assert changed(recording, 1, "none") is recording
    few = changed(recording, 1, "lost_samples").tables["host_metrics"]
    assert len(few["ts_ns"]) < len(recording.tables["host_metrics"]["ts_ns"])
    with pytest.raises(KeyError):
        changed(recording, 1, "rain")


@pytest.mark.parametrize("bench", [bench_accuracy, bench_robustness])
def test_tables_are_printed(bench: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TOCSIN_BENCH_CASES", "2")
    monkeypatch.setenv("TOCSIN_BENCH_HOSTS", "4")

    def here(orders: list[Order]) -> list[list[Trial]]:
        return [trials(order.how.changes) for order in orders]

    monkeypatch.setattr(bench, "judge_all", here)
    monkeypatch.setattr(bench, "SETS", ("plain",))
    bench.main()  # type: ignore[attr-defined]
    said = capsys.readouterr().out

    assert "2 cases" in said
    names = CHANGES if bench is bench_robustness else ("plain", "machine_unreachable")
    assert all(any(line.startswith(name) for line in said.splitlines()) for name in names)


def test_benches_take_seeds_of_their_own() -> None:
    assert bench_accuracy.FIRST_SEED == 9_000_000
    assert bench_accuracy.FIRST_SEED + bench_accuracy.CASE_COUNT < bench_comparison.FIRST_SEED
    assert CHANGES[0] == judged.NONE


def test_what_a_cause_was_called_is_counted() -> None:
    trial = trials(("none",))[0]
    hit = next((one for one in trial.answers[0].accusations if one.worth == "hit"), None)
    said = "missed" if hit is None else hit.cause

    assert bench_accuracy.confusion([trial, trial]) == {"machine_unreachable": {said: 2}}
    silent = replace(trial, answers=(replace(trial.answers[0], accusations=()),))
    assert bench_accuracy.confusion([silent]) == {"machine_unreachable": {"missed": 1}}


def test_a_bench_ends_early_with_what_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOCSIN_BENCH_SECONDS", "0")
    found = judged.judge_all([Order(5, HEALTHY, How((4, 4), ("plain",), ("none",), 60.0))] * 3)

    assert len(found) == 1
    assert "1 of 3 cases" in capsys.readouterr().out
