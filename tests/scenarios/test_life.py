"""The life of a verdict as timelines: what confirms, cancels, expires, resolves and renews it."""

from __future__ import annotations

from tocsin.pipeline.lab.testing import JobShape, Scenario, between


def _lives(scenario: Scenario, host: str = "n03") -> list[tuple[str, str]]:
    """State and reason of each line that names the host."""
    return [
        (line.state.value, line.reason)
        for line in scenario.verdicts
        if [suspect.component.name for suspect in line.suspects] == [host]
    ]


def _slow_at(seconds: float) -> Scenario:
    scenario = Scenario(JobShape())
    return scenario.at(seconds).inject(scenario.job.slow, 3, "forward", 4)


def test_what_lasts_is_confirmed_and_what_ends_is_resolved() -> None:
    scenario = _slow_at(20)
    scenario.at(80).inject(scenario.job.slow, 3, "forward", 1)
    scenario.want(between(20, 30), suspects=["n03"], state="open")
    scenario.want(between(35, 45), suspects=["n03"], state="confirmed")
    scenario.want(between(80, 100), suspects=["n03"], state="resolved", reason="recovered", action="none")
    scenario.run(120).check()


def test_what_does_not_last_is_cancelled() -> None:
    scenario = _slow_at(20)
    scenario.at(27).inject(scenario.job.slow, 3, "forward", 1)
    scenario.want(between(25, 50), suspects=["n03"], state="cancelled", reason="recovered", action="none")
    scenario.run(60).check()
    assert "confirmed" not in {line.state.value for line in scenario.verdicts}


def test_a_source_that_falls_silent_has_not_shown_that_it_is_well() -> None:
    """The agents die with the slow machine's confirmed verdict: nobody knows, and after its deadline it expires."""
    scenario = _slow_at(20)
    for rank in range(8):
        scenario.at(80).inject(scenario.job.kill_agent, rank)
    scenario.run(690)
    assert _lives(scenario)[-1] == ("expired", "expired")
    assert "recovered" not in {reason for _, reason in _lives(scenario)}


def test_a_suspect_whose_agent_dies_stays_confirmed_and_well_again_is_resolved() -> None:
    scenario = _slow_at(20)
    scenario.at(80).inject(scenario.job.kill_agent, 3)

    def back() -> None:
        scenario.job.slow(3, "forward", 1)
        scenario.job.ranks[3].agent_alive = True

    scenario.at(140).inject(back)
    scenario.run(200)
    assert [state for state, _ in _lives(scenario)][-2:] == ["confirmed", "resolved"]
    [resolved] = [line for line in scenario.verdicts if line.state.value == "resolved"]
    assert resolved.detected_ns - scenario.shape.start_ns > 140e9


def test_never_confirmed_and_silent_is_monitoring_that_was_lost() -> None:
    scenario = _slow_at(20)
    for rank in range(8):
        scenario.at(25).inject(scenario.job.kill_agent, rank)
    scenario.run(60)
    assert _lives(scenario)[-1] == ("cancelled", "monitoring_lost")


def test_a_frozen_process_whose_agent_dies_is_one_story_told_twice() -> None:
    """Once two lines a second, by turns hang and stop."""
    scenario = Scenario(JobShape())
    scenario.at(20).inject(scenario.job.freeze, 3)
    scenario.at(80).inject(scenario.job.kill_agent, 3)
    scenario.run(200)
    assert [state for state, _ in _lives(scenario)] == ["open", "confirmed"]


def test_a_renewal_is_no_news() -> None:
    scenario = _slow_at(20)
    scenario.run(700)
    renewed = [line for line in scenario.verdicts if line.reason == "still_true"]
    [confirmed] = [line for line in scenario.verdicts if line.update == renewed[0].update - 1]
    assert len(renewed) == 1
    for name in ("verdict_id", "state", "fault", "suspects", "cause", "action", "evidence", "confidence"):
        assert getattr(renewed[0], name) == getattr(confirmed, name)
    assert renewed[0].expires_ns > confirmed.expires_ns


def test_the_end_of_the_job_ends_its_incidents() -> None:
    scenario = _slow_at(20)
    scenario.at(60).inject(scenario.job.end)
    scenario.run(80)
    assert _lives(scenario)[-1] == ("resolved", "job_ended")
