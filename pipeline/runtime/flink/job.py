"""The Flink job: Kafka -> windows of a second -> one job's operators -> Kafka.

``flink run -py`` runs it inside the cluster's Python; ``tocsin flink submit`` calls that. Time is event time:
nothing here reads a clock, and no partition counts as idle.
"""

from __future__ import annotations

import os
from pathlib import Path

from pyflink.common import Types
from pyflink.datastream import ExternalizedCheckpointRetention, StreamExecutionEnvironment
from pyflink.table import DataTypes, Schema, StreamTableEnvironment

from tocsin.pipeline.detect.learned.registry import learned_config
from tocsin.pipeline.runtime.embedded.engine import EngineConfig, played
from tocsin.pipeline.runtime.flink import sql
from tocsin.pipeline.runtime.flink.announced import drive
from tocsin.pipeline.runtime.flink.driver import DriverConfig
from tocsin.pipeline.runtime.flink.functions import pack_records
from tocsin.pipeline.runtime.flink.options import (
    JARS_VARIABLE,
    OPTIONS_VARIABLE,
    PARAMETER,
    JobOptions,
    options_from,
)
from tocsin.pipeline.runtime.job_pipeline import JobConfig
from tocsin.schemas.kafka.topics import DEAD_LETTER, LATE, REPORTS, VERDICTS

_SETTINGS = {
    "table.local-time-zone": "UTC",
    "python.execution-mode": "process",
    "python.fn-execution.bundle.time": "50",
    "pipeline.auto-watermark-interval": "50 ms",
    # a slice's frames, else copied between any two operators of a thread
    "pipeline.object-reuse": "true",
}


def build(options: JobOptions) -> StreamExecutionEnvironment:
    """Wire the job and return its environment, whose ``execute`` runs it."""
    env = _environment(options)
    tables = StreamTableEnvironment.create(env)
    for name, value in {**_SETTINGS, "pipeline.name": options.name}.items():
        tables.get_config().set(name, value)
    tables.create_temporary_system_function("pack_records", pack_records(options.signatures))
    for statement in (
        sql.input_table(options.stream),
        sql.models_table(options.stream),
        sql.CLASSIFIED,
        *(sql.output_table(options.stream, name, options.name) for name in sql.OUTPUTS),
    ):
        tables.execute_sql(statement)
    _classify(tables)
    tables.execute_sql(sql.WINDOWS)
    _drive(tables, _driver_config(options))
    statements = tables.create_statement_set()
    for statement in (
        sql.insert_outputs(VERDICTS),
        sql.insert_outputs(DEAD_LETTER),
        sql.insert_outputs(LATE),
        sql.refused(DEAD_LETTER, "dead"),
        sql.refused(LATE, "late"),
        *(sql.insert_outputs(name) for name in REPORTS),
    ):
        statements.add_insert_sql(statement)
    statements.attach_as_datastream()
    return env


def _environment(options: JobOptions) -> StreamExecutionEnvironment:
    """Return the environment with its jars, parallelism and checkpoints set."""
    env = StreamExecutionEnvironment.get_execution_environment()
    if jars := os.environ.get(JARS_VARIABLE):
        env.add_jars(*(Path(jar).as_uri() for jar in jars.split(os.pathsep)))
    env.set_parallelism(options.slot_count)
    env.enable_checkpointing(round(options.checkpoint_seconds * 1000))
    # Here, and not only in a cluster's settings: whoever submits decides, whatever the cluster says.
    keep = ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
    checkpoints = env.get_checkpoint_config()
    checkpoints.set_externalized_checkpoint_retention(keep)
    if options.checkpoint_timeout_seconds is not None:
        checkpoints.set_checkpoint_timeout(round(options.checkpoint_timeout_seconds * 1000))
        checkpoints.set_tolerable_checkpoint_failure_number(0)
    env.get_config().set_global_job_parameters({PARAMETER: options.shown()})
    return env


def _driver_config(options: JobOptions) -> DriverConfig:
    """Return the settings of the operators' driver."""
    engine = EngineConfig(job=JobConfig(learned=learned_config(options.detectors)))
    return DriverConfig(
        engine=played(engine) if options.signatures.allow_player else engine,
        snapshot_seconds=options.snapshot_seconds,
        canary_seconds=options.canary_seconds,
        signatures=options.signatures,
    )


def _drive(tables: StreamTableEnvironment, driver: DriverConfig) -> None:
    """Hand each job's windows to its operators and make a view of their outputs."""
    windows = tables.to_data_stream(tables.sql_query(sql.PACKED))
    said = (
        drive(windows.key_by(lambda row: row[0], key_type=Types.STRING()), tables, driver)
        .uid("operators")
        .name("operators")
    )
    schema = (
        Schema.new_builder()
        .column("topic", DataTypes.STRING())
        .column("k", DataTypes.BYTES())
        .column("v", DataTypes.BYTES())
        .column("h", DataTypes.MAP(DataTypes.STRING(), DataTypes.BYTES()))
        .build()
    )
    tables.create_temporary_view("tocsin_said", tables.from_data_stream(said, schema))


def _classify(tables: StreamTableEnvironment) -> None:
    """Make a view of the input rows, each with its class, so that rows are read and classified once."""
    schema = (
        Schema.new_builder()
        .column("ats", DataTypes.TIMESTAMP_LTZ(3))
        .column("class", DataTypes.STRING())
        .column("job", DataTypes.STRING())
        .column("v", DataTypes.BYTES())
        .column("origin", DataTypes.STRING())
        .column("metric_group", DataTypes.STRING())
        .column("k", DataTypes.BYTES())
        .column("reason", DataTypes.STRING())
        .column("detail", DataTypes.STRING())
        .watermark("ats", "SOURCE_WATERMARK()")
        .build()
    )
    rows = tables.to_data_stream(tables.sql_query(sql.ROWS))
    tables.create_temporary_view(sql.CLASSIFIED_ROWS, tables.from_data_stream(rows, schema))


def main() -> None:
    """Build and run the job that the environment describes."""
    options = options_from(os.environ.get(OPTIONS_VARIABLE, ""))
    build(options).execute(options.name)


if __name__ == "__main__":
    main()
