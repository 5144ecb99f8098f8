"""The whole chain on one machine: a GPU of a real Slurm job is lost, and the job runs again without that node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.peers.slurm import Slurm
from tests.peers.whole_chain import Site, check, play
from tests.pipeline.alerts.adapters.receiver import Receiver
from tocsin.cli.cluster.process import free_port


@pytest.fixture
def site(tmp_path: Path, slurm: Slurm, alertmanager: str) -> Iterator[Site]:
    made = Site(tmp_path, slurm, alertmanager)
    address, made.database = f"127.0.0.1:{free_port()}", [f"--data={tmp_path / 'data'}"]
    command = ["serve", "--act", "--spares=1", "--hold", "0", "0", f"--alerts={made.routes}", *made.database]
    command += [f"--credentials={made.credentials}", f"--listen={address}", "--metrics-listen="]
    made.token("ann", "operator")  # the file of credentials is there when the engine starts
    try:
        made.run("serve", *command, ready="agents on")
        made.start_agents([f"--engine={address}"])
        made.start_executor(tmp_path / "data" / "controller-public.json", [f"--engine={address}"])
        yield made
    finally:
        made.stop()


@pytest.mark.timeout(240)
def test_a_lost_gpu_takes_its_node_out_of_the_job_and_pages_once(
    site: Site, webhook: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    node = play(site, webhook)
    check(site, webhook, node, capsys)
