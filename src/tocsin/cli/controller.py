"""``tocsin controller``: judges the fleet over all jobs, from Kafka; several may run, one is active."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from tocsin.cli.active import add_active_arguments, run_active
from tocsin.cli.kafka import settings_of
from tocsin.cli.sink import check_of
from tocsin.schemas.credential_store import CredentialStore
from tocsin.schemas.kafka.topics import CONTROLLER_STATE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags to the parser."""
    add_active_arguments(parser)
    text = "credentials of all: events and requests that none of them signed are left out [env: TOCSIN_CREDENTIALS]"
    parser.add_argument("--credentials", metavar="FILE", default=os.environ.get("TOCSIN_CREDENTIALS", ""), help=text)
    parser.add_argument("--allow-player", action="store_true", help="recordings are played to it, as with 'flink'")
    text = "sign own verdicts with this private key of role engine"
    parser.add_argument("--signing-key", metavar="FILE", default="", help=text)
    text = "the very first start reads all events that the topic holds (replays), not the last ten minutes"
    parser.add_argument("--from-beginning", action="store_true", help=text)


def run(args: argparse.Namespace) -> int:
    """Judge the fleet until SIGTERM or Ctrl-C, and return the exit status 0."""
    settings, check = settings_of(args), check_of(args.verdict_keys)
    from tocsin.pipeline.identity.operator_check import OperatorChecker
    from tocsin.pipeline.identity.signed import SignatureConfig
    from tocsin.pipeline.kafka.fleet_work import FleetWork
    from tocsin.pipeline.kafka.seat import SeatConfig
    from tocsin.pipeline.runtime.flink.identity import StreamIdentity

    signatures = SignatureConfig(args.credentials, args.allow_player, args.signing_key)
    identity = StreamIdentity.of_config(signatures, time.time_ns())
    operators = OperatorChecker(CredentialStore(Path(args.credentials))) if args.credentials else None
    work = FleetWork(None, identity, check, is_from_beginning=args.from_beginning, operators=operators)
    run_active(args, settings, SeatConfig(args.topic_prefix, CONTROLLER_STATE, "controller", work.inputs), work)
    return 0
