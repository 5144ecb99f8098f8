"""The quiet bench: its jobs are healthy and large enough, and what accuses somebody is counted."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bench import quiet
from tests.bench.quiet_jobs import (
    QuietJob,
    Reported,
    attempts_of,
    evicts,
    listen,
    names_somebody,
    pages,
    quiet_jobs,
    tell,
    with_other_sku,
)
from tocsin.pipeline.lab.simulation.case import draw_case
from tocsin.pipeline.lab.simulation.draw import Draw
from tocsin.schemas.records import JobKey
from tocsin.schemas.verdicts import (
    ActionKind,
    Component,
    ComponentKind,
    Evidence,
    FaultKind,
    Suspect,
    Verdict,
    VerdictState,
)

HOST = (Suspect(Component(ComponentKind.HOST, "n1")),)
LINE = Verdict(
    "id-1",
    JobKey("c", "j", 0),
    FaultKind.FAIL_SLOW,
    "unknown",
    HOST,
    10,
    20,
    0.7,
    ActionKind.NOTIFY,
    "metrics_differ",
    (Evidence("peers", "gpu_power_watts", 1.2, 10, 20),),
    VerdictState.OPEN,
    0,
    100,
)
CLOSED = {"action": ActionKind.NONE}


def _line(state: VerdictState, **changed: Any) -> Verdict:
    return replace(LINE, state=state, **changed)


# -- what counts ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "counts"),
    [
        ([_line(VerdictState.OPEN), _line(VerdictState.CONFIRMED)], True),
        ([_line(VerdictState.OPEN), _line(VerdictState.CONFIRMED), _line(VerdictState.RESOLVED)], True),
        ([_line(VerdictState.OPEN), _line(VerdictState.CANCELLED)], False),
        ([_line(VerdictState.OPEN)], True),
        ([_line(VerdictState.OPEN), _line(VerdictState.EXPIRED)], True),
        ([_line(VerdictState.CONFIRMED, fault=FaultKind.DEGRADED)], False),
        ([_line(VerdictState.OPEN), _line(VerdictState.CONFIRMED, fault=FaultKind.DEGRADED)], False),
        ([_line(VerdictState.CONFIRMED, suspects=())], False),
        ([_line(VerdictState.CONFIRMED, suspects=(), fault=FaultKind.HANG)], True),
    ],
    ids=[
        "confirmed",
        "confirmed-and-resolved",
        "taken-back",
        "still-open",
        "expired",
        "degraded",
        "became-degraded",
        "all-of-it-is-slower",
        "stands-and-nobody-knows-why",
    ],
)
def test_what_pages(lines: list[Verdict], counts: bool) -> None:
    assert pages(lines) is counts


def test_an_eviction_counts_even_when_it_is_taken_back() -> None:
    lines = [_line(VerdictState.CONFIRMED, action=ActionKind.DRAIN), _line(VerdictState.RESOLVED, **CLOSED)]

    assert evicts(lines)
    assert not evicts([_line(VerdictState.CONFIRMED), _line(VerdictState.RESOLVED, **CLOSED)])


def test_who_was_named_for_a_second_is_counted_apart() -> None:
    reported = tell([_line(VerdictState.OPEN), _line(VerdictState.CANCELLED, **CLOSED)], 2.0, {})

    assert (reported.verdict_count, reported.named_count, reported.page_count, reported.eviction_count) == (1, 1, 0, 0)
    assert not names_somebody([_line(VerdictState.OPEN, fault=FaultKind.DEGRADED)])


def test_what_is_found_says_where_it_comes_from() -> None:
    lines = [_line(VerdictState.CONFIRMED, action=ActionKind.EVICT), _line(VerdictState.RESOLVED, **CLOSED)]

    reported = tell(lines, 2.0, {"seed": 7})

    assert reported.found[0]["seed"] == 7
    assert reported.found[0]["detector"] == "peers"
    assert reported.found[0]["action"] == "evict"
    assert reported.found[0]["suspects"] == ["n1"]


@pytest.mark.parametrize(("kind", "seed"), [("pcie_downgrade", 0), ("gpu_card_drop", 4), ("machine_unreachable", 6)])
def test_a_planted_fault_pages(kind: str, seed: int) -> None:
    case = draw_case(seed, (6, 8), kind, "fit", duration_seconds=300.0)

    reported = tell(listen([case]), 1.0, {})

    assert reported.page_count >= 1
    assert case.truth()["faults"][0]["suspects"][0]["name"] in {
        name for found in reported.found for name in found["suspects"]
    }


def test_a_slow_machine_is_proposed_for_eviction_in_the_end() -> None:
    case = draw_case(0, (6, 8), "power_cap", "fit", duration_seconds=300.0)

    reported = tell(listen([case]), 1.0, {})

    assert reported.eviction_count >= 1


# -- the jobs ----------------------------------------------------------------------------


@pytest.mark.parametrize("machine_days", [30.0, 1000.0])
def test_at_least_half_of_the_machine_time_is_in_jobs_of_a_thousand_hosts_or_more(machine_days: float) -> None:
    jobs = quiet_jobs(machine_days, 1)

    whole = sum(job.machine_days for job in jobs)
    large = sum(job.machine_days for job in jobs if job.host_count >= 1024)
    assert whole >= machine_days
    assert large >= 0.5 * whole
    assert {job.seed for job in jobs} == {job.seed for job in dict.fromkeys(jobs)}
    assert len({job.seed for job in jobs}) == len(jobs)
    assert min(job.host_count for job in jobs) >= 4
    assert max(job.host_count for job in jobs) <= 4096


def test_a_longer_run_holds_the_jobs_of_a_shorter_one() -> None:
    assert set(quiet_jobs(30.0, 3)) < set(quiet_jobs(300.0, 3))
    assert not set(quiet_jobs(30.0, 3)) & set(quiet_jobs(30.0, 4))


def test_their_attempts_are_healthy_follow_each_other_and_last_as_long_as_the_job() -> None:
    counts = set()
    for seed in range(20):
        job = QuietJob(seed, 16, 600.0)
        cases = attempts_of(job, "fit")
        counts.add(len(cases))
        assert all(case.truth()["faults"] == [] for case in cases)
        assert all(later.shape.start_ns > case.end_ns for case, later in itertools.pairwise(cases))
        seconds = sum((case.end_ns - case.shape.start_ns) / 1e9 for case in cases)
        assert 600.0 <= seconds <= 600.0 + 25.0 * len(cases)
    assert counts == {1, 2, 3}


def test_a_restart_comes_back_partly_on_other_machines() -> None:
    restarted = next(cases for seed in range(50) if len(cases := attempts_of(QuietJob(seed, 200, 300.0), "fit")) > 1)

    first, second = (set(case.shape.host_names) for case in restarted[:2])
    assert 0 < len(second - first) < 40


def test_steps_of_a_thousand_hosts_take_seconds() -> None:
    cases = attempts_of(QuietJob(3, 1024, 30.0), "fit")

    assert cases[0].shape.pace.step_seconds >= 4.0


def test_machines_of_another_kind_differ_and_are_no_slower() -> None:
    shape = draw_case(1, 64, "healthy", "fit", duration_seconds=60.0).shape

    mixed = with_other_sku(shape, Draw(np.random.SeedSequence(5), "fit"))

    other = np.flatnonzero((mixed.gpu_bias_factor != shape.gpu_bias_factor).any(axis=(0, 2)))
    assert 1 <= len(other) <= 7
    assert (mixed.rank_load <= shape.rank_load).all()


def test_a_job_that_ends_in_order_and_comes_back_is_no_fault() -> None:
    job = next(job for seed in range(50) if len(attempts_of(job := QuietJob(seed, 4, 180.0), "fit")) == 2)

    lines = list(listen(attempts_of(job, "fit")))

    assert not any(line.fault in (FaultKind.FAIL_STOP, FaultKind.HANG) and line.suspects for line in lines)


# -- the figures -------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "wanted"), [(0, 2.9957), (1, 4.7439), (10, 16.9622)])
def test_the_upper_bound_is_poissons(count: int, wanted: float) -> None:
    assert quiet.upper_bound(count) == pytest.approx(wanted, abs=1e-3)


def _kept(path: Path, reported: Reported) -> None:
    jobs = quiet_jobs(0.5, 9)
    lines = [json.dumps({"seed": job.seed, **asdict(reported if job is jobs[0] else Reported(1.0))}) for job in jobs]
    path.write_text("\n".join(lines) + "\n")


def test_a_page_makes_the_run_fail_and_stands_in_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "kept.jsonl"
    arguments = ["--machine-days", "0.5", "--first-seed", "9", "--keep", str(kept), "--processes", "1"]
    _kept(kept, tell([_line(VerdictState.CONFIRMED, action=ActionKind.EVICT)], 1.0, {"seed": 1}))

    assert quiet.main(arguments) == 1
    reported = capsys.readouterr().out
    assert "verdicts that page: 1, at most" in reported
    assert "verdicts that propose an eviction: 1" in reported
    assert "by detector: peers 1" in reported

    _kept(kept, Reported(1.0))
    assert quiet.main(arguments) == 0
    assert "verdicts that page: 0" in capsys.readouterr().out
