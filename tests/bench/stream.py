"""The whole chain at full width: ``make bench-stream`` (``ARGS="--hosts 2500 --jobs 1"``).

Broker, Flink, ClickHouse endpoint, consumer and the load, each a process of its own, all on this machine, in real
time. Latency is taken from canaries: a verdict a job and slice, from the slice's end to the row in the table.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.bench.stream_lag import FETCH_SETTINGS, SAMPLE_SECONDS, LagMeter, busy_seconds, what_bounds
from tests.bench.stream_stages import Arrival, arrivals, said_seconds, stage_lines
from tocsin.cli.cluster.broker import Broker, BrokerConfig
from tocsin.cli.cluster.clickhouse import ClickHouseEndpoint, EndpointConfig
from tocsin.cli.cluster.flink import Flink
from tocsin.cli.cluster.flink_conf import FlinkConfig, parse_settings
from tocsin.cli.cluster.process import Child, Program
from tocsin.cli.cluster.submit import Submission, submit, wait_running
from tocsin.pipeline.runtime.flink.options import JobOptions
from tocsin.pipeline.runtime.flink.sql import StreamOptions
from tocsin.pipeline.stores.clickhouse_address import parse_address
from tocsin.pipeline.stores.clickhouse_store import ClickHouseStore
from tocsin.schemas.kafka.topics import VERDICTS, topic_name
from tocsin.schemas.records import NS_PER_SECOND

FloatArray = NDArray[np.float64]
PREFIX = "bench"
SLICE_SECONDS = 5
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_DRAIN_SECONDS = 30.0
_THREADS_COUNT = 16
_SLOW_COUNT = 12
_SEARCH_FACTOR, _SEARCH_SECONDS = 1.25, 90
_FIRST = ["nice", "-n", "-15"] if os.geteuid() == 0 else []
_DEFAULTS = JobOptions(StreamOptions(servers=""))


@dataclass
class Usage:
    """CPU and memory of the processes of one component, sampled while they live."""

    children: list[Child]
    program: str = ""
    cpu_seconds: dict[int, float] = field(default_factory=dict)
    peak_bytes: int = 0

    def sample(self) -> None:
        resident = 0
        for pid in self._members():
            name, seconds, pages = _stat(Path(f"/proc/{pid}"))
            if self.program in name:
                self.cpu_seconds[pid] = seconds
                resident += pages * os.sysconf("SC_PAGE_SIZE")
        self.peak_bytes = max(self.peak_bytes, resident)

    def threads(self) -> Counter[str]:
        """CPU seconds by thread, its name and number."""
        found: Counter[str] = Counter()
        for pid in self._members():
            program = _stat(Path(f"/proc/{pid}"))[0]
            if self.program in program:
                for folder in Path(f"/proc/{pid}/task").iterdir():
                    name, seconds, _ = _stat(folder)
                    found[f"{name} {folder.name}"] += seconds  # type: ignore[assignment]  # a counter counts what it is given
        return found

    def _members(self) -> list[int]:
        return [pid for child in self.children for pid in child.members()]

    def total_seconds(self) -> float:
        return sum(self.cpu_seconds.values())


def _stat(folder: Path) -> tuple[str, float, int]:
    """Name, CPU seconds and resident pages; of a process or thread that ended meanwhile: nothing."""
    try:
        head, _, tail = (folder / "stat").read_text().rpartition(")")
    except OSError:
        return "", 0.0, 0
    parts = tail.split()
    return head.partition("(")[2], (int(parts[11]) + int(parts[12])) / _TICKS_PER_SECOND, int(parts[21])


def main() -> int:
    """Bring up the chain, play, print; 1 where it does not keep up."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, nargs="+", default=[4, 1], help="one run for each (default: 4, then 1)")
    parser.add_argument("--seconds", type=int, default=180)
    parser.add_argument("--taskmanager-gib", type=int, default=4, help="memory of the TaskManager's Java")
    text = "the same stream before, not counted: Java compiles what it runs often"
    parser.add_argument("--warmup-seconds", type=int, default=100, help=text)
    parser.add_argument("--parallelism", type=int, default=2, help="slots")
    text = "jobs whose names Flink hashes to the same slot; else they are spread evenly"
    parser.add_argument("--one-slot", action="store_true", help=text)
    parser.add_argument("--cut", action="store_true", help="agents cut frames by metric group")
    text = "after these, more and more hosts in as many jobs as the first run's, 90 s each, until they do not keep up"
    parser.add_argument("--search", action="store_true", help=text)
    text = "instead: how fast one job's waiting records are worked off, frames cut, in one slot and in two"
    parser.add_argument("--backlog", action="store_true", help=text)
    parser.add_argument("--threads", action="store_true", help="print which threads used the time")
    parser.add_argument("--flink", action="append", default=[], metavar="NAME=VALUE", help="a setting of Flink")
    parser.add_argument("--checkpoint-seconds", type=float, default=_DEFAULTS.checkpoint_seconds)
    parser.add_argument("--snapshot-seconds", type=int, default=_DEFAULTS.snapshot_seconds)
    args = parser.parse_args()
    if args.backlog:
        from tests.bench.stream_backlog import compare_slots

        return compare_slots(args)
    failed = sum(not _run(args, jobs=job_count) for job_count in args.jobs)
    if args.search:
        _search(args)
    return min(1, failed)


def _run(args: argparse.Namespace, **changes: int) -> bool:
    with tempfile.TemporaryDirectory(prefix="tocsin-stream-") as folder:
        return Chain(Path(folder), argparse.Namespace(**{**vars(args), **changes})).run()


def _search(args: argparse.Namespace) -> None:
    hosts, most = args.hosts, 0
    while True:
        hosts = round(hosts * _SEARCH_FACTOR)
        if not _run(args, jobs=args.jobs[0], hosts=hosts, seconds=_SEARCH_SECONDS):
            break
        most = hosts
    print(f"largest number of hosts that kept up: {most or args.hosts}; {hosts} did not (what bounds them: above)")


class Chain:
    """One run: all of it up, played, printed, down."""

    def __init__(self, folder: Path, args: argparse.Namespace) -> None:
        self._args = args
        self._broker = Broker(BrokerConfig(folder / "kafka"))
        settings = {**FETCH_SETTINGS, **parse_settings(args.flink)}
        memory = args.taskmanager_gib * 1024**3
        config = FlinkConfig(folder / "flink", slot_count=args.parallelism, taskmanager_bytes=memory, settings=settings)
        self._flink = Flink(config)
        self._endpoint = ClickHouseEndpoint(EndpointConfig(folder / "clickhouse"))
        self._consumer: Child | None = None
        self._folder = folder
        self.keeps_up = False

    def run(self) -> bool:
        """Whether it keeps up."""
        try:
            self._play()
        finally:
            if self._consumer is not None:
                self._consumer.stop()
            self._flink.stop()
            self._endpoint.stop()
            self._broker.stop()
        return self.keeps_up

    def _play(self) -> None:
        begin = time.monotonic()
        self._services_up()
        self._job_up("latest")
        print(f"ready after {time.monotonic() - begin:.0f} s", flush=True)
        self._measure()

    def _services_up(self) -> None:
        self._broker.start()
        self._endpoint.start()
        self._command("topics", "apply", "--kafka", self._broker.address, "--topic-prefix", PREFIX)
        self._command("migrate", "--clickhouse", self._endpoint.url)
        self._flink.start()

    def _job_up(self, start: str) -> None:
        stream = StreamOptions(servers=self._broker.address, prefix=PREFIX, start=start)
        options = JobOptions(
            stream,
            slot_count=self._args.parallelism,
            checkpoint_seconds=self._args.checkpoint_seconds,
            snapshot_seconds=self._args.snapshot_seconds,
            canary_seconds=1,
        )
        job_id = submit(Submission(options.to_json(), self._flink.url))
        wait_running(self._flink.rest, job_id)
        self._job_id = job_id
        command = [sys.executable, "-m", "tocsin", "sink", "clickhouse", "--kafka", self._broker.address]
        command += ["--topic-prefix", PREFIX, "--clickhouse", self._endpoint.url]
        self._consumer = Child(Program("the consumer", command, self._folder / "consumer.log"))
        self._consumer.start()

    def _command(self, *arguments: str) -> None:
        subprocess.run([sys.executable, "-m", "tocsin", *arguments], check=True, stdout=subprocess.DEVNULL)

    def _measure(self) -> None:
        assert self._consumer is not None
        assert self._flink.job_manager is not None
        parts = {
            "broker": Usage([self._broker.child]),
            "Flink JobManager": Usage([self._flink.job_manager]),
            "Flink TaskManager": Usage(self._flink.task_managers, "java"),
            "Flink's Python workers": Usage(self._flink.task_managers, "python"),
            "ClickHouse endpoint": Usage([self._endpoint.child]),
            "consumer": Usage([self._consumer]),
        }
        command = self._load(self._args.warmup_seconds + self._args.seconds)
        # it stands for 10,000 machines: it must not wait for a processor, or its records and ticks come late
        load = subprocess.Popen([*_FIRST, *command], stdout=subprocess.PIPE, text=True)
        assert load.stdout is not None
        begun = json.loads(load.stdout.readline())
        counted_from = begun["start_ns"] / NS_PER_SECOND + self._args.warmup_seconds
        time.sleep(max(0.0, counted_from - time.time()))
        for part in parts.values():
            part.sample()
        before = {name: part.total_seconds() for name, part in parts.items()}
        threads = {name: part.threads() for name, part in parts.items()}
        lag, busy, begin = LagMeter(self._flink.rest, self._job_id), busy_seconds(), time.monotonic()
        ended = threading.Event()
        sampler = threading.Thread(target=_sample, args=(parts, lag, ended), daemon=True)
        sampler.start()
        reported = json.loads(load.stdout.readline())
        wall = time.monotonic() - begin
        busy_share = (busy_seconds() - busy) / wall / (os.cpu_count() or 1)
        spent = _spent(parts, threads)
        load.wait()
        store = ClickHouseStore(parse_address(self._endpoint.url))
        wanted = self._args.jobs * self._args.seconds
        until = time.monotonic() + _DRAIN_SECONDS
        while len(came := arrivals(store, counted_from)) < wanted and time.monotonic() < until:
            time.sleep(1.0)
        rows = np.array([[one.end_seconds, one.row_seconds] for one in came], np.float64).reshape(len(came), 2)
        ended.set()
        sampler.join()
        used = {name: part.total_seconds() - before[name] for name, part in parts.items()}
        self._print(begun, reported, rows, wanted, used, parts)
        self._tell(came, lag)
        print(f"what bounds it: {what_bounds(busy_share, {name: share / wall for share, name in spent})}", flush=True)
        if self._args.threads:
            for seconds, name in spent[:_THREADS_COUNT]:
                print(f"{seconds:8.1f} s  {name}")

    def _load(self, seconds: int, *options: str) -> list[str]:
        args = self._args
        command = [sys.executable, "-m", "tests.bench.stream_load", "--kafka", self._broker.address]
        command += ["--prefix", PREFIX, "--hosts", str(args.hosts), "--jobs", str(args.jobs), "--seconds", str(seconds)]
        command += ["--slots", str(args.parallelism), *(["--one-slot"] if args.one_slot else [])]
        return [*command, *(["--cut"] if args.cut else []), *options]

    def _tell(self, came: Sequence[Arrival], lag: LagMeter) -> None:
        """Print where the time goes and whether more and more waits."""
        said = said_seconds(self._broker.address, topic_name(VERDICTS, PREFIX))
        print(*stage_lines(came, said), *lag.lines(), *lag.task_lines(), sep="\n")
        self.keeps_up = self.keeps_up and not lag.grows()
        print("keeps up" if self.keeps_up else "DOES NOT KEEP UP: canaries are missing or come later, or the lag grows")

    def _print(
        self,
        begun: dict[str, float],
        reported: dict[str, float],
        rows: FloatArray,
        wanted: int,
        used: dict[str, float],
        parts: dict[str, Usage],
    ) -> None:
        args = self._args
        hours = args.hosts * args.seconds / 3600
        how = "cut by metric group" if args.cut else "whole"
        where = "all in one of" if args.one_slot else "spread over"
        jobs = f"{args.hosts} hosts in {args.jobs} jobs {where} {args.parallelism} slots"
        print(f"{jobs}, {args.seconds} s, frames {how}")
        print(
            f"load: {reported['records']} records, {reported['bytes'] / 1e6:.0f} MB, "
            f"{reported['cpu_seconds']} s of CPU (not the pipeline's), "
            f"longest send {reported['longest_send_seconds']} s, late {begun['prepared_late_seconds']} s"
        )
        if rows.size:
            early = rows[:, 0] < np.median(rows[:, 0])
            first, second = np.median(rows[early, 1]), np.median(rows[~early, 1])
            print(f"canaries: {len(rows)} of {wanted}; median of the first half {first:.2f} s, second {second:.2f} s")
            lost = np.full((max(0, wanted - len(rows)), 2), np.inf)  # what never came took for ever
            _print_delays("every second", np.concatenate([rows, lost]))
            _print_delays("ends of metric slices", rows[rows[:, 0] % SLICE_SECONDS == 0])
            self.keeps_up = not lost.size and second <= first + 1.0
        else:
            print(f"no canary of {wanted} arrived")
        print(f"{'component':30} {'CPU s':>8} {'cores':>6} {'s/host-h':>9} {'peak MB':>8}")
        for name, seconds in used.items():
            row = f"{seconds:8.1f} {seconds / args.seconds:6.2f} {seconds / hours:9.3f}"
            print(f"{name:30} {row} {parts[name].peak_bytes / 1e6:8.0f}")
        checkpoints = self._flink.rest.checkpoints(self._job_id)
        print(f"checkpoints: {checkpoints}")


def _print_delays(name: str, rows: FloatArray) -> None:
    p50, p99 = np.percentile(rows[:, 1], (50, 99))
    worst = rows[:, 1].max()
    slow = rows[np.argsort(-rows[:, 1])[:_SLOW_COUNT]]
    when = ", ".join(
        f"{seconds:.1f} s at {second - rows[:, 0].min():.0f}" for second, seconds in slow[slow[:, 0].argsort()]
    )
    print(f"slice end -> row in ClickHouse, {name} ({len(rows)}): p50 {p50:.2f} s, p99 {p99:.2f} s, max {worst:.2f} s")
    print(f"  the slowest: {when}")


def _spent(parts: dict[str, Usage], before: dict[str, Counter[str]]) -> list[tuple[float, str]]:
    """(CPU seconds since then, component and thread), the most first."""
    found = [
        (seconds - before[name][thread], f"{name}: {thread}")
        for name, part in parts.items()
        for thread, seconds in part.threads().items()
    ]
    return sorted(found, reverse=True)


def _sample(parts: dict[str, Usage], lag: LagMeter, ended: threading.Event) -> None:
    for second in itertools.count(1):
        if ended.wait(1.0):
            return
        for part in parts.values():
            part.sample()
        if second % SAMPLE_SECONDS == 0:
            lag.sample()


if __name__ == "__main__":
    sys.exit(main())
