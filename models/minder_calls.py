"""When Minder looks, and at what: the last 15 minutes of a job, every 8 minutes.

15 - 8 = 7 minutes of overlap are more than the 4 of continuity: a run that one call sees only the
begin of is whole in the next one. From onset to alert it takes the continuity and up to one distance
of calls; the 3.6 s that the paper reports are the processing of one call, not this.

What is kept is every sample of 15 minutes, 25 kB a machine. That is the published way; tocsin's own
detector keeps levels.
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
    """One call that was made.

    Attributes:
        outcome: what it says.
        hosts: machine of each row.
        start_ns: time of its first tick.
        tick_ns: distance of ticks.
        at_ns: when it was made.
    """

    outcome: Outcome
    hosts: tuple[str, ...]
    start_ns: int
    tick_ns: int
    at_ns: int

    def time_of(self, tick_index: int) -> int:
        """Time of a tick."""
        return self.start_ns + tick_index * self.tick_ns


class MinderCalls:
    """One job's samples, and the calls on them. Reads no clock: time comes with the samples.

    Attributes:
        hosts: machine of each row, ascending.
        values: float32, shape (hosts, metrics, ticks), NaN = no sample.
        start_ns: time of the first tick.
        tick_ns: distance of ticks, 0: none yet.
        next_call_ns: when the next call is due; the first one a call's distance after the first sample.
    """

    def __init__(self, config: MinderConfig, model: MinderModel, metrics: Sequence[str]) -> None:
        """Nothing seen yet.

        Args:
            config: settings.
            model: what was trained.
            metrics: names of the second axis of all that is taken.
        """
        self._config, self._model, self._metrics = config, model, tuple(metrics)
        self.next_call_ns = 0
        self._clear(0, 0)

    def _clear(self, start_ns: int, tick_ns: int) -> None:
        self.hosts: list[str] = []
        self.values: FloatArray = np.zeros((0, len(self._metrics), 0), np.float32)
        self.start_ns, self.tick_ns = start_ns, tick_ns

    @property
    def end_ns(self) -> int:
        """Time of the first tick that is not there yet."""
        return self.start_ns + int(self.values.shape[2]) * self.tick_ns

    def take(self, hosts: Sequence[str], values: FloatArray, start_ns: int, tick_ns: int) -> None:
        """Take the samples of one span; spans come in order, what is between them is missing.

        Another distance of ticks than before begins anew: the two cannot stand on one grid.

        Args:
            hosts: ascending.
            values: shape (hosts, metrics, ticks).
            start_ns: time of the first tick.
            tick_ns: distance of ticks.
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
            self._drop_the_gone()

    def _drop_the_gone(self) -> None:
        """A machine without a sample in the last 15 minutes is no part of the job any more."""
        there = np.isfinite(self.values).any(axis=(1, 2))
        if not there.all():
            self.hosts = [host for host, is_there in zip(self.hosts, there, strict=True) if is_there]
            self.values = self.values[there]

    def due(self, now_ns: int) -> Call | None:
        """Make a call if one is due, else None; after a silence one call, not all that were missed."""
        if not self.next_call_ns or now_ns < self.next_call_ns or not self.tick_ns:
            return None
        distance_ns = round(self._config.call_seconds * _NS_PER_SECOND)
        self.next_call_ns += ((now_ns - self.next_call_ns) // distance_ns + 1) * distance_ns
        samples = Samples(self._metrics, self.values, self.tick_ns / _NS_PER_SECOND)
        outcome = detect(samples, self._model, self._config)
        return Call(outcome, tuple(self.hosts), self.start_ns, self.tick_ns, now_ns)
