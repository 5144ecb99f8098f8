"""A real ``tocsin serve`` with real agents, killed with -9 again and again: it says what an undisturbed one says."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.chaos.learned import Learned, shown_counts
from tests.chaos.live_jobs import HOSTS, KINDS, WARM_SECONDS, WATCH_SECONDS, Agents, Fault, Job
from tests.chaos.page_site import TOLD, Page, messages_of, page_difference, pages_of, write_routes
from tests.chaos.tables import difference, read_tables, write_embedded
from tests.chaos.tee_agent import kept
from tests.conftest import ROOT
from tests.pipeline.alerts.adapters.receiver import Receiver, Reply, receiving
from tocsin.cli.cluster.process import Child, Program
from tocsin.cli.paths import control_socket
from tocsin.pipeline.alerts.adapters import ADAPTERS
from tocsin.pipeline.alerts.notice import NoticeKind
from tocsin.pipeline.alerts.router import AlertRouter, RouterConfig
from tocsin.pipeline.alerts.routes import load_routes
from tocsin.pipeline.detect.learned.registry import LEARNED
from tocsin.pipeline.runtime.embedded.control_socket import ControlClient
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.schemas.errors import EngineError, SchemaError, TransportError
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Verdict

ENGINE: Final = "embedded engine"
_READY_SECONDS: Final = 60.0
_USUAL_DELAY_SECONDS: Final = 3.0
"""From the end of a second to its verdict: the lateness, the tick, the way."""
_MOST_AFTER_RESTART_SECONDS: Final = 5.0
_LEAST_GAP_SECONDS: Final = 4.0
_MARGIN_NS: Final = 5 * NS_PER_SECOND
_LEARNED_WARM_SECONDS: Final = 90.0
_LEARNED_WATCH_SECONDS: Final = 45.0


@dataclass(frozen=True)
class LiveConfig:
    """How a round goes.

    Attributes:
        seed: of faults and kills.
        faults_count: in all.
        tracks_count: jobs at a time.
        kills_count: of the engine.
        away_seconds: how long it is away before it is started again, from and to.
        learned: learned detectors that judge, too, with what ships; jobs run longer then.
    """

    seed: int
    faults_count: int = 18
    tracks_count: int = 3
    kills_count: int = 20
    away_seconds: tuple[float, float] = (0.0, 2.0)
    learned: Learned = field(default_factory=Learned)

    @property
    def warm_seconds(self) -> float:
        """How long a job is healthy: learned detectors learn for a minute what is usual."""
        return _LEARNED_WARM_SECONDS if self.learned.settings else WARM_SECONDS

    @property
    def watch_seconds(self) -> float:
        """How long a job stays as it is after its fault."""
        return _LEARNED_WATCH_SECONDS if self.learned.settings else WATCH_SECONDS


@dataclass
class LiveReported:
    """What came of a round.

    Attributes:
        problems: what differs.
        kills_count: of the engine.
        near_count: of these, within 2 s of an onset.
        restart_seconds: from a kill until it listens again, the longest.
        delay_seconds: of a verdict, beyond the usual and beyond the engine's absence, the longest.
        said: verdicts by cause.
        shown: learned detector -> number of lines with its evidence.
        pages_count: incidents that people were told of, and ends.
        repeated_count: messages that came once more with the same key.
    """

    problems: list[str] = field(default_factory=list)
    kills_count: int = 0
    near_count: int = 0
    restart_seconds: float = 0.0
    delay_seconds: float = 0.0
    said: Counter[str] = field(default_factory=Counter)
    shown: Counter[str] = field(default_factory=Counter)
    pages_count: int = 0
    repeated_count: int = 0

    def text(self) -> str:
        """What came of it, and each problem."""
        said = ", ".join(f"{count} {cause}" for cause, count in sorted(self.said.items()))
        head = (
            f"  {self.kills_count} kills, {self.near_count} within 2 s of an onset; longest absence"
            f" {self.restart_seconds:.1f} s, longest delay beyond it {self.delay_seconds:.1f} s\n  said: {said}"
            f"\n  {self.pages_count} pages and ends; {self.repeated_count} messages came again with the same key"
        )
        if self.shown:
            head += f"\n  lines with evidence of learned detectors: {dict(self.shown)}"
        return "\n".join([head, *(f"  {problem:.600}" for problem in self.problems or ["equal"])])


def faults_of(config: LiveConfig) -> list[Fault]:
    """The faults of a round: each kind as often, track by track."""
    drawn = random.Random(config.seed)
    kinds = [KINDS[number % len(KINDS)] for number in range(config.faults_count)]
    drawn.shuffle(kinds)
    faults: list[Fault] = []
    ends = [track * 5.0 for track in range(config.tracks_count)]
    for number, kind in enumerate(kinds):
        track = number % config.tracks_count
        times = ends[track], config.watch_seconds, config.warm_seconds
        faults.append(Fault(f"job-{config.seed}-{number}-{kind}", kind, drawn.randrange(len(HOSTS)), *times))
        ends[track] = faults[-1].end_seconds
    return faults


def kills_of(config: LiveConfig, faults: list[Fault]) -> list[float]:
    """When the engine is killed, since the start: a third within 2 s of an onset, the others anywhere, apart."""
    drawn = random.Random(config.seed + 1)
    near = -(-config.kills_count // 3)
    moments: list[float] = []
    order = drawn.sample(faults, len(faults))
    while order and len(moments) < near:
        _add(moments, order.pop().onset_seconds + drawn.uniform(-1.0, 2.0))
    end = max(fault.end_seconds for fault in faults)
    for _ in range(10_000):
        if len(moments) >= config.kills_count:
            break
        _add(moments, drawn.uniform(6.0, end))
    return sorted(moments)


def _add(moments: list[float], moment: float) -> None:
    if all(abs(moment - other) >= _LEAST_GAP_SECONDS for other in moments):
        moments.append(moment)


class Engine:
    """A ``tocsin serve`` that is killed."""

    def __init__(self, folder: Path, routes: Path | None = None, flags: Sequence[str] = ()) -> None:
        self.data = folder / "data"
        self.address = f"unix:{folder}/e.sock"
        command = [sys.executable, "-m", "tocsin", "serve", "--data", str(self.data), "--listen", self.address]
        command += ["--metrics-listen", "", "--hold", "0", "0"]  # else hard actions wait, which lines do not show
        command += [*flags, *([] if routes is None else ["--alerts", str(routes)])]
        self.child = Child(Program("tocsin serve", command, folder / "serve.log", folder=ROOT))
        self.absences: list[tuple[int, int]] = []
        """Killed, and listening again (Unix ns)."""

    def start(self) -> None:
        self.child.start()
        self.child.wait_ready(lambda: self.child.said("agents on"), _READY_SECONDS)

    def kill(self, away_seconds: float) -> None:
        begin_ns = time.time_ns()
        self.child.crash()
        time.sleep(away_seconds)
        self.start()
        self.absences.append((begin_ns, time.time_ns()))

    def back_ns(self, at_ns: int) -> int:
        """When it was there again for good (5 s at least) after a time, that time where it was there then."""
        back_ns = at_ns
        for killed_ns, listens_ns in self.absences:
            if killed_ns <= back_ns + _MARGIN_NS <= listens_ns + 2 * _MARGIN_NS and listens_ns >= at_ns:
                back_ns = max(back_ns, listens_ns)
        return back_ns


class Follower:
    """Reads the stream of verdicts, over all of the engine's ends.

    Attributes:
        lines: each as it came, and when (Unix ns).
    """

    def __init__(self, data: Path) -> None:
        self._socket = control_socket(data)
        self._stopping = threading.Event()
        self.lines: list[tuple[int, dict[str, Any]]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                for line in ControlClient(self._socket).stream("verdicts", after=len(self.lines)):
                    if "verdict" in line:
                        self.lines.append((time.time_ns(), line["verdict"]))
                    if self._stopping.is_set():
                        return
            except (OSError, EngineError, TransportError, SchemaError, ValueError):
                time.sleep(0.05)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(60)


def run_live_round(config: LiveConfig, folder: Path) -> LiveReported:
    """Play, kill, compare."""
    with receiving(lambda _: Reply(204)) as receiver:
        return _round(config, folder, receiver)


def _round(config: LiveConfig, folder: Path, receiver: Receiver) -> LiveReported:
    faults = faults_of(config)
    moments = kills_of(config, faults)
    routes = write_routes(folder / "alerts.yaml", receiver)
    engine = Engine(folder, routes, config.learned.flags)
    agents = Agents(folder, engine.address)
    reported = LiveReported(kills_count=len(moments))
    reported.near_count = sum(any(abs(at - one.onset_seconds) <= 2.0 for one in faults) for at in moments)
    try:
        engine.start()
        agents.start()
        follower = Follower(engine.data)
        _play(config, faults, moments, engine, agents)
        time.sleep(8.0)
        status = ControlClient(control_socket(engine.data)).call("status")
        last_ns = int(status["now_ns"])
        agents.stop()
        engine.child.stop(30.0)
        follower.stop()
    finally:
        agents.stop()
        engine.child.kill()
    wanted, states = undisturbed(folder, last_ns, config.learned)
    reported.problems += learned_difference(states, learned_states(status))
    reported.shown = shown_counts(wanted)
    write_embedded(folder / "undisturbed", wanted)
    _compare(reported, engine, follower, wanted, last_ns)
    pages = pages_of(receiver)
    reported.pages_count, reported.repeated_count = pages.total(), len(receiver.asked) - len(messages_of(receiver))
    reported.problems += page_difference(undisturbed_pages(routes, wanted), pages)
    return reported


def undisturbed_pages(routes: Path, verdicts: list[Verdict]) -> Counter[Page]:
    """What people are told where each line is told in its own second."""
    router = AlertRouter(RouterConfig(load_routes(routes, ADAPTERS)))
    notices = [notice for one in verdicts for notice in router.on_verdicts([one], one.detected_ns)]
    kinds = [(one.verdict.verdict_id, one.kind) for one in notices if one.kind is not NoticeKind.CHANGED]
    return Counter((name, TOLD if kind is NoticeKind.FIRING else kind.value) for name, kind in kinds)


def _play(config: LiveConfig, faults: list[Fault], moments: list[float], engine: Engine, agents: Agents) -> None:
    begun = time.monotonic() + 3.0
    jobs = [threading.Thread(target=Job(one, agents, agents.folder).run, args=(begun,), daemon=True) for one in faults]
    for thread in jobs:
        thread.start()
    drawn = random.Random(config.seed + 2)
    for moment in moments:
        time.sleep(max(0.0, begun + moment - time.monotonic()))
        engine.kill(drawn.uniform(*config.away_seconds))
    for thread in jobs:
        thread.join()


def undisturbed(folder: Path, last_ns: int, learned: Learned) -> tuple[list[Verdict], dict[str, Any]]:
    """Return what an engine that was never killed says of the same records, and the states of its learned detectors.

    It hears each record when it was made.
    """
    records = sorted(one for host in HOSTS for one in kept(folder / host / "records"))
    engine, at = EmbeddedEngine(learned.of(EngineConfig(history=None))), 0
    verdicts: list[Verdict] = []
    first_ns = records[0][0] // NS_PER_SECOND * NS_PER_SECOND
    for tick_ns in range(first_ns, last_ns + 1, NS_PER_SECOND):
        while at < len(records) and records[at][0] < tick_ns:
            engine.take(records[at][1])
            at += 1
        verdicts.extend(engine.tick(tick_ns).verdicts)
    return verdicts, learned_states(engine.status())


def learned_states(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return job -> states of its learned detectors: whom they name, and why they judged nothing."""
    return {job["job_id"]: job["learned"] for job in status["jobs"]}


def learned_difference(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Return a text for each job, known to both, whose learned detectors are in another state than they must be."""
    return [
        f"{job}: learned detectors: {found[job]}, must be {wanted[job]}"
        for job in sorted(wanted.keys() & found.keys())
        if found[job] != wanted[job]
    ]


def _compare(reported: LiveReported, engine: Engine, follower: Follower, wanted: list[Verdict], last_ns: int) -> None:
    reported.restart_seconds = max(((back - gone) / NS_PER_SECOND for gone, back in engine.absences), default=0.0)
    lines = [line for _, line in follower.lines if line["detected_ns"] <= last_ns]
    names = Counter((line["id"], line["update"]) for line in lines)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        reported.problems.append(f"{len(twice)} lines were said twice, first {twice[0]}")
    expired = [line["id"] for line in lines if line["state"] == "expired"]
    if expired:
        reported.problems.append(f"{len(expired)} verdicts expired")
    ours = {(v.verdict_id, v.update): _shown(v.to_line()) for v in wanted}
    theirs = {(line["id"], line["update"]): _shown(line) for line in lines}
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            reported.problems.append(f"{name}: {theirs.get(name)}, must be {ours.get(name)}")
    tables, found = read_tables(engine.data.parent / "undisturbed"), read_tables(engine.data)
    for job in sorted(tables.keys() | found.keys()):
        if text := difference(tables.get(job, {}), found.get(job, {})):
            reported.problems.append(f"{job}: {text}")
    reported.delay_seconds = max(
        (
            (when_ns - engine.back_ns(line["detected_ns"])) / NS_PER_SECOND - _USUAL_DELAY_SECONDS
            for when_ns, line in follower.lines
        ),
        default=0.0,
    )
    if reported.delay_seconds > _MOST_AFTER_RESTART_SECONDS:
        reported.problems.append(f"a verdict came {reported.delay_seconds:.1f} s after the restart")
    reported.said = Counter(v.cause for v in wanted if v.update == 0)


def _shown(line: dict[str, Any]) -> dict[str, Any]:
    kept_fields = ("state", "fault", "cause", "action", "reason", "onset_ns", "detected_ns")
    suspects = [[one["name"], one.get("ranks")] for one in line["suspects"]]
    learned = sorted({one["detector"] for one in line["evidence"]} & LEARNED.keys())
    return {"suspects": suspects, "learned": learned, **{name: line[name] for name in kept_fields}}
