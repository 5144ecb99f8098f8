"""What Flink calls: the window's packing, and a keyed process function that drives one job's operators."""

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
    """``reduce_and_pack`` with the file of credentials open."""

    def __init__(self, signatures: SignatureConfig) -> None:
        """Keep the settings; a worker opens the file."""
        self._signatures = signatures
        self._guard: SignedRecords | None = None
        self._refreshed_second = 0

    def open(self, function_context: FunctionContext) -> None:  # noqa: ARG002  # Flink's signature
        """Open the file in a worker."""
        self._guard = SignedRecords.of_config(self._signatures)

    def eval(
        self,
        values: Sequence[bytes | None],
        origins: Sequence[str | None],
        group: str | None,
        key: str | None,
        end_second: int,
    ) -> bytes:
        """Pack one window."""
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
    """A driver's state as Flink's keyed state."""

    def __init__(self, context: RuntimeContext) -> None:
        """Open it."""
        self._parts = context.get_map_state(MapStateDescriptor("parts", Types.STRING(), BYTES))
        self._journal = context.get_list_state(ListStateDescriptor("journal", BYTES))

    def parts(self) -> dict[str, bytes]:
        """Return the parts of the last snapshot."""
        return join_pieces({name: bytes(data) for name, data in self._parts.items()})

    def journal(self) -> list[bytes]:
        """Return what came since."""
        return [bytes(entry) for entry in self._journal.get() or ()]

    def append(self, entry: bytes) -> None:
        """Add to the journal."""
        self._journal.add(entry)

    def add(self, parts: Mapping[str, bytes]) -> None:
        """Put new parts beside those of the last snapshot."""
        for name, data in parts.items():
            for piece, content in pieces_of(name, data).items():
                self._parts.put(piece, content)

    def replace(self, changed: Mapping[str, bytes], removed: Sequence[str]) -> None:
        """Put parts in place of older ones and begin a new journal."""
        for name in (*changed, *removed):
            self._remove(name)
        self.add(changed)
        self._journal.clear()

    def _remove(self, name: str) -> None:
        head = self._parts.get(name)
        for piece in pieces_named(name, bytes(head)) if head is not None else ():
            self._parts.remove(piece)

    def clear(self) -> None:
        """Forget everything."""
        self._parts.clear()
        self._journal.clear()


class DriveJob(KeyedProcessFunction):  # type: ignore[misc]  # pyflink has no types
    """Keyed by ``cluster/job``; elements are (key, window's end in ms, packed records)."""

    def __init__(self, config: DriverConfig) -> None:
        """Keep the settings; a worker opens its own copy."""
        self._config = config
        self._drivers: dict[str, JobDriver] = {}
        self.identity = StreamIdentity()
        self.models: ModelSchedule | None = None
        """What is announced to all jobs; set before the first element."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Begin in a worker: drivers come from the state as their jobs' windows do."""
        # A window brings some hundred thousand objects that live as long as their slice.
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        self._drivers = {}
        self.identity = StreamIdentity.of_config(self._config.signatures, time.time_ns())
        self._state = FlinkState(runtime_context)
        self.metrics = JobMetrics(runtime_context.get_metrics_group(), lambda: len(self._drivers))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Row]:
        """Take one window of one job."""
        key, end_ms, data = value[0], int(value[1]), bytes(value[2])
        # Every later second's timer follows from the one before.
        ctx.timer_service().register_event_time_timer(end_ms)
        self._driver(key).on_window(end_ms * _NS_PER_MS, data)
        return ()

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Row]:
        """No window that ends by now comes any more; now is the watermark, which may be far beyond the timer."""
        key = ctx.get_current_key()
        if self.identity.guard is not None:
            self.identity.guard.refresh()
        driver = self._driver(key)
        now_ms = max(timestamp, ctx.timer_service().current_watermark())
        yield from self._rows(driver, driver.on_time(now_ms * _NS_PER_MS))
        if driver.is_idle:
            del self._drivers[key]
        else:
            ctx.timer_service().register_event_time_timer(driver.next_ns // _NS_PER_MS)

    def _driver(self, key: str) -> JobDriver:
        driver = self._drivers.get(key)
        if driver is None:
            driver = self._drivers[key] = JobDriver(self._config, key.encode(), self._state, self.models, self.identity)
            driver.counters.clear()  # what was worked off again was counted before
            driver.labelled.clear()
        return driver

    def _rows(self, driver: JobDriver, outputs: Sequence[Output]) -> Iterator[Row]:
        self.metrics.take(driver)
        for output in outputs:
            yield Row(output.topic, output.key, output.value, output.headers)
