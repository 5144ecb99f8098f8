"""A real engine and real agents, killed around two onsets: a short form of ``make chaos ARGS="--mode embedded"``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.chaos.learned import Learned
from tests.chaos.live_round import LiveConfig, faults_of, kills_of, learned_difference, run_live_round


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_real_engine_killed_around_two_onsets_says_what_an_undisturbed_one_says(tmp_path: Path) -> None:
    reported = run_live_round(LiveConfig(seed=3, faults_count=2, tracks_count=2, kills_count=3), tmp_path)

    print(reported.text())
    assert reported.problems == []
    assert reported.kills_count == 3
    assert reported.said


def test_a_third_of_the_kills_is_near_an_onset_and_each_kind_comes_as_often() -> None:
    config = LiveConfig(seed=9)
    faults = faults_of(config)
    moments = kills_of(config, faults)
    near = sum(any(abs(at - one.onset_seconds) <= 2.0 for one in faults) for at in moments)

    assert len(moments) == 20
    assert near >= 7
    assert set(Counter(one.kind for one in faults).values()) == {3}


def test_with_learned_detectors_jobs_are_healthy_until_these_have_learned_and_are_watched_longer() -> None:
    usual, learned = LiveConfig(seed=9), LiveConfig(seed=9, learned=Learned(("entropy=accuse",)))

    assert min(one.onset_seconds - one.begin_seconds for one in faults_of(learned)) > 60
    assert [one.kind for one in faults_of(learned)] == [one.kind for one in faults_of(usual)]
    assert learned.watch_seconds > usual.watch_seconds


def test_a_learned_detector_that_lost_its_state_is_a_difference() -> None:
    told = [{"detector": "entropy", "names": ["n1"], "abstained": {"warming_up": 24}}]
    forgot = [{"detector": "entropy", "names": [], "abstained": {"warming_up": 30}}]

    assert learned_difference({"j": told, "gone": told}, {"j": told}) == []
    [text] = learned_difference({"j": told}, {"j": forgot})
    assert "warming_up': 30" in text
