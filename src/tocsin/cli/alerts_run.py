"""``tocsin alerts run``: tells people about the verdicts in Kafka; several may run, one is active."""

from __future__ import annotations

import argparse
import time

from tocsin.cli.active import add_active_arguments, run_active
from tocsin.cli.kafka import settings_of
from tocsin.cli.sink import check_of
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.kafka.topics import ALERTS_STATE


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's flags to its parser; ``--alerts`` is not among them."""
    add_active_arguments(parser)
    text = "sign the rows of what was sent with this private key of role engine"
    parser.add_argument("--signing-key", metavar="FILE", default="", help=text)


def run_alerts(args: argparse.Namespace) -> None:
    """Tell people until SIGTERM or Ctrl-C.

    Raises:
        ConfigError: there is no routes file, or it is wrong.
        EngineError: no broker can be reached at the start, it refuses, or a topic is missing.
    """
    if args.alerts is None:
        raise ConfigError("--alerts", None, "a routes file (or TOCSIN_ALERTS)")
    settings, check = settings_of(args), check_of(args.verdict_keys)
    from tocsin.pipeline.alerts.adapters import ADAPTERS
    from tocsin.pipeline.alerts.notice import Adapter
    from tocsin.pipeline.alerts.routes import load_routes
    from tocsin.pipeline.identity.signed import SignatureConfig
    from tocsin.pipeline.kafka.alert_work import AlertWork, AlertWorkConfig
    from tocsin.pipeline.kafka.seat import SeatConfig
    from tocsin.pipeline.runtime.flink.identity import StreamIdentity

    routes = load_routes(args.alerts, ADAPTERS)

    def make_adapters() -> dict[str, Adapter]:
        return {
            name: ADAPTERS[str(one["kind"])].make(one, routes.places[name]) for name, one in routes.receivers.items()
        }

    for adapter in make_adapters().values():  # what is wrong with a receiver is told at the start
        adapter.close()
    identity = StreamIdentity.of_config(SignatureConfig(signing_key=args.signing_key), time.time_ns())
    work = AlertWork(AlertWorkConfig(routes), make_adapters, identity, check)
    run_active(args, settings, SeatConfig(args.topic_prefix, ALERTS_STATE, "alerts", work.inputs), work)
