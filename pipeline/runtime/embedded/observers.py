"""Observers of processed slice bundles (metric histories and recorders), and counts of late records."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Final

from tocsin.pipeline.core.slices import SliceBundle
from tocsin.pipeline.detect.align import AlignedHealth
from tocsin.pipeline.runtime.history import HistoryConfig, JobHistory
from tocsin.schemas.records import JobKey, StepBatch
from tocsin.schemas.trouble_log import TroubleLog

MAX_LATE_KEYS: Final = 20_000
"""Maximum number of (job, host) pairs whose late records are counted separately."""
_LOG = logging.getLogger("tocsin.engine")


class Observers:
    """Calls the observers after each slice bundle; an observer that fails affects neither the job nor other observers.

    Attributes:
        counters: number of failures, by kind of observer.
    """

    def __init__(self, config: HistoryConfig | None, counters: Counter[str]) -> None:
        """Start without histories.

        Args:
            config: settings of the histories, None = no histories are kept.
            counters: where failures are counted.
        """
        self._config = config
        self._histories: dict[JobKey, JobHistory] = {}
        self._troubles = TroubleLog(_LOG)
        self.counters = counters

    def begin(self, job: JobKey) -> None:
        """Start a new history for a job."""
        if self._config is not None:
            self._histories[job] = JobHistory(self._config)

    def history(self, job: JobKey) -> JobHistory | None:
        """Return the recent metrics of a job, None if none are kept."""
        return self._histories.get(job)

    def forget(self, known: Collection[JobKey]) -> None:
        """Drop the histories of all jobs that are not in ``known``."""
        for job in [job for job in self._histories if job not in known]:
            del self._histories[job]

    def on_bundle(
        self, bundle: SliceBundle, health: Sequence[AlignedHealth], taps: Sequence[Callable[[SliceBundle], None]] = ()
    ) -> None:
        """Add a slice bundle to its job's history, and pass it to the taps (observer functions)."""
        try:
            history = self._histories.get(bundle.job)
            if history is not None:
                history.take_steps([record for record in bundle.fast.records if isinstance(record, StepBatch)])
                history.take_health(health)
        except Exception:  # noqa: BLE001  # supervising: evidence is not worth a verdict
            self._troubles.exception("history failed", job=bundle.job.job_id)
            self.counters["history_failed"] += 1
            self.begin(bundle.job)
        for tap in list(taps):
            try:
                tap(bundle)
            except Exception:  # noqa: BLE001  # supervising: a recording is not worth a verdict
                self._troubles.exception("tap failed", job=bundle.job.job_id)
                self.counters["tap_failed"] += 1


def count_late(
    late: Counter[tuple[JobKey, str]], job: JobKey, host: str, known: Callable[[], Collection[JobKey]]
) -> bool:
    """Count a late record by job and host; return False if too many pairs are counted already.

    Args:
        late: the counts.
        job: job of the record.
        host: host of the record.
        known: returns the jobs whose counts must be kept when space is needed.
    """
    if (job, host) not in late and len(late) >= MAX_LATE_KEYS:
        jobs = known()
        for old in [old for old in late if old[0] not in jobs]:
            del late[old]
        if len(late) >= MAX_LATE_KEYS:
            return False
    late[job, host] += 1
    return True
