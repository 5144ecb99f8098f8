"""``tocsin sink clickhouse``: writes verdicts and reports from Kafka to the incident database on a server."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tocsin.cli.action_settings import action_keys_of
from tocsin.cli.database import add_clickhouse_argument, address_of
from tocsin.cli.kafka import add_kafka_arguments, settings_of
from tocsin.cli.logs import add_log_arguments, set_up_logs
from tocsin.schemas.errors import ConfigError, CredentialError, TocsinError
from tocsin.schemas.kafka.topics import ACTION_ACKS, ACTIONS, ALERTS_SENT, COVERED, NOTES_TAKEN, REPORTS, VERDICTS

if TYPE_CHECKING:
    from tocsin.collectors.metrics_page import MetricsPage
    from tocsin.pipeline.identity.key_file import VerdictKeys
    from tocsin.pipeline.identity.key_trouble import AnyKeyFile
    from tocsin.pipeline.kafka.topic_sink import TopicSink, TopicSinkConfig
    from tocsin.pipeline.kafka.verdicts import KafkaVerdicts
    from tocsin.pipeline.stores.clickhouse_address import ClickHouseAddress
    from tocsin.schemas.formats.prometheus_text import Family
    from tocsin.schemas.kafka.settings import KafkaSettings


_NOTES_SECONDS: Final = 10.0
"""Longest wait of the start for the notes of people."""
_JOIN_SECONDS: Final = 60.0
"""Longest wait of the end for a sink's unfinished batch."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags to the parser."""
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
    text = (
        "the controller acts ('tocsin controller --act'): its actions are written in place of what verdicts propose "
        "[env: TOCSIN_ACT]"
    )
    is_set = os.environ.get("TOCSIN_ACT", "") not in {"", "0"}
    parser.add_argument("--act", action="store_true", default=is_set, help=text)
    text = "with --act: write only what controllers and executors of this file signed [env: TOCSIN_CONTROLLER_KEYS]"
    default = os.environ.get("TOCSIN_CONTROLLER_KEYS", "")
    parser.add_argument("--controller-keys", metavar="FILE", default=default, help=text)
    parser.add_argument("--metrics-listen", metavar="HOST:PORT", help="serve /metrics and /healthz there")
    add_log_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Write verdicts until SIGTERM or Ctrl-C, and return the exit status 0."""
    address = address_of(args)
    if address is None:
        raise ConfigError("--clickhouse", "", "the server's URL, clickhouse://USER@HOST (or TOCSIN_CLICKHOUSE)")
    settings, check = settings_of(args), check_of(args.verdict_keys)
    set_up_logs(args)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with contextlib.ExitStack() as opened:
        config, key_files = _sink_config(args, check)
        parts = _sinks(args, settings, opened, config, address)
        if args.metrics_listen:
            opened.callback(_page(args.metrics_listen, parts, key_files).close)
        print(f"tocsin sink: {args.topic_prefix}.verdicts to {address}", file=sys.stderr, flush=True)
        _run_all([sink for sink, _ in parts], stop)
    return 0


def _sinks(
    args: argparse.Namespace,
    settings: KafkaSettings,
    opened: contextlib.ExitStack,
    config: TopicSinkConfig,
    address: ClickHouseAddress,
) -> list[tuple[TopicSink, KafkaVerdicts]]:
    """Return the sinks of verdicts and of reports with what they read; the stack closes what they use."""
    # The drivers take a moment to load: only who needs them pays.
    from tocsin.pipeline.kafka.notes_reader import NotesReader
    from tocsin.pipeline.kafka.planned_actions import PlannedActions
    from tocsin.pipeline.kafka.report_sink import ReportSink
    from tocsin.pipeline.kafka.verdict_sink import VerdictSink
    from tocsin.pipeline.kafka.verdicts import KafkaDeadLetters, verdict_source
    from tocsin.pipeline.stores.clickhouse_store import ClickHouseStore

    prefix = args.topic_prefix
    group = args.group or f"{prefix}.sink-clickhouse"
    reports = (*REPORTS, ALERTS_SENT, NOTES_TAKEN, COVERED, *((ACTIONS, ACTION_ACKS) if args.act else ()))
    notes = NotesReader(settings, prefix, config.check)
    opened.callback(notes.close)
    notes.start()
    notes.is_read.wait(_NOTES_SECONDS)  # else rows are put right as soon as the notes are there
    parts: list[tuple[TopicSink, KafkaVerdicts]] = []
    for kind, topics, members in ((VerdictSink, (VERDICTS,), group), (ReportSink, reports, f"{group}.reports")):
        store, dead_letters = ClickHouseStore(address), KafkaDeadLetters(settings, prefix)
        opened.callback(store.close)
        opened.callback(dead_letters.close)
        source = opened.enter_context(verdict_source(settings, prefix, members, topics))
        sink: TopicSink = kind(source, store, dead_letters, config)
        if isinstance(sink, VerdictSink):
            # where the controller acts, it alone says what waits under planned work
            sink.is_replaced, sink.planned = args.act, None if args.act else PlannedActions(notes.work, time.time_ns)
            sink.silence = notes.silence
        parts.append((sink, source))
    return parts


def _sink_config(args: argparse.Namespace, check: VerdictKeys | None) -> tuple[TopicSinkConfig, list[AnyKeyFile]]:
    """Return the settings of the sinks: whose messages they believe, and the files in which those keys are."""
    from tocsin.pipeline.identity.action_signatures import AckChecker
    from tocsin.pipeline.identity.key_file import KeyFile
    from tocsin.pipeline.kafka.topic_sink import TopicSinkConfig

    files: list[AnyKeyFile] = [] if check is None else [check]
    actions = action_keys_of(args.controller_keys) if args.act else None
    if actions is None:
        return TopicSinkConfig(check=check), files
    acks = KeyFile(args.controller_keys, AckChecker)
    config = TopicSinkConfig(
        check=check,
        action_check=actions.check,
        ack_check=lambda value, header, now_ns: acks.now().admit(value, header, now_ns),
    )
    return config, [*files, actions]  # acks are checked with keys of the same file


def _page(
    listen: str, parts: Sequence[tuple[TopicSink, KafkaVerdicts]], key_files: Sequence[AnyKeyFile]
) -> MetricsPage:
    """Start and return the page with the metrics and the health of all sinks."""
    from tocsin.collectors.metrics_page import MetricsPage
    from tocsin.pipeline.identity.key_trouble import key_file_families

    def families() -> list[Family]:
        found = [f for sink, source in parts for f in (*sink.families(), *source.families(sink.metric_prefix))]
        return [*found, *key_file_families(key_files)]

    def health() -> tuple[bool, str]:
        return next((said for sink, _ in parts if not (said := sink.health())[0]), parts[0][0].health())

    page = MetricsPage(listen, families, health)
    page.start()
    return page


def _run_all(sinks: Sequence[TopicSink], stop: threading.Event) -> None:
    """Run the first sink here and the others in threads of their own, until stopped or one of them fails.

    Raises:
        TocsinError: what ended a sink.
    """
    failures: list[TocsinError] = []

    def run_one(sink: TopicSink) -> None:
        try:
            sink.run(stop)
        except TocsinError as error:
            failures.append(error)
        finally:
            stop.set()

    threads = [threading.Thread(target=run_one, args=(sink,), daemon=True) for sink in sinks[1:]]
    for thread in threads:
        thread.start()
    try:
        sinks[0].run(stop)
    finally:
        stop.set()
        for thread in threads:
            thread.join(_JOIN_SECONDS)
    if failures:
        raise failures[0]


def check_of(path: str) -> VerdictKeys | None:
    """Return what checks the signatures of verdicts, None: they are not checked.

    The file is read again when it changes.

    Raises:
        CredentialError: the file cannot be used, or holds no engine's key.
    """
    if not path:
        return None
    from tocsin.pipeline.identity.key_file import VerdictKeys

    keys = VerdictKeys(path)
    if not keys.now().key_ids:
        raise CredentialError(path, "a file with the public key of an engine (tocsin token issue NAME --role engine)")
    return keys
