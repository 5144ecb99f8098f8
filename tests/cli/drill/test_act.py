"""A real job is struck, named, and trains again from its checkpoint by a signed action."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.drill, pytest.mark.timeout(300)]  # some 40 s on idle cores


def test_a_frozen_rank_is_named_and_the_job_trains_again_as_if_nothing_had_happened() -> None:
    command = [sys.executable, "-m", "tocsin", "drill", "--act", "--json", "--kind", "freeze", "--ranks", "4"]
    for _ in range(2):
        done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=140, check=False)
        if "unattributed in the ledger" not in done.stderr:
            break  # else the machine was so busy that a second of steps came too late: once more
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["named"] == found["struck"]
    assert (found["kind"], found["left_out"]) == ("restart", [])
    assert found["checkpoint_step"] >= 20
    assert found["equal_steps"] >= 50
    table = [line.split()[2:] for line in done.stderr.splitlines()]
    rows = {row[0]: [float(one.rstrip("s")) for one in row[1:]] for row in table if len(row) == 4 and row[1][-1] == "s"}
    assert {"productive", "recomputed", "start_up", "detection", "diagnosis", "scheduling"} <= set(rows)
    assert all(abs(between) <= 1.0 for _, _, between in rows.values()), rows
    assert rows["unattributed"][0] <= 0.01 * rows["wall"][0]
