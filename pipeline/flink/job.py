"""The Flink job: Kafka -> windows of a second -> one job's operators -> Kafka.

Run by ``flink run -py`` inside the cluster's Python (``tocsin flink submit`` does it). Time is the
records' own; nothing here reads a clock, and no partition is ever called idle.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from typing import Any

from pyflink.common import Types
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.table import DataTypes, Schema, StreamTableEnvironment

from tocsin.pipeline.flink import sql
from tocsin.pipeline.flink.driver import DriverConfig
from tocsin.pipeline.flink.functions import OUTPUT_TYPE, DriveJob, pack_records
from tocsin.schemas.topics import DEAD_LETTER, LATE, VERDICTS

OPTIONS_VARIABLE = "TOCSIN_FLINK_JOB"
_BUNDLE_MS = 200


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What a submission chooses.

    Attributes:
        stream: where it reads and writes.
        name: shown by the cluster.
        checkpoint_seconds: between two checkpoints.
        parallelism: slots for the operators; one job's records meet in one of them.
        driver: settings of the operators.
    """

    stream: sql.StreamOptions
    name: str = "tocsin"
    checkpoint_seconds: float = 5.0
    parallelism: int = 1
    driver: DriverConfig = field(default_factory=DriverConfig)


def build(options: JobOptions) -> StreamExecutionEnvironment:
    """Wire the job; ``execute`` of what is returned runs it."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(options.parallelism)
    env.enable_checkpointing(round(options.checkpoint_seconds * 1000))
    tables = StreamTableEnvironment.create(env)
    settings = tables.get_config()
    for name, value in {
        "table.local-time-zone": "UTC",
        "pipeline.name": options.name,
        "python.execution-mode": "process",
        "python.fn-execution.bundle.time": str(_BUNDLE_MS),
        "pipeline.auto-watermark-interval": "200 ms",
    }.items():
        settings.set(name, value)
    tables.create_temporary_system_function("pack_records", pack_records)
    for statement in (
        sql.input_table(options.stream),
        sql.CLASSIFIED,
        sql.WINDOWS,
        *(sql.output_table(options.stream, name) for name in sql.OUTPUTS),
    ):
        tables.execute_sql(statement)
    windows = tables.to_data_stream(tables.sql_query(sql.PACKED))
    said = (
        windows.key_by(lambda row: row[0], key_type=Types.STRING())
        .process(DriveJob(options.driver), output_type=OUTPUT_TYPE)
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
    statements = tables.create_statement_set()
    for statement in (
        sql.said(VERDICTS),
        sql.said(DEAD_LETTER),
        sql.refused(DEAD_LETTER, "dead", "bad_header"),
        sql.refused(LATE, "late", "late"),
    ):
        statements.add_insert_sql(statement)
    statements.attach_as_datastream()
    return env


def options_from(data: dict[str, Any]) -> JobOptions:
    """Read what ``tocsin flink submit`` wrote."""
    stream = sql.StreamOptions(**data.pop("stream"))
    driver = DriverConfig(**data.pop("driver", {}))
    return JobOptions(stream=stream, driver=driver, **data)


def main() -> None:
    """Build and run the job that the environment (or the first argument) describes."""
    text = sys.argv[1] if len(sys.argv) > 1 else os.environ[OPTIONS_VARIABLE]
    options = options_from(json.loads(text))
    build(options).execute(options.name)


if __name__ == "__main__":
    main()
