"""What a batch job of Slurm runs: a made-up training job with one rank on each of its nodes, which are one machine.

``python -m tests.peers.slurm_ranks FOLDER``: ranks speak to the agents of their nodes (``FOLDER/NODE/a.sock``), and
their ends are told as ``tocsin exec`` tells them. A requeued job is the next attempt, on the nodes that Slurm gives it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from tests.chaos import fake_rank
from tocsin.collectors.exec.command import send_exit

CLUSTER = "ci"


def nodes_of(host_list: str) -> list[str]:
    """Names of the nodes in Slurm's form: ``node[1-2,4]``.

    >>> nodes_of("node[1-2,4]")
    ['node1', 'node2', 'node4']
    """
    parts = re.fullmatch(r"node\[?([\d,-]+)\]?", host_list)
    assert parts is not None, host_list
    spans = [[int(end) for end in part.split("-")] for part in parts[1].split(",")]
    return [f"node{number}" for span in spans for number in range(span[0], span[-1] + 1)]


def board_of(folder: Path, attempt: int) -> Path:
    """The ranks' shared file of an attempt."""
    return folder / f"attempt{attempt}.board"


def steps_of(folder: Path, attempt: int) -> int:
    """Steps at which the first rank of an attempt arrived, 0 before it begins."""
    board = board_of(folder, attempt)
    return int(fake_rank.ROW.unpack_from(board.read_bytes())[0]) if board.exists() else 0


def pids_of(folder: Path, attempt: int) -> dict[str, int]:
    """Node -> process of its rank; nothing before all have begun."""
    file = folder / f"attempt{attempt}.json"
    return dict(json.loads(file.read_text())) if file.exists() else {}


def main(folder: Path) -> None:
    """Run the ranks until all have ended."""
    nodes, attempt = nodes_of(os.environ["SLURM_JOB_NODELIST"]), int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    job_id = os.environ["SLURM_JOB_ID"]
    board = board_of(folder, attempt)
    unfinished = Path(f"{board}.new")
    unfinished.write_bytes(fake_rank.ROW.pack(0, 1.0, 0.0, 0, 0) * len(nodes))
    unfinished.rename(board)
    ranks = []
    for rank, node in enumerate(nodes):
        order = {"cluster": CLUSTER, "job_id": job_id, "attempt": attempt, "rank": rank, "world": len(nodes)}
        order |= {"agent": str(folder / node / "a.sock"), "board": str(board)}
        ranks.append(subprocess.Popen([sys.executable, "-S", "-E", fake_rank.__file__, json.dumps(order)]))
    pids = {node: process.pid for node, process in zip(nodes, ranks, strict=True)}
    written = folder / f"attempt{attempt}.json.new"
    written.write_text(json.dumps(pids))
    written.rename(folder / f"attempt{attempt}.json")
    reported: set[int] = set()
    while len(reported) < len(ranks):
        for rank, process in enumerate(ranks):
            status = process.poll()
            if status is not None and rank not in reported:
                reported.add(rank)
                socket = str(folder / nodes[rank] / "a.sock")
                send_exit(socket, (CLUSTER, job_id, attempt), rank, process.pid, status, "")
        time.sleep(0.1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
