"""``tocsin alerts run``: tells people about the verdicts in Kafka; several may run, one is active."""

from __future__ import annotations

import argparse
import os
import time
from typing import TYPE_CHECKING

from tocsin.cli.action_settings import action_keys_of
from tocsin.cli.active import add_active_arguments, run_active
from tocsin.cli.kafka import settings_of
from tocsin.cli.sink import check_of
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.kafka.topics import ALERTS_STATE

if TYPE_CHECKING:
    from tocsin.pipeline.identity.key_file import ActionKeys
    from tocsin.pipeline.identity.key_trouble import AnyKeyFile
    from tocsin.pipeline.kafka.alert_work import ReadAction


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's flags to its parser; ``--alerts`` is not among them."""
    add_active_arguments(parser)
    text = "sign the rows of what was sent with this private key of role engine"
    parser.add_argument("--signing-key", metavar="FILE", default="", help=text)
    text = (
        "the controller acts ('tocsin controller --act'): what people are to know of an action is told where its "
        "incident was told [env: TOCSIN_ACT]"
    )
    is_set = os.environ.get("TOCSIN_ACT", "") not in {"", "0"}
    parser.add_argument("--act", action="store_true", default=is_set, help=text)
    text = "with --act: believe only actions that controllers of this file signed [env: TOCSIN_CONTROLLER_KEYS]"
    default = os.environ.get("TOCSIN_CONTROLLER_KEYS", "")
    parser.add_argument("--controller-keys", metavar="FILE", default=default, help=text)


def run_alerts(args: argparse.Namespace) -> None:
    """Tell people until SIGTERM or Ctrl-C.

    Raises:
        ConfigError: there is no routes file, or it is wrong; the file of keys holds no controller's key.
        CredentialError: a file of keys cannot be read.
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
    action_keys = action_keys_of(args.controller_keys) if args.act else None
    config = AlertWorkConfig(routes, read_action=_read_action(args, action_keys))
    work = AlertWork(config, make_adapters, identity, check)
    key_files: list[AnyKeyFile] = [one for one in (check, action_keys) if one is not None]
    run_active(args, settings, SeatConfig(args.topic_prefix, ALERTS_STATE, "alerts", work.inputs), work, key_files)


def _read_action(args: argparse.Namespace, keys: ActionKeys | None) -> ReadAction | None:
    """Return what reads actions, None where none is carried out."""
    from tocsin.schemas.action_codec import decode_action

    if not args.act:
        return None
    return keys.admit if keys is not None else lambda value, _header, _now_ns: decode_action(value)
