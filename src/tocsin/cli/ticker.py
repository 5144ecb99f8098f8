"""``tocsin ticker``: sends a tick per second to every partition of the input topics.

Without ticks, no verdicts are given.
"""

import argparse
import signal

from tocsin.cli.kafka import add_kafka_arguments, settings_of
from tocsin.cli.logs import add_log_arguments, set_up_logs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    add_kafka_arguments(parser)
    add_log_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Send ticks until SIGTERM or Ctrl-C, and return the exit status 0."""
    set_up_logs(args)
    settings = settings_of(args)
    from tocsin.pipeline.kafka.ticker import Ticker

    ticker = Ticker(settings, args.topic_prefix)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ticker.stop())
    ticker.run()
    return 0
