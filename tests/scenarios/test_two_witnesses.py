"""Whole walks: what hosts say of themselves and of others, who is told to have seen it, and what is proposed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.timelines import build_scenario
from tocsin.pipeline.lab.testing import (
    FakeJob,
    JobShape,
    MachineShape,
    MetricsScenario,
    Scenario,
    between,
)
from tocsin.schemas import events
from tocsin.schemas.records import CollectiveBatch, Event, EventSource, JobRecord, Severity
from tocsin.schemas.verdicts import Verdict

HARD = {"drain", "evict", "replay"}
POWER = "gpu_power_watts"


def _actions(scenario: Scenario) -> list[str]:
    return [verdict.action.value for verdict in scenario.verdicts]


def _last(scenario: Scenario, host: str = "n03") -> Verdict:
    return [v for v in scenario.verdicts if [s.component.name for s in v.suspects] == [host]][-1]


def _seen(verdict: Verdict) -> dict[str, str]:
    return {one.host: one.kind.value for one in verdict.witnesses}


def _gpu_lost(job: FakeJob, rank: int, then: Callable[..., None] | None = None, **named: object) -> None:
    job.event(rank, events.GPU_LOST, Severity.FATAL, uuid="GPU-1", text="NVML: lost")
    if then is not None:
        then(rank, **named)


class TestStop:
    def test_a_card_that_dropped_and_peers_that_lost_their_connections(self) -> None:
        scenario, job = build_scenario()
        scenario.at(20).inject(_gpu_lost, job, 3, job.kill, signal=0, code=1)
        scenario.want(between(20, 26), cause="gpu_card_drop", suspects=["n03"], action="evict")
        scenario.run(40).check()

        seen = _seen(_last(scenario))
        assert next(iter(seen)) == "n03"
        assert seen["n03"] == "hardware_event"
        assert {seen[host] for host in ("n00", "n01", "n02", "n07")} == {"connection_lost"}

    def test_the_same_card_on_the_word_of_its_own_host_alone(self) -> None:
        scenario, job = build_scenario()
        scenario.at(20).inject(_gpu_lost, job, 3)
        scenario.at(20).inject(job.event, 3, events.EXIT, Severity.FATAL, code=1, signal=0, stderr_tail="")
        scenario.run(60)

        assert not HARD.intersection(_actions(scenario))
        reported = next(v for v in scenario.verdicts if v.evidence[-1].metric == "one_witness")
        assert _seen(reported) == {"n03": "hardware_event"}
        assert reported.evidence[-1].text == "nobody but n03 saw it: not enough to evict a machine"

    @pytest.mark.parametrize("source", [EventSource.PROCESS, EventSource.JOB, EventSource.SCHEDULER])
    def test_an_event_that_no_driver_tells_is_no_witness(self, source: EventSource) -> None:
        scenario, job = build_scenario()

        def forged() -> None:
            _gpu_lost(job, 3, job.kill, signal=0, code=1, stderr="RuntimeError: NVML: GPU is lost")
            job._queue = [  # noqa: SLF001  # what an agent sends is changed on its way
                replace(one, source=source) if isinstance(one, Event) and one.name == events.GPU_LOST else one
                for one in job._queue  # noqa: SLF001  # as above
            ]

        scenario.at(20).inject(forged)
        scenario.run(40)
        assert not HARD.intersection(_actions(scenario))

    def test_an_exit_that_nobody_followed_restarts_nobody_for_long(self) -> None:
        """The others make steps as ever: it is told, and that is all."""
        scenario, job = build_scenario()
        scenario.at(20).inject(job.event, 3, events.EXIT, Severity.FATAL, code=1, signal=0, stderr_tail="")
        scenario.at(21).inject(job.kill_agent, 3)
        scenario.run(60)
        assert _last(scenario).action.value in {"notify", "none"}

    @pytest.mark.parametrize(("count", "action"), [(2, "restart"), (4, "evict")])
    def test_a_machine_that_is_gone(self, count: int, action: str) -> None:
        """Connection lost, and others that wait; in a job of two that is not enough."""
        scenario, job = build_scenario(rank_count=count)
        scenario.at(20).inject(job.lose_host, 1)
        scenario.want(between(28, 75), cause="machine_unreachable", suspects=["n01"], state="confirmed", action=action)
        scenario.run(80).check()
        assert _seen(_last(scenario, "n01"))["n01"] == "connection_lost"
        assert "peers_wait" in _seen(_last(scenario, "n01")).values()

    def test_two_machines_and_the_event(self) -> None:
        scenario, job = build_scenario(rank_count=2)
        scenario.at(20).inject(_gpu_lost, job, 1, job.kill, signal=0, code=1)
        scenario.want(between(20, 30), cause="gpu_card_drop", suspects=["n01"], action="evict")
        scenario.run(40).check()
        assert _seen(_last(scenario, "n01")) == {"n01": "hardware_event", "n00": "connection_lost"}


class TestHang:
    def test_who_waits_for_exactly_its_rank_is_told(self) -> None:
        """n02 waits in their pair, those of its other group in that; who waits for n02 is no witness."""
        scenario, job = build_scenario()
        scenario.at(20).inject(job.freeze, 3)
        scenario.want(between(20, 26), fault="hang", suspects=["n03"])
        scenario.run(40).check()

        assert _seen(_last(scenario)) == dict.fromkeys(("n01", "n02", "n05", "n07"), "peers_wait")

    def test_its_own_event_is_told_beside_those_who_wait(self) -> None:
        scenario, job = build_scenario()
        scenario.at(20).inject(_gpu_lost, job, 3, job.freeze)
        scenario.run(60)
        reported = [v for v in scenario.verdicts if [s.component.name for s in v.suspects] == ["n03"]]
        assert _seen(reported[-1]).get("n03") == "hardware_event"
        assert "peers_wait" in _seen(reported[-1]).values()

    def test_waits_of_a_moment_are_none(self) -> None:
        """All are in collectives all the time: a rank that is late by less than three steps holds up nobody."""
        scenario, job = build_scenario(step_seconds=2.0)
        scenario.at(40).inject(_gpu_lost, job, 3)
        scenario.run(90)
        assert not HARD.intersection(_actions(scenario))
        assert {host for v in scenario.verdicts for host in _seen(v)} <= {"n03"}


class TestSlow:
    def test_the_others_steps_are_longer_and_they_wait(self) -> None:
        scenario, job = build_scenario()
        scenario.at(20).inject(job.slow, 3, "forward", 4)
        scenario.want(between(60, 75), state="confirmed", action="drain", suspects=["n03"])
        scenario.run(90).check()
        assert _seen(_last(scenario)) == dict.fromkeys(("n00", "n01", "n02", "n04", "n05", "n06", "n07"), "peers_wait")

    def test_a_host_that_says_so_of_itself_alone_is_not_drained(self) -> None:
        """Its rows tell of steps four times as long; everybody else's are as ever."""
        scenario, job = build_scenario()
        ship = job._ship  # noqa: SLF001  # what an agent sends is changed on its way

        def lies(rank: object, end_ns: int) -> None:
            if rank is job.ranks[3] and end_ns > JobShape().start_ns + 20_000_000_000:
                job.ranks[3].steps[:] = [
                    row._replace(duration_seconds=row.duration_seconds * 4, forward_seconds=0.6)
                    for row in job.ranks[3].steps
                ]
            ship(rank, end_ns)  # type: ignore[arg-type]  # the fake's own rank

        job._ship = lies  # type: ignore[method-assign]  # noqa: SLF001  # as above
        scenario.run(120)
        assert not HARD.intersection(_actions(scenario))

    def test_growing_witnesses_alone_are_no_update(self) -> None:
        scenario, job = build_scenario(rank_count=16)
        scenario.at(20).inject(job.slow, 3, "forward", 4)
        scenario.run(150)
        assert len(scenario.verdicts) == 3  # open, confirmed, drain


class TestByMetricsAlone:
    def test_the_others_machines_work_less(self) -> None:
        machines = MachineShape(has_hook=False)
        scenario = MetricsScenario(JobShape(), machines=machines)
        scenario.at(150).inject(scenario.job.lose_host, 3)
        scenario.want(between(165, 230), state="confirmed", action="evict", suspects=["n03"])
        scenario.run(240).check()
        seen = _seen(_last(scenario))
        assert seen.pop("n03") == "connection_lost"
        assert set(seen) == {"n00", "n01", "n02", "n04", "n05", "n06", "n07"}
        assert set(seen.values()) == {"peers_wait"}


class TestNan:
    def test_numbers_that_one_lost_and_the_others_followed(self) -> None:
        scenario, job = build_scenario()
        scenario.at(20).inject(job.nan, 3)
        scenario.want(between(20, 23), cause="nan_gradient", suspects=["n03"], action="rollback")
        scenario.run(40).check()

    def test_numbers_that_one_alone_lost(self) -> None:
        scenario, job = build_scenario()
        scenario.at(20).inject(job.event, 3, events.NAN, Severity.ERROR, step=95, what="local_grad", value="nan")
        scenario.want(between(20, 35), cause="nan_gradient", suspects=["n03"], action="notify")
        scenario.run(40).check()
        assert {"rollback", "restart"}.isdisjoint(_actions(scenario))


def test_verdicts_without_collectives_take_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody tells who waits for whom, that the others' steps end no more is what they saw."""
    scenario, job = build_scenario()
    second = job.second

    def without() -> list[JobRecord]:
        return [one for one in second() if not isinstance(one, CollectiveBatch) and type(one).__name__ != "Groups"]

    monkeypatch.setattr(job, "second", without)
    scenario.at(20).inject(job.lose_host, 3)
    scenario.want(between(28, 75), cause="machine_unreachable", suspects=["n03"], state="confirmed", action="evict")
    scenario.run(80).check()
    assert set(_seen(_last(scenario)).values()) == {"connection_lost", "steps"}


def test_who_lost_another_ones_connection_is_no_witness() -> None:
    """n05 reports a lost card again and again; n03 is killed, and all others lose their connection to n03."""
    scenario, job = build_scenario()
    for second in range(20, 60):
        scenario.at(second).inject(_gpu_lost, job, 5)
    scenario.at(40).inject(job.kill, 3)
    scenario.run(80)
    assert not HARD.intersection(_actions(scenario))
