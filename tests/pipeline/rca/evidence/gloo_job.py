"""Small real gloo jobs that get stuck, one after the other: ``gloo_job.py FOLDER RANKS RANK FAULT...``.

Every rank writes its dump into ``FOLDER/FAULT``. All ranks are forked after one import of
torch: the test pays for that once.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"
os.environ["OMP_NUM_THREADS"] = "1"

import torch
import torch.distributed as dist

SETTLE_SECONDS = 0.5
LEFT_SECONDS = 120
"""How long a rank is left as it is: until the parent kills it."""


def until(done: Callable[[], bool]) -> None:
    """Wait, for a minute at most: on a busy machine the ranks come apart."""
    deadline = time.monotonic() + 60
    while not done() and time.monotonic() < deadline:
        time.sleep(0.05)


def write_dump(folder: Path, rank: int, kind: str) -> None:
    flight = torch._C._distributed_c10d  # noqa: SLF001  # torch has no public call
    if kind == "json":
        text = flight._dump_fr_trace_json(True, False)  # type: ignore[attr-defined]  # noqa: SLF001  # as above
        data = text.encode() if isinstance(text, str) else bytes(text)
    else:
        data = bytes(flight._dump_fr_trace(True, False, False))  # type: ignore[attr-defined]  # noqa: SLF001
    (folder / f"gloo_trace_rank_{rank}").write_bytes(data)


def train(folder: Path, ranks: int, fault: str, struck: int, rank: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    half = ranks // 2
    groups = [dist.new_group(list(range(half))), dist.new_group(list(range(half, ranks)))]
    mine = groups[rank >= half]
    tensor = torch.ones(64)

    def dump_and_leave() -> None:
        until(lambda: len(list(folder.glob(".struck*"))) == ranks)
        time.sleep(SETTLE_SECONDS)
        write_dump(folder, rank, "json" if fault == "skip" else "pickle")
        (folder / f".done{rank}").touch()
        time.sleep(LEFT_SECONDS)

    for step in range(6):
        is_struck = rank == struck and step == 4
        if step == 4:
            (folder / f".struck{rank}").touch()
            threading.Thread(target=dump_and_leave, daemon=True).start()
        if is_struck and fault == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if is_struck and fault == "sleep":
            time.sleep(LEFT_SECONDS)
        if not (is_struck and fault == "skip"):
            dist.all_reduce(tensor, group=mine)
        dist.all_reduce(torch.ones(1))


def run_job(folder: Path, ranks: int, fault: str, struck: int) -> None:
    children = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            train(folder, ranks, fault, struck, rank)
            os._exit(0)
        children.append(pid)
    speaking = ranks - (fault == "stop")
    until(lambda: len(list(folder.glob(".done*"))) == speaking)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def main() -> None:
    root, ranks, struck, faults = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    for fault in faults:
        (root / fault).mkdir()
        run_job(root / fault, ranks, fault, struck)


if __name__ == "__main__":
    main()
