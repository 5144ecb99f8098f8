"""A real job is struck, named, and trains again from its checkpoint by a signed action."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.drill


def drill(*flags: str, seconds: float) -> tuple[dict[str, Any], str]:
    """Freeze a rank of a job of four; return what the drill prints and what it says."""
    command = [sys.executable, "-m", "tocsin", "drill", "--act", "--json", "--kind", "freeze", "--ranks", "4", *flags]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def check(found: dict[str, Any]) -> None:
    """Check that the right rank was named, and that the job went on as if nothing had happened."""
    assert found["named"] == found["struck"]
    assert (found["kind"], found["left_out"]) == ("restart", [])
    assert found["checkpoint_step"] >= 20
    assert found["equal_steps"] >= 50


@pytest.mark.timeout(500)  # some 55 s on idle cores
def test_a_frozen_rank_is_named_and_the_job_trains_again_as_if_nothing_had_happened() -> None:
    found, said = drill(seconds=450)
    check(found)
    assert "a forged restart is refused by the job controller: unknown_key" in said
    table = [line.split()[2:] for line in said.splitlines()]
    rows = {row[0]: [float(one.rstrip("s")) for one in row[1:]] for row in table if len(row) == 4 and row[1][-1] == "s"}
    assert {"productive", "recomputed", "start_up", "detection", "diagnosis", "scheduling"} <= set(rows)
    assert all(abs(between) <= 1.0 for _, _, between in rows.values()), rows
    assert rows["unattributed"][0] <= 0.01 * rows["wall"][0]


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_over_a_real_kafka_the_controller_s_word_reaches_the_job_as_well() -> None:
    found, said = drill("--kafka", seconds=900)
    check(found)
    assert "a forged restart is refused by the job controller: unknown_key" in said
