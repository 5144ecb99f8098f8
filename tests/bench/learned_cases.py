"""One case of ``make bench ARGS=learned``: the engine's verdicts with learned detectors, and their own anomalies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tocsin.pipeline.detect.learned.registry import LEARNED, learned_config
from tocsin.pipeline.lab.backtest.runner import Opinion
from tocsin.pipeline.lab.backtest.trial import judge
from tocsin.pipeline.lab.simulation.case import draw_case
from tocsin.pipeline.recording.reader import read_recording
from tocsin.pipeline.recording.replay import ReplayConfig, seconds_with_models
from tocsin.pipeline.recording.score import machine_days_of
from tocsin.pipeline.recording.tables import Recording
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig, played
from tocsin.pipeline.runtime.job_pipeline import JobConfig
from tocsin.schemas.errors import SchemaError
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import ComponentKind, Verdict

WITHOUT, EVIDENCE = "without", "evidence of all"


@dataclass(frozen=True, slots=True)
class Said:
    """What one detector's anomalies say of one case.

    Attributes:
        detector: its name.
        after_seconds: from the onset until it first names a machine at fault, None = never.
        others: healthy machines that it names.
    """

    detector: str
    after_seconds: float | None
    others: int


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Whom the engine's verdicts accuse in one case.

    Attributes:
        way: which learned detectors run, in which mode.
        delay_seconds: from the onset of the fault until the first verdict that accuses its machine, None = never.
        false_count: accusations that hit no fault.
        ever_wrong_count: machines that were ever accused without a fault, also where it was taken back.
    """

    way: str
    delay_seconds: float | None
    false_count: int
    ever_wrong_count: int


@dataclass(frozen=True, slots=True)
class Judged:
    """One case under all ways.

    Attributes:
        order: name of the case, unique in the bench.
        fault: the kind of the fault, "" in a healthy case.
        machine_days: machines times days.
        verdicts: one for each way.
        said: one for each detector.
    """

    order: str
    fault: str
    machine_days: float
    verdicts: tuple[Verdicts, ...]
    said: tuple[Said, ...]

    def to_object(self) -> dict[str, Any]:
        """As it stands in the file of results."""
        return asdict(self)

    @classmethod
    def from_object(cls, own: Mapping[str, Any]) -> Judged:
        """What ``to_object`` returned."""
        verdicts, said = (tuple(kind(**one) for one in own[name]) for name, kind in _PARTS)
        return cls(own["order"], own["fault"], own["machine_days"], verdicts, said)


_PARTS: tuple[tuple[str, Any], ...] = (("verdicts", Verdicts), ("said", Said))


@dataclass(frozen=True, slots=True)
class Order:
    """A case to judge; crosses to a process.

    Attributes:
        group: which of the sets of cases.
        name: of the case in the set.
        folder: of its recording, None: it is drawn.
        seed: of a drawn case of the ``held`` half.
        kind: as ``draw_case`` takes it.
        hosts: range of machines of a drawn case.
        duration_seconds: of a drawn case, None: drawn, too.
    """

    group: str
    name: str
    folder: Path | None = None
    seed: int = 0
    kind: str | None = None
    hosts: tuple[int, int] = (0, 0)
    duration_seconds: float | None = None

    @property
    def key(self) -> str:
        """Name in the file of results."""
        return f"{self.group} {self.name}"

    def recording(self) -> Recording:
        """The recording."""
        if self.folder is not None:
            return read_recording(self.folder)
        return draw_case(self.seed, self.hosts, self.kind, "held", duration_seconds=self.duration_seconds).recording()


class LearnedRunner:
    """A replay with learned detectors in these modes, which remembers whom each of them names, and when."""

    def __init__(self, name: str, modes: Sequence[str]) -> None:
        self.name = name
        self._modes = modes
        self.named_ns: dict[tuple[str, str], int] = {}
        """(detector, host) -> when it was first named."""

    def judge(self, recording: Recording) -> Opinion:
        """The verdict lines."""
        config = EngineConfig(history=None, job=JobConfig(learned=learned_config(self._modes)))
        engine, lines = EmbeddedEngine(played(config)), list[Verdict]()
        for tick_ns, records in seconds_with_models(recording, ReplayConfig(config)):
            for record in records:
                try:
                    engine.take_record(record)
                except SchemaError:
                    continue
            found = engine.tick(tick_ns)
            lines += found.verdicts
            for anomaly in found.anomalies:
                if anomaly.detector in LEARNED and anomaly.component.kind is ComponentKind.HOST:
                    self.named_ns.setdefault((anomaly.detector, anomaly.component.name), tick_ns)
        return Opinion(tuple(line.to_line() for line in lines), None)


def judge_case(order: Order) -> Judged:
    """Judge one case in all ways.

    A detector that names nobody cannot accuse, so that its ``accuse`` says what the engine says without it, and is not
    replayed.
    """
    recording = order.recording()
    evidence = LearnedRunner(EVIDENCE, [f"{name}=evidence" for name in LEARNED])
    runners = [LearnedRunner(WITHOUT, ()), evidence]
    found = [_verdicts(recording, runner) for runner in runners]
    speaking = {detector for detector, _ in evidence.named_ns}
    for name in LEARNED:
        way = f"{name}=accuse"
        if name in speaking:
            found.append(_verdicts(recording, LearnedRunner(way, [way])))
        else:
            found.append(Verdicts(way, found[0].delay_seconds, found[0].false_count, found[0].ever_wrong_count))
    faults = (recording.truth or {"faults": []})["faults"]
    kind = str(faults[0]["kind"]) if faults else ""
    return Judged(order.key, kind, machine_days_of(recording), tuple(found), tuple(_said(recording, evidence)))


def _verdicts(recording: Recording, runner: LearnedRunner) -> Verdicts:
    """What the verdicts of one replay say."""
    [answer] = judge(recording, [runner]).answers
    score = answer.score
    assert score is not None, "a case without a truth"
    delays = [fault.delay_seconds for fault in score.faults if fault.delay_seconds is not None]
    return Verdicts(runner.name, min(delays, default=None), score.false_count, len(score.ever_wrong))


def _said(recording: Recording, runner: LearnedRunner) -> Iterator[Said]:
    """What each detector's anomalies say of a case."""
    faults = (recording.truth or {"faults": []})["faults"]
    hosts = {suspect["name"] for fault in faults for suspect in fault["suspects"]}
    onset_ns = min((int(fault["onset_ns"]) for fault in faults), default=0)
    for name in LEARNED:
        named = {host: at for (detector, host), at in runner.named_ns.items() if detector == name}
        at_ns = min((at for host, at in named.items() if host in hosts and at >= onset_ns), default=None)
        after = None if at_ns is None else (at_ns - onset_ns) / NS_PER_SECOND
        yield Said(name, after, len(named.keys() - hosts))
