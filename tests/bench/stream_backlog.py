"""How fast a backlog of one large job is worked off, in one slot and in two: ``make bench-stream ARGS=--backlog``.

In real time two slots beat one only where one is too slow, and then the stream's own pace hides by how much. So all is
in Kafka before the Flink job starts, and the time between canaries counts: the verdict of a slice is written when
the slice is judged. Half of the stream warms up (workers start, Java compiles); the other half is measured.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.bench.stream import PREFIX, SLICE_SECONDS, Chain
from tests.bench.stream_stages import Arrival, arrivals
from tocsin.pipeline.stores.clickhouse_address import parse_address
from tocsin.pipeline.stores.clickhouse_store import ClickHouseStore

_LONGEST_SECONDS = 900.0
_QUIET_SECONDS = 60.0


def compare_slots(args: argparse.Namespace) -> int:
    """Print both; 1 where two slots are not faster."""
    rates = [_rate(args, slots) for slots in (1, 2)]
    print(f"two slots work it off {rates[1] / rates[0]:.2f} times as fast as one")
    return int(rates[1] <= rates[0])


def _rate(args: argparse.Namespace, slots: int) -> float:
    with tempfile.TemporaryDirectory(prefix="tocsin-backlog-") as folder:
        own = {**vars(args), "jobs": 1, "parallelism": slots, "cut": True, "one_slot": False}
        chain = _Backlog(Path(folder), argparse.Namespace(**own))
        chain.run()
        return chain.rate


class _Backlog(Chain):
    rate = 0.0
    """Seconds of stream that a second works off."""

    def _play(self) -> None:
        args = self._args
        self._services_up()
        subprocess.run(self._load(args.seconds, "--backlog"), check=True, stdout=subprocess.DEVNULL)
        self._job_up("earliest")
        store = ClickHouseStore(parse_address(self._endpoint.url))
        self.rate = worked_off(_await(store, args.seconds - SLICE_SECONDS))
        groups = f"{args.hosts} hosts in one job, frames cut by metric group, {args.parallelism} slots"
        print(f"{groups}: {self.rate:.2f} seconds of stream in a second (prefix {PREFIX})", flush=True)


def _await(store: ClickHouseStore, wanted: int) -> list[Arrival]:
    """All canaries, or what came until none did for a while."""
    until, count, changed = time.monotonic() + _LONGEST_SECONDS, 0, time.monotonic()
    while time.monotonic() < until:
        came = arrivals(store, 0.0)
        if len(came) != count:
            count, changed = len(came), time.monotonic()
        if count >= wanted or (count and time.monotonic() - changed > _QUIET_SECONDS):
            break
        time.sleep(1.0)
    return arrivals(store, 0.0)


def worked_off(came: Sequence[Arrival]) -> float:
    """Seconds of stream in a second, over the second half.

    Raises:
        RuntimeError: fewer than four canaries.
    """
    rows = sorted((one.end_seconds, one.end_seconds + one.row_seconds) for one in came)
    half = len(rows) // 2
    if half < 2:
        raise RuntimeError(f"{len(rows)} canaries came, at least four are needed: is the Flink job running?")
    (first_end, first_row), (last_end, last_row) = rows[half], rows[-1]
    return (last_end - first_end) / max(1e-3, last_row - first_row)
