"""The flags and the run of commands of which several processes may run and one is active."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tocsin.cli.kafka import add_kafka_arguments
from tocsin.cli.logs import add_log_arguments, set_up_logs

if TYPE_CHECKING:
    from tocsin.pipeline.identity.key_trouble import AnyKeyFile
    from tocsin.pipeline.kafka.active import ActiveWork
    from tocsin.pipeline.kafka.seat import SeatConfig
    from tocsin.schemas.kafka.settings import KafkaSettings


def add_active_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags for Kafka, for the keys of verdicts, for the metrics and for the log."""
    add_kafka_arguments(parser)
    text = (
        "file with the public keys of engines (a credentials file): verdicts that none of them signed are left out "
        "[env: TOCSIN_VERDICT_KEYS; default: whoever can write to the topic is believed]"
    )
    parser.add_argument("--verdict-keys", metavar="FILE", default=os.environ.get("TOCSIN_VERDICT_KEYS", ""), help=text)
    parser.add_argument("--metrics-listen", metavar="HOST:PORT", help="serve /metrics and /healthz there")
    add_log_arguments(parser)


def run_active(
    args: argparse.Namespace,
    settings: KafkaSettings,
    seat: SeatConfig,
    work: ActiveWork,
    key_files: Sequence[AnyKeyFile] = (),
) -> None:
    """Be a candidate for the seat, and work while this process has it, until SIGTERM or Ctrl-C.

    Args:
        args: the flags of ``add_active_arguments``.
        settings: the Kafka cluster.
        seat: settings of the seat.
        work: what the active process does.
        key_files: files of keys that it uses, for the metrics.

    Raises:
        EngineError: no broker can be reached at the start, it refuses, or a topic is missing.
    """
    set_up_logs(args)
    from tocsin.collectors.metrics_page import MetricsPage
    from tocsin.pipeline.identity.key_trouble import key_file_families
    from tocsin.pipeline.kafka.active import ActiveProcess
    from tocsin.pipeline.kafka.seat import kafka_seat

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with contextlib.ExitStack() as opened:
        process = ActiveProcess(seat.name, opened.enter_context(kafka_seat(settings, seat)), work)
        if args.metrics_listen:
            page = MetricsPage(
                args.metrics_listen, lambda: [*process.families(), *key_file_families(key_files)], process.health
            )
            page.start()
            opened.callback(page.close)
        print(f"tocsin {seat.name}: group {seat.prefix}.{seat.name}", file=sys.stderr, flush=True)
        process.run(stop)
