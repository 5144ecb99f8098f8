"""Start and end of one rank's process (without torch).

The forkserver forks a process per rank; ``main`` turns it into what a launcher such as torchrun would have started:
with its own stderr, its environment and its place in the job.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from pathlib import Path

from tocsin.cli.drill.board import Board
from tocsin.cli.drill.rank_config import RankConfig
from tocsin.collectors import hook
from tocsin.collectors.hook._stages import MARKS, STARTED

_GATE_SECONDS = 60.0


def main(config: RankConfig) -> None:
    """Run one rank, and end the process.

    Exit status and text on stderr are like Python's own: 0 at the normal end, 1 and a traceback after an exception.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the forkserver ignores it; a trainer would not
    _take_stderr(config.stderr_path)
    os.environ.update(_environment(config))
    try:
        _train(config)
    except Exception:  # noqa: BLE001 - as the interpreter does: any traceback to stderr, status 1
        traceback.print_exc()
        hook.close()  # as the interpreter's exit would: a forked child's os._exit runs no atexit
        os._exit(1)
    os._exit(0)  # as after an exception: gloo's threads may stand in a dead peer's socket


def _train(config: RankConfig) -> None:
    """Wait until the drill opens the gate, then train."""
    board = Board(config.board_path, config.world_size)
    deadline = time.monotonic() + _GATE_SECONDS
    while not board.gate_is_open():
        if time.monotonic() > deadline:
            raise TimeoutError("the drill did not open the gate: did the agents start?")
        time.sleep(0.02)
    if config.start_seconds is not None:
        os.environ[STARTED] = str(time.time_ns())  # the fork waited for the agents; its start is now
        MARKS.adopt()
    from tocsin.cli.drill import stages, trainer, uneven  # torch: only here

    if config.stage_count > 1:
        stages.train(config, board)
    elif config.has_own_batches:
        trainer.train(config, board, uneven.UnevenTrainer)
    else:
        trainer.train(config, board)


def _take_stderr(path: Path) -> None:
    """Redirect stdout and stderr, including text from C++, to the file that the supervisor reads."""
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)
    # The forkserver's own objects may be buffered or closed: make them anew.
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)


def _environment(config: RankConfig) -> dict[str, str]:
    """Return the environment variables of the rank."""
    return {
        "RANK": str(config.rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(config.world_size),
        "TOCSIN_CLUSTER": config.cluster,
        "TOCSIN_JOB_ID": config.job_id,
        "TOCSIN_ATTEMPT": str(config.attempt),
        "TOCSIN_AGENT_SOCKET": str(config.agent_socket),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "TORCH_FR_BUFFER_SIZE": "2000",
    }
