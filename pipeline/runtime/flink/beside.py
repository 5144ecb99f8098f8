"""All that one job's driver says beside verdicts: reports, and what its attempts spent their wall time on.

A failure in one of the two costs neither a verdict nor the other one.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Final

from tocsin.pipeline.core.slices import SliceBundle
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine
from tocsin.pipeline.runtime.embedded.engine_output import EngineOutput
from tocsin.pipeline.runtime.flink.identity import StreamIdentity
from tocsin.pipeline.runtime.flink.job_times import PREFIX as TIMES_PREFIX
from tocsin.pipeline.runtime.flink.job_times import JobTimes
from tocsin.pipeline.runtime.flink.outputs import Output
from tocsin.pipeline.runtime.flink.reports import JobReports

_LOG = logging.getLogger("tocsin.flink")
REPORTS_FAILED: Final = "reports_failed"


class BesideVerdicts:
    """The reports and the times of one job; each begins without a past where it raises."""

    def __init__(self, name: str, identity: StreamIdentity, counters: Counter[str]) -> None:
        """Start without a past.

        Args:
            name: the job, for the log.
            identity: signs the messages.
            counters: failures are counted here as ``REPORTS_FAILED``.
        """
        self._name = name
        self._identity = identity
        self._counters = counters
        self._reports = JobReports()
        self._times = JobTimes()

    def tap(self, bundle: SliceBundle) -> None:
        """Take what the operators took of one second; add it to the engine's taps."""
        self._times.tap(bundle)

    def on_output(self, engine: EmbeddedEngine, output: EngineOutput, tick_ns: int) -> list[Output]:
        """Return the signed messages that follow from one second.

        Args:
            engine: the engine, after this second.
            output: its output.
            tick_ns: the engine's time.
        """
        said = self._guarded(lambda: self._reports.on_output(engine, output, tick_ns))
        if said is None:
            self._reports = JobReports()
        times = self._guarded(lambda: self._times.on_output(output.verdicts, tick_ns))
        if times is None:
            self._times = JobTimes()
        return [*(said or ()), *(times or ())]

    def _guarded(self, work: Callable[[], list[Output]]) -> list[Output] | None:
        """Return the messages that a part makes, signed; None: it raised."""
        try:
            return [self._identity.signed(one) for one in work()]
        except Exception:  # noqa: BLE001  # supervising: evidence is not worth a verdict
            _LOG.exception("reports failed", extra={"key": self._name})
            self._counters[REPORTS_FAILED] += 1
            return None

    def is_settled(self, tick_ns: int) -> bool:
        """Return whether nothing is told any more of a job that the engine forgot."""
        return self._times.is_settled(tick_ns)

    @property
    def kept_until_ns(self) -> int:
        """How long the state of a job is kept that the engine forgot, 0 = there is none."""
        return self._times.kept_until_ns

    def forget(self) -> None:
        """Drop the state."""
        self._reports, self._times = JobReports(), JobTimes()

    def kept(self) -> dict[str, bytes]:
        """Return the parts that outlive the job's operators."""
        return self._times.snapshot()

    def snapshot(self, engine: EmbeddedEngine, known: Collection[str] = ()) -> dict[str, bytes]:
        """Return the state as named parts.

        Args:
            engine: has the histories, and the counts of late records.
            known: names of parts that the caller has; of these, unchanged ones may be ``UNCHANGED``.
        """
        return {**self._reports.snapshot(engine, known), **self._times.snapshot()}

    def restore(self, engine: EmbeddedEngine, parts: Mapping[str, bytes]) -> None:
        """Replace the state, and the engine's with it, by the parts that ``snapshot`` or ``kept`` returned.

        Args:
            engine: the engine, without state.
            parts: the driver's parts.

        Raises:
            SnapshotError: a part is damaged or of another version.
        """
        if any(not name.startswith(TIMES_PREFIX) for name in parts):
            engine.restore(parts)
            self._reports.restore(engine, parts)
        self._times.restore(parts)
