"""Functions that Flink calls: one packs a window's records, one drives a job's operators."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pyflink.common import Row, Types
from pyflink.datastream import KeyedProcessFunction, RuntimeContext
from pyflink.datastream.state import ListStateDescriptor, MapStateDescriptor
from pyflink.table import DataTypes
from pyflink.table.udf import FunctionContext, ScalarFunction, udf

from tocsin.pipeline.identity.signed import SignatureConfig, SignedRecords
from tocsin.pipeline.runtime.flink.driver import DriverConfig, JobDriver
from tocsin.pipeline.runtime.flink.identity import StreamIdentity
from tocsin.pipeline.runtime.flink.job_metrics import JobMetrics
from tocsin.pipeline.runtime.flink.outputs import Output
from tocsin.pipeline.runtime.flink.pieces import join_pieces, pieces_named, pieces_of
from tocsin.pipeline.runtime.flink.reduce import reduce_and_pack
from tocsin.pipeline.runtime.gc_settings import GC_THRESHOLDS
from tocsin.pipeline.runtime.model_schedule import ModelSchedule

BYTES = Types.PRIMITIVE_ARRAY(Types.BYTE())
OUTPUT_NAMES = ["topic", "k", "v", "h"]
OUTPUT_TYPE = Types.ROW_NAMED(OUTPUT_NAMES, [Types.STRING(), BYTES, BYTES, Types.MAP(Types.STRING(), BYTES)])
_NS_PER_MS = 1_000_000


class PackRecords(ScalarFunction):  # type: ignore[misc]  # pyflink has no types
    """``reduce_and_pack`` as a Flink function that holds the credentials."""

    def __init__(self, signatures: SignatureConfig) -> None:
        """Keep the settings; each worker opens the credentials file."""
        self._signatures = signatures
        self._guard: SignedRecords | None = None
        self._refreshed_second = 0

    def open(self, function_context: FunctionContext) -> None:  # noqa: ARG002  # Flink's signature
        """Open the credentials file in a worker."""
        self._guard = SignedRecords.of_config(self._signatures)

    def eval(
        self,
        values: Sequence[bytes | None],
        origins: Sequence[str | None],
        group: str | None,
        key: str | None,
        end_second: int,
    ) -> bytes:
        """Pack the records of one window."""
        if self._guard is not None and end_second != self._refreshed_second:
            self._refreshed_second = end_second
            self._guard.refresh()
        return reduce_and_pack(values, origins, group, key, end_second, self._guard)


def pack_records(signatures: SignatureConfig) -> Any:
    """Return the SQL function ``pack_records``.

    Its arguments: ARRAY_AGG(v), ARRAY_AGG(origin), metric group, job, end of the window in seconds.
    """
    return udf(PackRecords(signatures), result_type=DataTypes.BYTES())


class FlinkState:
    """A driver's state, stored in Flink's keyed state."""

    def __init__(self, context: RuntimeContext) -> None:
        """Open the state."""
        self._parts = context.get_map_state(MapStateDescriptor("parts", Types.STRING(), BYTES))
        self._journal = context.get_list_state(ListStateDescriptor("journal", BYTES))

    def parts(self) -> dict[str, bytes]:
        """Return the parts of the last snapshot."""
        return join_pieces({name: bytes(data) for name, data in self._parts.items()})

    def journal(self) -> list[bytes]:
        """Return the journal entries since the last snapshot."""
        return [bytes(entry) for entry in self._journal.get() or ()]

    def append(self, entry: bytes) -> None:
        """Append an entry to the journal."""
        self._journal.add(entry)

    def add(self, parts: Mapping[str, bytes]) -> None:
        """Add parts to those of the last snapshot."""
        for name, data in parts.items():
            for piece, content in pieces_of(name, data).items():
                self._parts.put(piece, content)

    def replace(self, changed: Mapping[str, bytes], removed: Sequence[str]) -> None:
        """Replace the changed parts, remove others, and empty the journal."""
        for name in (*changed, *removed):
            self._remove(name)
        self.add(changed)
        self._journal.clear()

    def _remove(self, name: str) -> None:
        """Remove a part with all its pieces."""
        head = self._parts.get(name)
        for piece in pieces_named(name, bytes(head)) if head is not None else ():
            self._parts.remove(piece)

    def clear(self) -> None:
        """Remove all parts and journal entries."""
        self._parts.clear()
        self._journal.clear()


class DriveJob(KeyedProcessFunction):  # type: ignore[misc]  # pyflink has no types
    """Keyed process function that drives jobs.

    Its key is ``cluster/job``; its elements are (key, end of the window in ms, packed records).
    """

    def __init__(self, config: DriverConfig) -> None:
        """Keep the settings; each worker opens its own copy."""
        self._config = config
        self._drivers: dict[str, JobDriver] = {}
        self.identity = StreamIdentity()
        self.models: ModelSchedule | None = None
        """The announced models, shared by all jobs; set before the first element."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Prepare a worker; drivers are created from the state when their jobs' windows arrive."""
        # A window brings some hundred thousand objects that live as long as their slice.
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        self._drivers = {}
        self.identity = StreamIdentity.of_config(self._config.signatures, time.time_ns())
        self._state = FlinkState(runtime_context)
        self.metrics = JobMetrics(runtime_context.get_metrics_group(), lambda: len(self._drivers))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Row]:
        """Process one window of one job."""
        key, end_ms, data = value[0], int(value[1]), bytes(value[2])
        # Every later second's timer follows from the one before.
        ctx.timer_service().register_event_time_timer(end_ms)
        self._driver(key).on_window(end_ms * _NS_PER_MS, data)
        return ()

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Row]:
        """Process a job's seconds up to the watermark, which may be far beyond the timer, and yield the outputs."""
        key = ctx.get_current_key()
        if self.identity.guard is not None:
            self.identity.guard.refresh()
        driver = self._driver(key)
        now_ms = max(timestamp, ctx.timer_service().current_watermark())
        yield from self._rows(driver, driver.on_time(now_ms * _NS_PER_MS))
        if driver.is_idle:
            del self._drivers[key]
            if driver.kept_until_ns:
                ctx.timer_service().register_event_time_timer(driver.kept_until_ns // _NS_PER_MS)
        else:
            ctx.timer_service().register_event_time_timer(driver.next_ns // _NS_PER_MS)

    def _driver(self, key: str) -> JobDriver:
        """Return the driver of a job, created from Flink's state if needed."""
        driver = self._drivers.get(key)
        if driver is None:
            driver = self._drivers[key] = JobDriver(self._config, key.encode(), self._state, self.models, self.identity)
            driver.counters.clear()  # what was worked off again was counted before
            driver.labelled.clear()
        return driver

    def _rows(self, driver: JobDriver, outputs: Sequence[Output]) -> Iterator[Row]:
        """Add the driver's counts to the metrics, and yield its outputs as rows."""
        self.metrics.take(driver)
        for output in outputs:
            yield Row(output.topic, output.key, output.value, output.headers)
