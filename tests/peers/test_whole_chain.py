"""The whole chain on one machine: a GPU of a real Slurm job is lost, and the job runs again without that node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.peers.slurm import REQUEUE_SECONDS, Slurm
from tests.peers.slurm_ranks import CLUSTER, steps_of
from tests.peers.test_live_alerts import alerts
from tests.peers.whole_chain import Site, host_of
from tests.pipeline.alerts.adapters.receiver import Receiver
from tests.pipeline.waiting import until
from tocsin.cli.cluster.process import free_port
from tocsin.cli.main import main


@pytest.fixture
def site(tmp_path: Path, slurm: Slurm, alertmanager: str) -> Iterator[Site]:
    made = Site(tmp_path, slurm, alertmanager)
    engine = f"--engine=127.0.0.1:{free_port()}"
    tokens = [f"--credentials={made.credentials}", f"--data={tmp_path / 'data'}"]
    command = ["serve", "--act", "--spares=1", "--hold", "0", "0", f"--alerts={made.routes}", *tokens]
    command += [f"--listen={engine.partition('=')[2]}", "--metrics-listen="]
    made.token("ann", "operator")
    try:
        made.run("serve", *command, ready="agents on")
        made.start_agents([engine])
        made.start_executor(tmp_path / "data" / "controller-public.json", [engine])
        yield made
    finally:
        made.stop()


def rows(site: Site, query: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """What ``tocsin sql`` shows."""
    capsys.readouterr()
    assert main(["sql", query, f"--data={site.folder / 'data'}", "--format=JSONEachRow"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.timeout(240)
def test_a_lost_gpu_takes_its_node_out_of_the_job_and_pages_once(
    site: Site, webhook: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    site.start_job()
    node = site.strike()
    slurm = site.slurm
    slurm.until(lambda: slurm.node(node).takes_no_work, 60)
    slurm.until(lambda: slurm.job(site.job_id).restart_count == 1)
    slurm.until(lambda: slurm.job(site.job_id).is_running, REQUEUE_SECONDS + 15)
    slurm.until(lambda: steps_of(site.folder, 1) > 0)  # the job trains again
    until(lambda: bool(alerts(webhook, "TocsinIncident", "firing")))
    actions = "SELECT action_id, verdict_id, kind, hosts, state, cause, holder FROM tocsin.actions_now"
    until(lambda: [one["state"] for one in rows(site, f"{actions} WHERE kind = 'evict'", capsys)] == ["done"])

    [action] = rows(site, f"{actions} WHERE state = 'done' AND kind != 'notify'", capsys)
    assert (action["kind"], action["hosts"], action["holder"]) == ("evict", [host_of(node)], "slurm")
    assert slurm.node(node).reason == f"[HC] tocsin gpu_card_drop {action['action_id']}"
    assert slurm.job(site.job_id).excluded == node
    assert node not in slurm.hosts_of(site.job_id)
    said = f"SELECT kind, effects FROM tocsin.action_acks FINAL WHERE action_id = '{action['action_id']}' ORDER BY seq"
    acks = rows(site, said, capsys)
    assert [one["kind"] for one in acks if one["kind"] != "claimed"] == ["started", "done"]
    assert acks[-1]["effects"] == ["drain", "exclude", "note", "requeue"]

    incident = {"verdict_id": action["verdict_id"], "cause": "gpu_card_drop", "cluster": CLUSTER}
    assert rows(site, f"SELECT {', '.join(incident)} FROM tocsin.incidents_all FINAL", capsys)[-1] == incident
    pages = alerts(webhook, "TocsinIncident", "firing")
    assert [(one["labels"]["verdict_id"], one["labels"]["host"]) for one in pages] == [
        (action["verdict_id"], host_of(node))
    ]
    sent = "SELECT verdict_id, receiver, outcome FROM tocsin.alerts_sent FINAL WHERE kind = 'firing'"
    assert rows(site, sent, capsys) == [{"verdict_id": action["verdict_id"], "receiver": "am", "outcome": "delivered"}]
