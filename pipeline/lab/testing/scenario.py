"""Timeline scenarios for tests: ``at(20).inject(freeze, 3)``, ``want(between(20, 26), …)``, ``want_nothing()``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tocsin.pipeline.incidents.transitions import LifeCheck
from tocsin.pipeline.lab.testing.fake_job import FakeJob
from tocsin.pipeline.lab.testing.job_shape import JobShape
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.schemas.records import NS_PER_SECOND, JobRecord
from tocsin.schemas.verdicts import FaultKind, Verdict, VerdictState
from tocsin.schemas.wire.codec import encode


@dataclass(frozen=True, slots=True)
class Between:
    """A span of scenario time, both ends included.

    Attributes:
        from_seconds: begin of the span since the scenario's start.
        to_seconds: end of the span since the scenario's start.
    """

    from_seconds: float
    to_seconds: float


def between(from_seconds: float, to_seconds: float) -> Between:
    """Return a span of scenario time, both ends included."""
    return Between(from_seconds, to_seconds)


@dataclass(slots=True)
class _At:
    """A time of the scenario, at which faults can be injected."""

    scenario: Scenario
    seconds: float

    def inject(self, fault: Callable[..., None], *args: object, **named: object) -> Scenario:
        """Plan a call of a fault method of the job (``job.freeze`` …) at this time; return the scenario."""
        self.scenario.plan.append((self.seconds, lambda: fault(*args, **named)))
        return self.scenario


@dataclass(slots=True)
class _Want:
    """A wanted verdict: its fields, and the span in which it must appear."""

    span: Between
    named: dict[str, object]


@dataclass(slots=True)
class Scenario:
    """One fake job, faults at planned times, and the verdicts that must (not) follow.

    Attributes:
        shape: settings of the job.
        engine_config: settings of the engine under test.
        followers: functions that are given each second's records and verdict lines, and its end in Unix nanoseconds.
    """

    shape: JobShape = field(default_factory=JobShape)
    engine_config: EngineConfig = field(default_factory=EngineConfig)
    followers: list[Callable[[Sequence[JobRecord], Sequence[Verdict], int], None]] = field(default_factory=list)
    plan: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    wants: list[_Want] = field(default_factory=list)
    job: FakeJob = field(init=False)
    verdicts: list[Verdict] = field(init=False, default_factory=list)
    engine: EmbeddedEngine = field(init=False)

    def __post_init__(self) -> None:
        """Create the job and the engine."""
        self.job = FakeJob(self.shape)
        self.engine = EmbeddedEngine(self.engine_config)

    def at(self, seconds: float) -> _At:
        """Return this time of the scenario, for ``inject``."""
        return _At(self, seconds)

    def want(self, span: Between, **named: object) -> Scenario:
        """Require that a verdict with these fields opens or changes in the span; return the scenario.

        ``suspects`` is a list of host names; the other fields are compared with ``Verdict.to_line``.
        """
        self.wants.append(_Want(span, named))
        return self

    def run(self, seconds: int) -> Scenario:
        """Run the job and the engine for this many seconds; return the scenario.

        Raises:
            AssertionError: a verdict line is no transition that a verdict's life allows.
        """
        plan = sorted(self.plan, key=lambda entry: entry[0])
        start_ns = self.shape.start_ns
        for _ in range(seconds):
            now = (self.job.now_ns - start_ns) / NS_PER_SECOND
            while plan and plan[0][0] <= now:
                plan.pop(0)[1]()
            records = list(self.job.second())
            for record in records:
                self.engine.take(encode(record))
            lines = self.engine.tick(self.job.now_ns).verdicts
            self.verdicts.extend(lines)
            for follower in self.followers:
                follower(records, lines, self.job.now_ns)
        for extra in (1, 2):
            self.verdicts.extend(self.engine.tick(self.job.now_ns + extra * NS_PER_SECOND).verdicts)
        if wrong := LifeCheck().see_all(self.verdicts):
            raise AssertionError("\n".join([*wrong, self.reported()]))
        return self

    def check(self, *, taken_back: bool = False) -> None:
        """Check that every wanted verdict appeared and that nobody else was accused.

        Args:
            taken_back: whether accusations of others that were cancelled later are allowed.

        Raises:
            AssertionError: the check failed.
        """
        for want in self.wants:
            found = [v for v in self.verdicts if self._fits(v, want)]
            if not found:
                span = f"{want.span.from_seconds} and {want.span.to_seconds} s"
                raise AssertionError(f"wanted {want.named} between {span}, got:\n{self.reported()}")
        named = {name for want in self.wants for name in _names(want.named.get("suspects", ()))}
        for verdict in self.final() if taken_back else self.verdicts:
            for suspect in verdict.suspects:
                if suspect.component.name not in named:
                    raise AssertionError(f"{suspect.component.name} was accused:\n{self.reported()}")

    def want_nothing(self, seconds: int) -> Scenario:
        """Run for this many seconds and require that no verdict appears; return the scenario."""
        self.run(seconds)
        if self.verdicts:
            raise AssertionError(f"wanted nothing, got:\n{self.reported()}")
        return self

    def final(self) -> list[Verdict]:
        """Return the last update of each verdict that was not cancelled."""
        last = {verdict.verdict_id: verdict for verdict in self.verdicts}
        return [verdict for verdict in last.values() if verdict.state is not VerdictState.CANCELLED]

    def reported(self) -> str:
        """Return all verdicts as text, for a failing test."""
        lines = [
            f"  {(v.detected_ns - self.shape.start_ns) / 1e9:6.1f} s {v.state.value:9} {v.fault.value:9} {v.cause:18} "
            f"{[s.component.name for s in v.suspects]} {v.action.value} {v.reason}: "
            + "; ".join(e.text for e in v.evidence)
            for v in self.verdicts
        ]
        return "\n".join(lines) or "  nothing"

    def _fits(self, verdict: Verdict, want: _Want) -> bool:
        """Return whether a verdict has the wanted fields and time."""
        seconds = (verdict.detected_ns - self.shape.start_ns) / NS_PER_SECOND
        if not want.span.from_seconds <= seconds <= want.span.to_seconds:
            return False
        line = verdict.to_line()
        line["suspects"] = [suspect["name"] for suspect in line["suspects"]]
        return all(line.get(key) == value for key, value in want.named.items())

    def accused_names(self) -> list[str]:
        """Return the names of the suspects of all last updates; a ``degraded`` fault accuses nobody."""
        return [
            suspect.component.name
            for verdict in self.final()
            if verdict.fault is not FaultKind.DEGRADED
            for suspect in verdict.suspects
        ]


def _names(suspects: object) -> Sequence[str]:
    """Return the names in a wanted list of suspects."""
    return [str(name) for name in suspects] if isinstance(suspects, list | tuple) else []
