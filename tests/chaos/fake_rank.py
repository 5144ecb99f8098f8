"""A rank of a made-up training job: the hook's datagrams, a board shared with the other ranks, no torch.

Run as a script without site packages (``python -S -E fake_rank.py ORDER``): standard library only. It works, waits for
all others in one collective a step, and tells what a hook would tell. The board says what ails it.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import socket
import struct
import sys
import time
from typing import Any

ROW = struct.Struct("<qddqq")
"""One rank on the board: steps arrived at, slowness, seconds of its loader, whether its numbers are none, stop."""
_DATA_SECONDS, _OWN_SECONDS, _POLL_SECONDS = 0.01, 0.12, 0.005
_BEAT_NS, _HELLO_NS, _STUCK_NS = 1_000_000_000, 10_000_000_000, 500_000_000


class Rank:
    """One process."""

    def __init__(self, order: dict[str, Any]) -> None:
        """Speak to the agent of this host."""
        self.rank, self.world = int(order["rank"]), int(order["world"])
        self.job = [order["cluster"], order["job_id"], int(order.get("attempt", 0))]
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.agent = order["agent"]
        with open(order["board"], "r+b") as file:  # noqa: PTH123  # pathlib costs memory in each rank
            self.board = mmap.mmap(file.fileno(), 0)
        self.step, self.step_ns = 0, 0
        self.report_interval_ns = self.hello_ns = 0
        self.waits_ns = 0

    def say(self, kind: str, **fields: object) -> None:
        """Send a datagram; what the socket does not take is lost, as with the hook."""
        message = {"v": 1, "t": kind, "job": self.job, "rank": self.rank, "ts": time.time_ns(), **fields}
        with contextlib.suppress(OSError):
            self.socket.sendto(json.dumps(message).encode(), self.agent)

    def row(self, rank: int) -> tuple[int, float, float, int, int]:
        """What the board says of a rank."""
        arrived, slow, loader, nan, stop = ROW.unpack_from(self.board, rank * ROW.size)
        return arrived, slow, loader, nan, stop

    def keep_alive(self) -> None:
        """Hello and beat, when their time has come."""
        now = time.time_ns()
        if now - self.hello_ns >= _HELLO_NS:
            self.hello_ns = now
            self.say("hello", pid=os.getpid(), world_size=self.world, local_rank=0, gpu=0, dp=self.rank, pp=0, tp=0)
            ranks = list(range(self.world))
            self.say("groups", groups=[{"comm_id": "dp0", "kind": "dp", "ranks": ranks}])
        if now - self.report_interval_ns >= _BEAT_NS:
            self.report_interval_ns = now
            stuck = self.waits_ns and now - self.waits_ns >= _STUCK_NS
            inflight = [["dp0", "all_reduce", self.step, 1 << 20, self.waits_ns]] if stuck else []
            last = [["dp0", "all_reduce", self.step - 1, self.step_ns]] if self.step else []
            self.say("beat", step=self.step, phase="", step_ns=self.step_ns, inflight=inflight, last=last)

    def one_step(self) -> bool:
        """Work, meet the others, tell of it; False: told to stop."""
        begin = time.time_ns()
        self.step_ns = begin
        _, slow, loader, nan, _ = self.row(self.rank)
        time.sleep(_DATA_SECONDS + loader)
        computing = time.time_ns()
        time.sleep(_OWN_SECONDS * slow)
        self.waits_ns = time.time_ns()
        struct.pack_into("<q", self.board, self.rank * ROW.size, self.step + 1)
        while any(self.row(rank)[0] <= self.step for rank in range(self.world)):
            if self.row(self.rank)[4]:
                return False
            self.keep_alive()
            time.sleep(_POLL_SECONDS)
        end, waited = time.time_ns(), self.waits_ns
        self.waits_ns = 0
        own = (waited - computing) / 1e9
        lost = any(self.row(rank)[3] for rank in range(self.world))
        self.say(
            "step",
            step=self.step,
            dur=(end - begin) / 1e9,
            data=(computing - begin) / 1e9,
            fwd=own * 0.35,
            bwd=own * 0.6,
            opt=own * 0.05,
            comm=(end - waited) / 1e9,
            loss="nan" if nan else 2.0,
            gn="nan" if lost else 1.0,
            coll=[["dp0", "all_reduce", self.step, 1 << 20, waited, end]],
            dropped=0,
        )
        self.step += 1
        self.keep_alive()
        return not self.row(self.rank)[4]


def main() -> None:
    """Make steps until the board says stop."""
    rank = Rank(json.loads(sys.argv[1]))
    rank.keep_alive()
    while rank.one_step():
        pass
    rank.say("bye")


if __name__ == "__main__":
    main()
