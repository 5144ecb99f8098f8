"""The Flink operator that drives jobs, with the topic of models broadcast to every slot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from pyflink.common import Row, Types
from pyflink.datastream import (
    DataStream,
    KeyedBroadcastProcessFunction,
    KeyedStream,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from pyflink.datastream.state import MapStateDescriptor
from pyflink.table import StreamTableEnvironment

from tocsin.pipeline.runtime.flink import sql
from tocsin.pipeline.runtime.flink.driver import DriverConfig
from tocsin.pipeline.runtime.flink.functions import BYTES, OUTPUT_TYPE, DriveJob
from tocsin.pipeline.runtime.flink.model_log import ModelLog, ModelRow

_STATE: Final = MapStateDescriptor("models", Types.STRING(), BYTES)
_NS_PER_MS: Final = 1_000_000


def drive(windows: KeyedStream, tables: StreamTableEnvironment, driver: DriverConfig) -> DataStream:
    """Connect the jobs' windows with the broadcast models, and return the stream of outputs."""
    models = _models(windows.get_execution_environment(), tables)
    connected = windows.connect(models.broadcast(_STATE))
    return connected.process(DriveAnnounced(driver), output_type=OUTPUT_TYPE)


def _models(env: StreamExecutionEnvironment, tables: StreamTableEnvironment) -> DataStream:
    """Return the topic of models as a stream in its order, read with parallelism 1."""
    slot_count = env.get_parallelism()
    env.set_parallelism(1)  # taken up when the query becomes a stream: here
    stream = tables.to_data_stream(tables.sql_query(sql.MODEL_ROWS))
    env.set_parallelism(slot_count)
    return stream


class DriveAnnounced(KeyedBroadcastProcessFunction):  # type: ignore[misc]  # pyflink has no types
    """``DriveJob`` with announced models.

    The watermark of a slot is the older one of its two inputs. So a second is processed only after all announcements
    that precede its tick on the topic of models.
    """

    def __init__(self, config: DriverConfig) -> None:
        """Keep the settings; each worker opens its own copy."""
        self._config = config
        self._jobs = DriveJob(config)

    def open(self, runtime_context: RuntimeContext) -> None:
        """Prepare a worker; the models' state is read with the first element."""
        self._written: dict[str, bytes] | None = None
        self._publishes = runtime_context.get_index_of_this_subtask() == 0
        self._counted: dict[str, int] = {}
        self._jobs.open(runtime_context)
        self._log = ModelLog(self._config.snapshot_seconds, self._jobs.identity.guard)
        self._jobs.models = self._log.book

    def process_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext) -> Iterable[Row]:
        """Process one window of one job."""
        self._load(ctx)
        return self._jobs.process_element(value, ctx)

    def on_timer(self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext) -> Iterator[Row]:
        """Process a job's due seconds and yield the outputs."""
        self._load(ctx)
        return self._jobs.on_timer(timestamp, ctx)

    def process_broadcast_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.Context) -> Iterator[Row]:
        """Process one record of the topic of models, and yield a dead letter if it is unusable."""
        written = self._load(ctx)
        kind, key, data = (None if one is None else bytes(one) for one in (value[0], value[1], value[2]))
        dead_letter = self._log.take(ModelRow(kind, key, data, int(value[3]), value[4]))
        self._log.forget(ctx.current_watermark() * _NS_PER_MS)
        state, now = ctx.get_broadcast_state(_STATE), self._log.state()
        for name in written.keys() - now.keys():
            state.remove(name)
        for name, data in now.items():
            if written.get(name) != data:
                state.put(name, data)
        self._written = now
        self._count()
        if dead_letter is not None and self._publishes:
            self._jobs.metrics.count("dead_letters")
            yield Row(dead_letter.topic, dead_letter.key, dead_letter.value, dead_letter.headers)

    def _load(self, ctx: Any) -> dict[str, bytes]:
        """Load the models from the broadcast state on the first call; return the state as last written."""
        if self._written is None:
            state = ctx.get_broadcast_state(_STATE)
            self._written = {name: bytes(data) for name, data in state.items()}
            self._log.load(self._written)
        return self._written

    def _count(self) -> None:
        """Add new model counts to the metrics, in one slot only."""
        for name, count in self._log.counters.items():
            more = count - self._counted.get(name, 0)
            self._counted[name] = count
            if more and self._publishes:  # every slot takes every announcement: one counts
                self._jobs.metrics.add(("models", "outcome", name), more)
