"""Two users try tocsin with a job of their own: on one machine with torchrun, and with four agents."""

from __future__ import annotations

import pytest

from tests.walks.walk import RANK_COUNT, TRAIN, free_port, walking

pytest.importorskip("torch")
pytestmark = [pytest.mark.drill, pytest.mark.timeout(1200)]


def test_one_machine_and_torchrun() -> None:
    """As docs/quick-start.md says: ``serve``, ``agent``, ``exec -- torchrun``."""
    with walking() as walk:
        walk.serve()
        socket = walk.agent("box")
        torchrun = ("torchrun", "--standalone", "--nproc-per-node", str(RANK_COUNT), str(TRAIN), str(walk.job_folder))
        walk.start("exec", "exec", "--", *torchrun, env={"TOCSIN_AGENT_SOCKET": socket})
        walk.faults(["box"] * RANK_COUNT)


def test_four_agents() -> None:
    """Each rank has a host of its own: an agent, and ``tocsin exec -- python train.py``."""
    with walking() as walk:
        walk.serve()
        port = str(free_port())
        hosts = [f"n{rank}" for rank in range(RANK_COUNT)]
        for rank, host in enumerate(hosts):
            env = {
                "TOCSIN_AGENT_SOCKET": walk.agent(host),
                "RANK": str(rank),
                "WORLD_SIZE": str(RANK_COUNT),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            }
            walk.start(f"rank-{rank}", "exec", "--", "python", str(TRAIN), str(walk.job_folder), env=env)
        walk.faults(hosts)
