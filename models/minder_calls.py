"""Schedule of Minder's calls and their samples: the last 15 minutes of a job, every 8 minutes.

Calls overlap by 15 - 8 = 7 minutes, more than the 4 of continuity, so a run that one call sees only in part
is whole in the next one. From onset to alert it takes the continuity and up to one distance
between calls. The 3.6 s that the paper reports are the processing of one call, not this delay.

All samples of 15 minutes are kept, 25 kB a machine, as published. Tocsin's own detector keeps levels instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tocsin.models.lstm_vae import FloatArray
from tocsin.models.minder import MinderConfig, MinderModel, Outcome, Samples, detect

_NS_PER_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Call:
    """A call that was made.

    Attributes:
        outcome: its result.
        hosts: host of each row.
        start_ns: time of its first tick, Unix nanoseconds.
        tick_ns: distance between ticks, nanoseconds.
        at_ns: time when it was made.
    """

    outcome: Outcome
    hosts: tuple[str, ...]
    start_ns: int
    tick_ns: int
    at_ns: int

    def time_of(self, tick_index: int) -> int:
        """Return the time of a tick, Unix nanoseconds."""
        return self.start_ns + tick_index * self.tick_ns


class MinderCalls:
    """The recent samples of one job and the calls on them; reads no clock, time comes with the samples.

    Attributes:
        hosts: host of each row, ascending.
        values: float32, shape (hosts, metrics, ticks), NaN = no sample.
        start_ns: time of the first tick, Unix nanoseconds.
        tick_ns: distance between ticks, nanoseconds; 0 before the first sample.
        next_call_ns: time when the next call is due; the first one is one call interval after the first sample.
    """

    def __init__(self, config: MinderConfig, model: MinderModel, metrics: Sequence[str]) -> None:
        """Start without samples.

        Args:
            config: settings of the procedure.
            model: trained model.
            metrics: names of the second axis of all samples.
        """
        self._config, self._model, self._metrics = config, model, tuple(metrics)
        self.next_call_ns = 0
        self._clear(0, 0)

    def _clear(self, start_ns: int, tick_ns: int) -> None:
        """Drop all samples and start a new time grid."""
        self.hosts: list[str] = []
        self.values: FloatArray = np.zeros((0, len(self._metrics), 0), np.float32)
        self.start_ns, self.tick_ns = start_ns, tick_ns

    @property
    def end_ns(self) -> int:
        """Time of the tick after the last one, Unix nanoseconds."""
        return self.start_ns + int(self.values.shape[2]) * self.tick_ns

    def take(self, hosts: Sequence[str], values: FloatArray, start_ns: int, tick_ns: int) -> None:
        """Add the samples of one span; spans come in order, and gaps between them are missing samples.

        All earlier samples are dropped where the span does not fit their grid: another tick distance, a start between
        two of their ticks, one before their first tick, or one more than twice ``pull_seconds`` after it.
        Samples older than ``pull_seconds`` are dropped in any case.

        Args:
            hosts: host of each row, ascending.
            values: shape (hosts, metrics, ticks).
            start_ns: time of the first tick, Unix nanoseconds.
            tick_ns: distance between ticks, nanoseconds.
        """
        if not self.next_call_ns:
            self.next_call_ns = start_ns + round(self._config.call_seconds * _NS_PER_SECOND)
        most = max(self._config.window_ticks, round(self._config.pull_seconds * _NS_PER_SECOND / tick_ns))
        first = (start_ns - self.start_ns) // tick_ns
        if tick_ns != self.tick_ns or (start_ns - self.start_ns) % tick_ns or not 0 <= first < 2 * most:
            self._clear(start_ns, tick_ns)
            first = 0
        names = sorted({*self.hosts, *hosts})
        row = {host: index for index, host in enumerate(names)}
        ticks = max(self.values.shape[2], first + values.shape[2])
        found = np.full((len(names), len(self._metrics), ticks), np.nan, np.float32)
        found[[row[host] for host in self.hosts], :, : self.values.shape[2]] = self.values
        rows = np.array([row[host] for host in hosts], np.intp)
        place = slice(first, first + values.shape[2])
        found[rows, :, place] = np.where(np.isfinite(values), values, found[rows, :, place])
        cut = max(0, ticks - most)
        self.hosts, self.values, self.start_ns = names, found[:, :, cut:], self.start_ns + cut * tick_ns
        if cut:
            self._drop_absent_hosts()

    def _drop_absent_hosts(self) -> None:
        """Drop hosts without a sample in the last 15 minutes; they are no longer part of the job."""
        there = np.isfinite(self.values).any(axis=(1, 2))
        if not there.all():
            self.hosts = [host for host, is_there in zip(self.hosts, there, strict=True) if is_there]
            self.values = self.values[there]

    def due(self, now_ns: int) -> Call | None:
        """Make a call if one is due and return it, else None; after a gap only one call is made."""
        if not self.next_call_ns or now_ns < self.next_call_ns or not self.tick_ns:
            return None
        distance_ns = round(self._config.call_seconds * _NS_PER_SECOND)
        self.next_call_ns += ((now_ns - self.next_call_ns) // distance_ns + 1) * distance_ns
        samples = Samples(self._metrics, self.values, self.tick_ns / _NS_PER_SECOND)
        outcome = detect(samples, self._model, self._config)
        return Call(outcome, tuple(self.hosts), self.start_ns, self.tick_ns, now_ns)
