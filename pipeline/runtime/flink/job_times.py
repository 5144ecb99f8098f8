"""What one job's attempts spent their wall time on, as messages: the ledger of the embedded engine, driven by one job.

The ledger needs each slice of the job and each verdict line of the same second, in the order in which the operators
took and gave them. Only the driver has both. So it runs there, and its rows are those of the embedded engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tocsin.pipeline.core.slices import SliceBundle
from tocsin.pipeline.incidents.ettr.ledger import EttrConfig, EttrLedger
from tocsin.pipeline.runtime.flink.outputs import Output
from tocsin.pipeline.stores.attempt_start_codec import attempt_start_key, encode_attempt_start
from tocsin.pipeline.stores.attempt_time_codec import attempt_time_key, encode_attempt_time
from tocsin.schemas.kafka.topics import ETTR
from tocsin.schemas.records import NS_PER_SECOND, Slice
from tocsin.schemas.verdicts import Verdict

PREFIX: Final = "times/"
"""Prefix of the names of these parts in a driver's state."""


class JobTimes:
    """The ledger of one job, all its attempts; it outlives the job's operators, for the attempt that may follow."""

    def __init__(self) -> None:
        """Start without attempts."""
        self._config = EttrConfig()
        self._ledger = EttrLedger(self._config)
        self._slices: list[Slice] = []
        self._tick_ns = 0

    def tap(self, bundle: SliceBundle) -> None:
        """Keep the slice of a second that the operators took, until ``on_output``; add it to the engine's taps."""
        self._slices.append(bundle.fast)

    def on_output(self, verdicts: Sequence[Verdict], tick_ns: int) -> list[Output]:
        """Return the accounts that are due after one second.

        Args:
            verdicts: the lines of this second.
            tick_ns: the engine's time.
        """
        if tick_ns - self._tick_ns != NS_PER_SECOND:
            self._ledger.on_time(tick_ns - NS_PER_SECOND)  # no news: it passes the minutes for which nothing was due
        self._tick_ns = tick_ns
        slices, self._slices = self._slices, []
        for data in slices:
            self._ledger.on_slice(data)
        self._ledger.on_verdicts(verdicts, tick_ns)
        told = self._ledger.on_time(tick_ns)
        starts = self._ledger.starts_on_time(tick_ns)
        return [
            *(Output(ETTR, attempt_time_key(one), encode_attempt_time(one), {}) for one in told),
            *(Output(ETTR, attempt_start_key(one), encode_attempt_start(one), {}) for one in starts),
        ]

    def is_settled(self, tick_ns: int) -> bool:
        """Return whether nothing is told any more without new records."""
        return self._ledger.is_settled(tick_ns)

    @property
    def kept_until_ns(self) -> int:
        """When the accounts are forgotten unless the job is heard again, 0 = there are none."""
        last_ns = self._ledger.last_sign_ns
        return last_ns + self._config.forget_ns if last_ns else 0

    def snapshot(self) -> dict[str, bytes]:
        """Return the state as named parts, none where there are no attempts."""
        if not self._ledger.last_sign_ns:
            return {}
        return {f"{PREFIX}{name}": data for name, data in self._ledger.snapshot().items()}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace the state by a snapshot's; a driver's other parts are left alone.

        Raises:
            SnapshotError: the part is damaged or of another version.
        """
        own = {name.removeprefix(PREFIX): data for name, data in parts.items() if name.startswith(PREFIX)}
        if own:
            self._ledger.restore(own)
