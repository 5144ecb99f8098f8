"""Executors and the controller, killed on a real broker or embedded: short forms of ``make chaos``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.action_round import ActionRoundConfig, run_action_round
from tests.chaos.embedded_action_round import EmbeddedActionConfig, run_embedded_action_round
from tocsin.cli.cluster.broker import Broker


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_is_carried_out_by_killed_processes_is_what_an_undisturbed_run_does(
    kafka_broker: Broker, topic_prefix: str, tmp_path: Path
) -> None:
    reported = run_action_round(ActionRoundConfig(seed=3, kills_count=4), kafka_broker, tmp_path, topic_prefix)

    print(reported.text())
    assert reported.problems == []
    assert reported.kills == {"controller": 4, "slurm": 4, "job": 4}
    assert (reported.actions_count, reported.chance_count) == (5, 3)
    assert reported.in_hand_count > 0


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_an_embedded_engine_and_its_executor_killed_while_actions_are_under_way_do_what_undisturbed_ones_do(
    tmp_path: Path,
) -> None:
    reported = run_embedded_action_round(EmbeddedActionConfig(seed=5, kills_count=5, faults_count=4), tmp_path)

    print(reported.text())
    assert reported.problems == []
    assert reported.effects_count == 4
    assert min(reported.kills["embedded engine"], reported.kills["executor"]) > 0
