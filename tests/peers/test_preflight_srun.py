"""``tocsin preflight --group`` through the ``srun`` of a real Slurm: each node answers, and they add up together."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.test_preflight_group import DISK_ONLY
from tests.peers.slurm import Slurm
from tests.tools import peers
from tocsin.cli.cluster.process import free_port
from tocsin.cli.main import main
from tocsin.schemas.preflight import CheckName, CheckOutcome

NODES = ("node3", "node2", "node5")
"""Not in Slurm's own order: the first is where all meet."""
KEPT = {CheckName.DISK_WRITE_BANDWIDTH, CheckName.GROUP_ALL_REDUCE, CheckName.PAIR_ALL_REDUCE}


@pytest.mark.timeout(120)
def test_the_nodes_of_a_group_check_themselves_and_each_other(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{peers.program('scontrol').parent}:{os.environ['PATH']}")
    group = tmp_path / "hosts.txt"
    group.write_text("\n".join(NODES) + "\n")
    flags = [word for name in sorted(set(CheckName) - KEPT) for word in ("--without", name)]
    flags += [*DISK_ONLY[DISK_ONLY.index("--each") :], f"--port={free_port()}", f"--folder={tmp_path}", "--json"]
    status = main(["preflight", "--group", str(group), *flags])
    answer = json.loads(capsys.readouterr().out)
    assert [one["host"] for one in answer["hosts"]] == list(NODES)
    outcomes = {(check["name"], check["outcome"]) for one in answer["hosts"] for check in one["checks"]}
    assert {(name.value, CheckOutcome.PASSED.value) for name in KEPT} <= outcomes, answer
    # the nodes share one disk: a busy machine may fail its check of speed, and no other
    failed = {name for name, outcome in outcomes if outcome == CheckOutcome.FAILED.value}
    assert failed <= {CheckName.DISK_WRITE_BANDWIDTH.value}
    assert status == len(failed)
