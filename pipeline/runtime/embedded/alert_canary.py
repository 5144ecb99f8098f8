"""The canary of the alerts: a small job with a known fault, judged again and again, and a look at the engine's work.

A watchdog that only says "the process lives" is silent about an engine that lives and judges nothing. So the watchdog's
notice is sent only after a canary has come through.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Final

from tocsin.pipeline.runtime.embedded.engine import OPERATOR_FAILED, EmbeddedEngine, EngineConfig
from tocsin.schemas import events
from tocsin.schemas.job_key import CANARY_JOB_ID, OWN_CLUSTER
from tocsin.schemas.reasons import NamedReason
from tocsin.schemas.records import (
    NS_PER_SECOND,
    CommGroup,
    Event,
    EventSource,
    GroupKind,
    Groups,
    HostStatus,
    JobKey,
    JobRecord,
    RankPlace,
    Severity,
    StepBatch,
    StepRecord,
    Topology,
)
from tocsin.schemas.verdicts import FaultKind, Verdict, VerdictState
from tocsin.schemas.wire.codec import encode

CANARY_JOB: Final = JobKey(OWN_CLUSTER, CANARY_JOB_ID)
_RANKS: Final = 4
_GUILTY: Final = 1
_STRIKE_SECOND: Final = 5
_LAST_SECOND: Final = 30
_MS: Final = NS_PER_SECOND // 1000


class CanaryReason(NamedReason):
    """Why the watchdog's notice is withheld."""

    NOT_JUDGED = "not_judged", "The canary's fault was not confirmed within its time."
    WRONG_HOST = "wrong_host", "The canary's fault was laid on another host, or another fault was seen."
    RAISED = "raised", "The operators raised while they judged the canary."
    ENGINE_STUCK = "engine_stuck", "Records arrive, and the engine works none of them off."
    LISTENER_SILENT = "listener_silent", "The engine's listener answers no knock: no agent can tell it anything."
    ENGINE_FAILS = "engine_fails", "The operators raise in each slice of each job."


class AlertCanary:
    """A job of four ranks in an engine of its own, of which one ends by a signal in each round.

    The records are encoded, decoded, cut into slices and judged by the operators and settings of the real jobs.

    Attributes:
        trouble: why the last round failed, None if it came through or none has ended yet.
        passed_ns: when a round last came through, 0 for never.
    """

    def __init__(self, config: EngineConfig, every_seconds: float) -> None:
        """Prepare the first round.

        Args:
            config: settings of the real engine.
            every_seconds: distance of the beginnings of two rounds.
        """
        self._config = config
        self._every_ns = int(every_seconds * NS_PER_SECOND)
        self._engine: EmbeddedEngine | None = None
        self._begin_ns = 0
        self._newest_ns = 0
        self.trouble: CanaryReason | None = None
        self.passed_ns = 0

    def on_second(self, now_ns: int) -> bool:
        """Go on by one tick; return whether a round came through in it.

        Args:
            now_ns: the tick; a tick that is far from the last one begins a new round.
        """
        is_gap = not 0 < now_ns - self._newest_ns <= 5 * NS_PER_SECOND
        self._newest_ns = now_ns
        if self._engine is None or is_gap:
            if not is_gap and now_ns - self._begin_ns < self._every_ns:
                return False
            self._engine, self._begin_ns = EmbeddedEngine(self._config), now_ns
            self._engine.begin(now_ns)
            return False
        second = (now_ns - self._begin_ns) // NS_PER_SECOND
        try:
            verdicts = self._judged(self._engine, now_ns, int(second))
        except Exception:  # noqa: BLE001  # the canary is there to find what raises
            return self._ended(CanaryReason.RAISED)
        confirmed = [one for one in verdicts if one.state is VerdictState.CONFIRMED]
        if confirmed:
            return self._ended(None if all(map(_is_right, confirmed)) else CanaryReason.WRONG_HOST)
        return self._ended(CanaryReason.NOT_JUDGED) if second >= _LAST_SECOND else False

    def _judged(self, engine: EmbeddedEngine, now_ns: int, second: int) -> tuple[Verdict, ...]:
        """Give the canary's engine the records of one second, and return the verdict lines."""
        for record in _records(now_ns, second):
            engine.take(encode(record))
        output = engine.tick(now_ns)
        if output.failures:
            raise RuntimeError(output.failures[0].text)
        return output.verdicts

    def _ended(self, trouble: CanaryReason | None) -> bool:
        """Note how a round ended; return whether it came through."""
        self._engine = None
        self.trouble = trouble
        if trouble is None:
            self.passed_ns = self._newest_ns
        return trouble is None


class EngineWatch:
    """Sees from the engine's counters whether it works off what it takes."""

    def __init__(self, counters: Mapping[str, int]) -> None:
        """Start with the present counts.

        Args:
            counters: counters of the real engine.
        """
        self._counters = counters
        self._samples: list[tuple[int, int, int]] = [self._sample()]

    def look(self) -> CanaryReason | None:
        """Return what is wrong since the last two calls, None for nothing."""
        self._samples = [*self._samples[-2:], self._sample()]
        if len(self._samples) < 3:  # records of the last interval may still wait for their slice
            return None
        (old_records, old_turns, old_failures), (records, _, _), (_, turns, failures) = self._samples
        if records > old_records and turns == old_turns:
            return CanaryReason.ENGINE_STUCK
        return CanaryReason.ENGINE_FAILS if failures - old_failures >= turns - old_turns > 0 else None

    def _sample(self) -> tuple[int, int, int]:
        """Return how many records were taken, slices worked off, and slices failed."""
        return self._counters["records_ok"], self._counters["turns"], self._counters[OPERATOR_FAILED]


def _is_not_canarys(line: logging.LogRecord) -> bool:
    """Return whether a line of the log is about a real job: each round would say that a job appeared."""
    fields = line.__dict__
    return (fields.get("cluster"), fields.get("job")) != (CANARY_JOB.cluster, CANARY_JOB.job_id)


logging.getLogger("tocsin.engine").addFilter(_is_not_canarys)


def _is_right(verdict: Verdict) -> bool:
    """Return whether a verdict names the canary's fault and host."""
    names = [one.component.name for one in verdict.suspects]
    return verdict.fault is FaultKind.FAIL_STOP and names == [_host(_GUILTY)]


def _host(rank: int) -> str:
    """Return the host of a rank of the canary."""
    return f"canary-{rank}"


def _records(now_ns: int, second: int) -> Iterator[JobRecord]:
    """Yield what the canary's agents send in one second: healthy steps, then one rank ends and takes the others along.

    Args:
        now_ns: end of the second.
        second: which one, from 1.
    """
    everyone = tuple(range(_RANKS))
    for rank in everyone:
        host, stamp = _host(rank), now_ns - _MS
        if second == 1:
            place = RankPlace(rank, host, world_size=_RANKS, pid=100 + rank)
            yield Topology(CANARY_JOB, host, stamp, (place,))
            yield Groups(CANARY_JOB, host, stamp, (CommGroup("0/world", GroupKind.WORLD, everyone),))
        if second < _STRIKE_SECOND:
            steps = (StepRecord(stamp, rank, second, 1.0, 0.05, 0.35, 0.5, 0.09, 0.01),)
            yield StepBatch(CANARY_JOB, host, stamp, steps)
        elif second == _STRIKE_SECOND:
            yield _exit(rank, now_ns)
        yield HostStatus(CANARY_JOB, host, stamp, 0, _MS, (rank,), hook_present=True, dropped_count=0, spooled_count=0)


def _exit(rank: int, now_ns: int) -> Event:
    """Return the end of a rank: the guilty one by a signal, the others a moment later by their lost connection."""
    is_guilty = rank == _GUILTY
    payload: dict[str, object] = (
        {"code": 0, "signal": 9, "stderr_tail": ""}
        if is_guilty
        else {"code": 1, "signal": 0, "stderr_tail": "RuntimeError: Connection reset by peer"}
    )
    at_ns = now_ns - (500 if is_guilty else 400) * _MS
    return Event(CANARY_JOB, _host(rank), at_ns, rank, EventSource.PROCESS, events.EXIT, Severity.ERROR, payload)
