"""Killed with -9, each part once, the sink in both modes: the tables are those of an undisturbed run.

A short form of ``make chaos``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.outcome import table_text
from tests.chaos.rounds import RoundConfig, run_round
from tests.chaos.up import COMPONENTS
from tests.kafka_fixtures import need_java


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "is_exactly_once",
    [pytest.param(False, id="at-least-once"), pytest.param(True, id="exactly-once", marks=pytest.mark.slow)],
)
def test_each_part_killed_once_while_a_stream_is_played(tmp_path: Path, *, is_exactly_once: bool) -> None:
    need_java()
    pytest.importorskip("pyflink", reason="no pyflink: pip install '.[flink]'")
    config = RoundConfig(
        seed=1,
        is_exactly_once=is_exactly_once,
        kills_each_count=1,
        gap_seconds=(1.0, 3.0),
        jobs_count=2,
        faults_count=2,
        stream_seconds=300.0,
    )
    reported = run_round(config, tmp_path)

    print(table_text(reported.outcomes), reported.recovery_seconds)
    assert reported.problems == []
    assert [one.differs for one in reported.outcomes] == [""] * config.jobs_count
    assert all(one.line_count for one in reported.outcomes)
    assert reported.counts == dict.fromkeys(COMPONENTS, 1)
