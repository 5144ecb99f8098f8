"""Jobs whose loaders report: sources, loaders and lengths are named, machines only beside readers of their source."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from tocsin.pipeline.lab.testing import JobShape, Scenario, between
from tocsin.schemas import events
from tocsin.schemas.verdicts import ActionKind, VerdictState

RANKS = range(8)


def _length(rank: int, step: int) -> float:
    """How much longer than usual a rank's batch of a step is."""
    return max(0.3, random.Random(rank * 100_003 + step).gauss(1.0, 0.4))


def _loading(sources: Mapping[int, str], waits: Mapping[int, float], onset: int, seconds: int = 66) -> Scenario:
    """A job whose loaders report every five seconds; from ``onset`` on some ranks wait so many seconds for data."""
    scenario = Scenario(JobShape(step_seconds=0.5))
    for rank in RANKS:
        for second in range(1, seconds, 5):
            wait_seconds = waits.get(rank, 0.025) if second > onset else 0.025
            facts = {"step": second * 2, "source": sources.get(rank, "web"), "fetch_seconds": wait_seconds, "rows": 8}
            tokens = 8000 * _length(rank, second)
            facts |= {"tokens": tokens, "sum_squared_lengths": tokens**2 / 8}
            scenario.at(second + rank / 10).inject(scenario.job.event, rank, events.LOADER, **facts)
    for rank, wait_seconds in waits.items():
        scenario.at(onset).inject(scenario.job.slow, rank, "data", wait_seconds / 0.025)
    return scenario


def _texts(scenario: Scenario) -> str:
    """All evidence that was told."""
    return "\n".join(item.text for verdict in scenario.verdicts for item in verdict.evidence)


def test_o4_a_slow_source_is_named_and_its_only_reader_is_not_accused() -> None:
    scenario = _loading({3: "books"}, {3: 0.5}, 20)
    scenario.want(between(20, 30), cause="shared_service", suspects=[], reason="source_slow", action="notify")
    scenario.run(35).check()

    assert "only readers of books wait longer for data, and all of them (rank 3); 7 ranks" in _texts(scenario)


def test_o4_a_slow_source_with_several_readers_is_named() -> None:
    scenario = _loading(dict.fromkeys((1, 3, 5), "books"), dict.fromkeys((1, 3, 5), 0.5), 20)
    scenario.want(between(20, 66), cause="shared_service", suspects=[])
    scenario.run(50).check()

    assert "books" in _texts(scenario)


def test_a_machine_whose_loader_is_slow_beside_readers_of_its_source_is_named_with_it() -> None:
    scenario = _loading({6: "books", 7: "books"}, {3: 0.5}, 20)
    scenario.want(between(20, 26), cause="loader_stall", suspects=["n03"], action="notify")
    scenario.run(35).check()

    assert "the loader of rank 3 takes 0.5 s a step for web, its other readers 0.025 s" in _texts(scenario)


def test_o6_a_machine_that_is_slow_in_loading_and_computing_is_named_though_it_alone_reads_its_source() -> None:
    scenario = _loading({3: "books"}, {3: 0.5}, 20)
    scenario.at(20).inject(scenario.job.slow, 3, "forward", 2.0)
    scenario.want(between(20, 30), suspects=["n03"])
    scenario.run(35).check()

    assert not [one for one in scenario.verdicts if not one.suspects]


def test_waiting_of_all_names_the_sources() -> None:
    scenario = _loading({}, dict.fromkeys(RANKS, 0.5), 20)
    scenario.want(between(20, 26), cause="shared_service", suspects=[])
    scenario.run(40).check()

    assert "the ranks that wait for data read from web" in _texts(scenario)


def test_o3_long_documents_are_uneven_data_with_their_steps_imbalance_and_source() -> None:
    scenario = _loading({}, {}, 0)
    scenario.job.load = lambda rank, step, phase: _length(rank, step) if phase in ("forward", "backward") else 1.0
    scenario.want(between(30, 66), fault="degraded", cause="data_imbalance", suspects=[], action="none")
    scenario.run(66).check()

    assert "sequence lengths of steps" in _texts(scenario)
    assert "(I_dp)" in _texts(scenario)
    assert "the longest come from web" in _texts(scenario)


def test_o5_a_loader_that_began_anew_is_told_and_nobody_is_accused() -> None:
    scenario = Scenario(JobShape(step_seconds=0.5))
    facts = {"step": 60, "source": "web", "fetch_seconds": 0.02, "rows": 8, "restarts": 1, "recovery_seconds": 4.25}
    scenario.at(30).inject(scenario.job.event, 3, events.LOADER, **facts)
    scenario.want(between(30, 50), fault="degraded", cause="loader_stall", suspects=[], reason="loader_restarted")
    scenario.run(40).check()

    texts = _texts(scenario)
    assert "the loader of web of rank 3 on n03 failed and began anew (1 times so far)" in texts
    assert "its next batch came after 4.25 s; whether samples were used twice or left out is not known" in texts


def test_reports_of_a_healthy_job_are_nothing() -> None:
    _loading({1: "books"}, {}, 0).want_nothing(40)


PASSES = ("forward", "backward")


def _lengthening(longer: float, onset: int, *, ranks: int = 8, **shape: Any) -> Scenario:
    """A job of ``ranks`` whose loaders tell each eighth step's lengths; rank 2's are longer from a second on."""
    scenario = Scenario(JobShape(ranks, step_seconds=0.5, **shape))
    told: set[tuple[int, int]] = set()

    def length(rank: int, step: int) -> float:
        return longer if rank == 2 and step >= 2 * onset else 1.0

    def load(rank: int, step: int, phase: str) -> float:
        last = step - 1
        if phase == "forward" and last >= 0 and last % 8 == 0 and (rank, last) not in told:
            told.add((rank, last))
            tokens = 8000 * length(rank, last)
            lengths: Mapping[str, Any] = {"tokens": tokens, "sum_squared_lengths": tokens**2 / 8}
            scenario.job.event(rank, events.LOADER, step=last, fetch_seconds=0.02, rows=8, **lengths)
        return length(rank, step) if phase in PASSES else 1.0

    scenario.job.load = load
    return scenario


@pytest.mark.parametrize("longer", [1.3, 1.6])
def test_a_replica_whose_loader_tells_longer_sequences_is_data(longer: float) -> None:
    scenario = _lengthening(longer, 20)
    scenario.want(between(20, 45), fault="fail_slow", cause="data_imbalance", suspects=[], reason="longer_data")
    scenario.run(90).check()

    assert [one for one in scenario.verdicts if one.suspects] == []
    assert "times as much" in _texts(scenario)


def test_a_host_that_is_named_before_its_loader_reports_is_taken_back() -> None:
    """Among four ranks strong evidence names a host within seconds, before the next report of its loader."""
    scenario = _lengthening(1.6, 20, ranks=4)
    scenario.want(between(20, 45), cause="data_imbalance", suspects=[], reason="longer_data")
    scenario.run(90).check(taken_back=True)

    last = {one.verdict_id: one for one in scenario.verdicts if one.suspects}
    assert [(one.state, one.reason) for one in last.values() if one.state is not VerdictState.CANCELLED] == []
    assert all(one.action in (ActionKind.NONE, ActionKind.PROBE) for one in scenario.verdicts if one.suspects)


@pytest.mark.parametrize("factor", [1.3, 1.6])
def test_a_slow_machine_whose_loader_tells_lengths_like_its_peers_is_named(factor: float) -> None:
    scenario = _lengthening(1.0, 20)
    for phase in PASSES:
        scenario.at(20).inject(scenario.job.slow, 2, phase, factor)
    scenario.want(between(20, 45), fault="fail_slow", suspects=["n02"])
    scenario.run(60).check()


def test_a_slow_machine_beside_longer_data_of_another_rank_is_named() -> None:
    scenario = _lengthening(1.3, 20, ranks=32)
    for phase in PASSES:
        scenario.at(20).inject(scenario.job.slow, 5, phase, 1.6)
    scenario.want(between(20, 45), fault="fail_slow", suspects=["n05"])
    scenario.run(60).check()

    assert not [one for one in scenario.verdicts if "n02" in {suspect.component.name for suspect in one.suspects}]
