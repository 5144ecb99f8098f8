"""``tocsin sink clickhouse``: verdicts from Kafka into the incident database of a server."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tocsin.cli.database import add_clickhouse_argument, address_of
from tocsin.cli.kafka import add_kafka_arguments, settings_of
from tocsin.cli.logs import add_log_arguments, set_up_logs
from tocsin.schemas.credential_store import read_credentials
from tocsin.schemas.errors import ConfigError, CredentialError

if TYPE_CHECKING:
    from tocsin.pipeline.kafka.verdict_sink import Check


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("where", choices=("clickhouse",), help="what the verdicts go into")
    add_kafka_arguments(parser)
    add_clickhouse_argument(parser)
    parser.add_argument(
        "--group",
        metavar="NAME",
        help="consumer group: its members share the work (default: <topic prefix>.sink-clickhouse)",
    )
    text = (
        "file with the public keys of engines (a credentials file): verdicts that none of them signed become dead "
        "letters [env: TOCSIN_VERDICT_KEYS; default: whoever can write to the topic is believed]"
    )
    parser.add_argument("--verdict-keys", metavar="FILE", default=os.environ.get("TOCSIN_VERDICT_KEYS", ""), help=text)
    parser.add_argument("--metrics-listen", metavar="HOST:PORT", help="serve /metrics and /healthz there")
    add_log_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Work until SIGTERM or Ctrl-C."""
    address = address_of(args)
    if address is None:
        raise ConfigError("--clickhouse", "", "the server's URL, clickhouse://USER@HOST (or TOCSIN_CLICKHOUSE)")
    settings, check = settings_of(args), _check_of(args.verdict_keys)
    set_up_logs(args)
    # The drivers take a moment to load: only who needs them pays.
    from tocsin.collectors.metrics_page import MetricsPage
    from tocsin.pipeline.kafka.verdict_sink import VerdictSink, VerdictSinkConfig
    from tocsin.pipeline.kafka.verdicts import KafkaDeadLetters, verdict_source
    from tocsin.pipeline.stores.clickhouse_store import ClickHouseStore

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    store, letters, page = ClickHouseStore(address), KafkaDeadLetters(settings, args.topic_prefix), None
    group = args.group or f"{args.topic_prefix}.sink-clickhouse"
    try:
        with verdict_source(settings, args.topic_prefix, group) as source:
            sink = VerdictSink(source, store, letters, VerdictSinkConfig(check=check))
            if args.metrics_listen:
                page = MetricsPage(args.metrics_listen, lambda: [*sink.families(), *source.families()], sink.health)
                page.start()
            print(f"tocsin sink: {args.topic_prefix}.verdicts to {address}", file=sys.stderr, flush=True)
            sink.run(stop)
    finally:
        letters.close()
        store.close()
        if page is not None:
            page.close()
    return 0


def _check_of(path: str) -> Check | None:
    """Return what checks the signatures of verdicts, None: nothing does.

    Raises:
        CredentialError: the file cannot be used, or holds no engine's key.
    """
    if not path:
        return None
    from tocsin.pipeline.identity.verdict_signatures import VerdictChecker

    checker = VerdictChecker(read_credentials(Path(path)))
    if not checker.key_ids:
        raise CredentialError(path, "a file with the public key of an engine (tocsin token issue NAME --role engine)")
    # a revoked key counts no more, whatever time its thief writes into a verdict
    return lambda value, header, detected_ns: checker.check(value, header, max(detected_ns, time.time_ns()))
