"""Slowdowns of a whole job that go on: they stay told, end as recovered or as the new normal, and name nobody."""

from __future__ import annotations

import pytest

from tocsin.pipeline.lab.testing import FakeJob, JobShape, Scenario
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.schemas.records import NS_PER_SECOND, JobKey
from tocsin.schemas.verdicts import Verdict

_STEP_SECONDS = 0.5


def _slow(scenario: Scenario, ranks: int, factor: float) -> None:
    for rank in range(ranks):
        scenario.job.slow(rank, "forward", factor)


def _second(scenario: Scenario, verdict: Verdict) -> float:
    return (verdict.detected_ns - scenario.shape.start_ns) / NS_PER_SECOND


def _ends(scenario: Scenario) -> list[tuple[str, str, float]]:
    """State, reason and second of the lines that end an incident."""
    ended = [verdict for verdict in scenario.verdicts if verdict.state.value not in ("open", "confirmed")]
    return [(verdict.state.value, verdict.reason, _second(scenario, verdict)) for verdict in ended]


@pytest.mark.parametrize(("rank_count", "host_ranks_count", "slow_count"), [(2, 2, 1), (2, 1, 1), (8, 4, 4), (8, 1, 8)])
class TestNobodyCanBeNamed:
    """Two ranks only; a whole slow machine of two; all ranks of a job."""

    def test_it_stays_told_while_it_goes_on(self, rank_count: int, host_ranks_count: int, slow_count: int) -> None:
        scenario = Scenario(JobShape(rank_count, host_ranks_count, step_seconds=_STEP_SECONDS))
        scenario.at(60).inject(_slow, scenario, slow_count, 3.0)
        scenario.run(700)

        assert not _ends(scenario)
        assert scenario.final()[-1].state.value == "confirmed"
        assert not [suspect for verdict in scenario.verdicts for suspect in verdict.suspects]

    def test_it_has_recovered_when_the_old_pace_is_back_and_is_told_again_when_it_comes_again(
        self, rank_count: int, host_ranks_count: int, slow_count: int
    ) -> None:
        scenario = Scenario(JobShape(rank_count, host_ranks_count, step_seconds=_STEP_SECONDS))
        scenario.at(60).inject(_slow, scenario, slow_count, 3.0)
        scenario.at(400).inject(_slow, scenario, slow_count, 1.0)
        scenario.at(430).inject(_slow, scenario, slow_count, 3.0)
        scenario.run(500)

        [(state, reason, second)] = _ends(scenario)
        assert (state, reason) == ("resolved", "recovered")
        assert 400 <= second <= 420
        last = scenario.final()[-1]
        assert last.state.value == "confirmed"
        assert 455 <= _second(scenario, last) <= 490


class TestNewNormal:
    def test_after_half_an_hour_it_is_the_normal_pace_and_what_comes_on_top_is_told(self) -> None:
        scenario = Scenario(JobShape(2, 2, step_seconds=2.0))
        scenario.at(100).inject(_slow, scenario, 2, 3.0)
        scenario.at(2100).inject(_slow, scenario, 2, 6.0)
        scenario.run(2200)

        [(state, reason, second)] = _ends(scenario)
        assert (state, reason) == ("resolved", "new_normal")
        assert 1900 <= second <= 1930
        [ended] = [verdict for verdict in scenario.verdicts if verdict.state.value == "resolved"]
        assert "this pace has lasted 30 minutes and is the job's normal now" in ended.evidence[0].text
        again = [verdict for verdict in scenario.verdicts if _second(scenario, verdict) > second]
        assert {_second(scenario, verdict) >= 2120 for verdict in again} == {True}
        assert again[-1].state.value == "confirmed"

    def test_a_pace_that_becomes_slower_still_must_last_from_then_on(self) -> None:
        scenario = Scenario(JobShape(2, 2, step_seconds=2.0))
        scenario.at(100).inject(_slow, scenario, 2, 3.0)
        scenario.at(1500).inject(_slow, scenario, 2, 6.0)
        scenario.run(2300)

        assert not _ends(scenario)
        assert scenario.final()[-1].state.value == "confirmed"

    def test_a_curriculum_of_longer_sequences_names_nobody(self) -> None:
        scenario = Scenario(JobShape(step_seconds=1.0))
        for second, factor in ((100, 1.5), (400, 2.0), (700, 3.0)):
            for phase in ("forward", "backward"):
                scenario.at(second).inject(scenario.job.slow_all, phase, factor)
        scenario.run(1000)

        assert not [suspect for verdict in scenario.verdicts for suspect in verdict.suspects]
        assert {verdict.cause for verdict in scenario.verdicts} == {"workload_change"}
        assert {verdict.action.value for verdict in scenario.verdicts} == {"none"}

    def test_a_new_attempt_with_a_larger_batch_has_a_baseline_of_its_own(self) -> None:
        scenario = Scenario(JobShape(2, 2, step_seconds=_STEP_SECONDS))
        scenario.at(60).inject(_slow, scenario, 2, 3.0)
        scenario.run(200)
        told_count = len(scenario.verdicts)
        shape = JobShape(2, 2, step_seconds=3 * _STEP_SECONDS, start_ns=scenario.job.now_ns)
        scenario.job = FakeJob(shape, JobKey("test", "job", 1))
        scenario.run(300)

        assert [verdict.reason for verdict in scenario.verdicts[told_count:]] == ["new_attempt"]

    def test_an_engine_that_starts_again_keeps_what_was_usual(self) -> None:
        scenario = Scenario(JobShape(2, 2, step_seconds=_STEP_SECONDS))
        scenario.at(60).inject(_slow, scenario, 1, 3.0)
        scenario.at(500).inject(_slow, scenario, 1, 1.0)
        scenario.run(300)
        engine = EmbeddedEngine(EngineConfig())
        engine.restore(scenario.engine.snapshot())
        scenario.engine = engine
        scenario.run(250)

        [(state, reason, second)] = _ends(scenario)
        assert (state, reason) == ("resolved", "recovered")
        assert 500 <= second <= 520

    @pytest.mark.parametrize("ago_seconds", [300, 600])
    def test_a_link_that_becomes_slow_meanwhile_is_named(self, ago_seconds: int) -> None:
        scenario = Scenario(JobShape(step_seconds=1.0))
        second = 200 + ago_seconds
        scenario.at(200).inject(scenario.job.slow_all, "forward", 4.0)
        scenario.at(second).inject(scenario.job.slow_link, 3, 0.4)
        scenario.run(second + 60)

        named = [verdict for verdict in scenario.verdicts if verdict.suspects]
        assert {suspect.component.name for verdict in named for suspect in verdict.suspects} == {"n03"}
        assert _second(scenario, named[0]) <= second + 30
        assert abs((named[0].onset_ns - scenario.shape.start_ns) / NS_PER_SECOND - second) <= 10

    def test_a_machine_that_becomes_slow_meanwhile_is_named(self) -> None:
        scenario = Scenario(JobShape(step_seconds=_STEP_SECONDS))
        scenario.at(60).inject(scenario.job.slow_all, "forward", 2.0)
        scenario.at(400).inject(scenario.job.slow, 3, "forward", 6.0)
        scenario.run(460)

        named = [verdict for verdict in scenario.verdicts if verdict.suspects]
        assert {suspect.component.name for verdict in named for suspect in verdict.suspects} == {"n03"}
        assert 400 <= _second(scenario, named[0]) <= 410
        assert named[-1].state.value == "confirmed"
