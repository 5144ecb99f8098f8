"""Record the answers that fast tests read: ``python -m tests.peers.record_slurm``, after ``make peers``."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tests.peers.slurm import Slurm, running_slurm

ANSWERS = Path(__file__).parents[1] / "pipeline" / "actions" / "executors" / "slurm_answers"
REASON = "[HC] tocsin ecc_error 0123456789abcdef0123456789abcdef"
CONFIG_NAMES = ("ClusterName", "RebootProgram", "ReturnToService", "SLURM_VERSION")


def record(slurm: Slurm) -> None:
    """Write one file an answer."""
    ANSWERS.mkdir(exist_ok=True)
    save(slurm, "node_idle", "node", "node1")
    job_id = slurm.submit("node1,node2")
    save(slurm, "node_busy", "node", "node1")
    slurm.cluster.drain("node1", REASON)
    save(slurm, "node_draining", "node", "node1")
    save_jobs(slurm, "job_running")
    slurm.cluster.note(job_id, REASON)
    slurm.cluster.requeue_held(job_id)
    slurm.until(lambda: slurm.job(job_id).is_pending)
    save_jobs(slurm, "job_held")
    save(slurm, "node_drained", "node", "node1")
    slurm.cluster.reboot("node3", REASON)
    save(slurm, "node_reboot_requested", "node", "node3")
    slurm.until(lambda: slurm.restart_rebooted() == ["node3"])
    slurm.until(lambda: not slurm.node("node3").is_rebooting)
    save(slurm, "node_rebooted", "node", "node3")
    slurm.ask("scontrol", "update", "NodeName=node4", "State=DRAIN", f"Reason=by hand\nReason={REASON}\nState=IDLE")
    save(slurm, "node_two_lines", "node", "node4")
    save(slurm, "node_unknown", "node", "node99")
    config = [line for line in slurm.ask("scontrol", "show", "config").splitlines() if line.startswith(CONFIG_NAMES)]
    (ANSWERS / "config.txt").write_text("\n".join(config).replace(str(slurm.folder), "/etc/slurm") + "\n")


def save(slurm: Slurm, name: str, *what: str) -> None:
    """Save an answer of ``scontrol show``."""
    (ANSWERS / f"{name}.txt").write_text(slurm.ask("scontrol", "show", *what))


def save_jobs(slurm: Slurm, name: str) -> None:
    """Save an answer of ``squeue --json`` without the places of this machine."""
    found = json.loads(slurm.ask("squeue", "--json"))
    text = json.dumps({"jobs": found["jobs"]}, indent=1).replace(str(slurm.folder), "/work")
    (ANSWERS / f"{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made, running_slurm(Path(made) / "slurm") as running:
        record(running)
