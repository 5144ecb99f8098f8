"""``tocsin controller``: judges the fleet over all jobs, and decides about actions, from Kafka.

Several may run, one is active.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tocsin.cli.action_settings import add_action_arguments
from tocsin.cli.active import add_active_arguments, run_active
from tocsin.cli.kafka import settings_of
from tocsin.cli.sink import check_of
from tocsin.schemas.credential_store import CredentialStore
from tocsin.schemas.credentials import Role
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.kafka.topics import CONTROLLER_STATE

if TYPE_CHECKING:
    from tocsin.pipeline.identity.action_signatures import AckChecker, ActionSigner
    from tocsin.pipeline.identity.key_file import KeyFile
    from tocsin.pipeline.identity.key_trouble import AnyKeyFile
    from tocsin.pipeline.kafka.action_work import ActionWork
    from tocsin.pipeline.kafka.fleet_work import FleetWork
    from tocsin.pipeline.kafka.topic_sink import Check
    from tocsin.schemas.action_events import JobFacts, MachineFacts
    from tocsin.schemas.records import Record

_ACTIONS: Final = "actions/"
"""Prefix of the state's parts that the controller of actions has."""


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
    text = "sign actions with this private key of role controller [env: TOCSIN_CONTROLLER_KEY]"
    default = os.environ.get("TOCSIN_CONTROLLER_KEY", "")
    parser.add_argument("--controller-key", metavar="FILE", default=default, help=text)
    add_action_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Judge the fleet and decide about actions until SIGTERM or Ctrl-C, and return the exit status 0.

    Raises:
        ConfigError: a flag is wrong, or one without which nothing may act is missing.
        CredentialError: a file of keys cannot be used.
        EngineError: no broker can be reached, or a topic is missing.
    """
    settings, check = settings_of(args), check_of(args.verdict_keys)
    _check_act(args)
    from tocsin.pipeline.identity.action_signatures import AckChecker
    from tocsin.pipeline.identity.key_file import KeyFile
    from tocsin.pipeline.identity.operator_check import OperatorChecker
    from tocsin.pipeline.identity.signed import SignatureConfig
    from tocsin.pipeline.kafka.fleet_work import FleetWork
    from tocsin.pipeline.kafka.joined_work import JoinedWork
    from tocsin.pipeline.kafka.seat import SeatConfig
    from tocsin.pipeline.runtime.flink.identity import StreamIdentity

    signatures = SignatureConfig(args.credentials, args.allow_player, args.signing_key)
    identity = StreamIdentity.of_config(signatures, time.time_ns())
    operators = OperatorChecker(CredentialStore(Path(args.credentials))) if args.credentials else None
    fleet = FleetWork(None, identity, check, is_from_beginning=args.from_beginning, operators=operators)
    speakers = KeyFile(args.credentials, AckChecker) if args.credentials else None
    signer = _action_signer(args.controller_key)
    work = JoinedWork(fleet, _action_work(args, signer, check, speakers, fleet, identity.checked), _ACTIONS)
    seat = SeatConfig(args.topic_prefix, CONTROLLER_STATE, "controller", work.inputs)
    own = [one.key_file for one in (signer, identity.signer) if one is not None]
    key_files: list[AnyKeyFile] = [one for one in (check, speakers, *own) if one is not None]
    run_active(args, settings, seat, work, key_files)
    return 0


def _check_act(args: argparse.Namespace) -> None:
    """Raise ``ConfigError`` where actions are to be carried out and not all of them can be proved."""
    if not args.act:
        return
    for name, must in (
        ("controller_key", "the file of a key pair of role controller: executors believe no unsigned action"),
        ("credentials", "the file of all credentials: nobody else may claim or approve an action"),
        ("verdict_keys", "the file with the engines' public keys: nothing acts on what anybody may write"),
    ):
        if not getattr(args, name):
            raise ConfigError(f"--{name.replace('_', '-')}", "", f"{must} (needed with --act)")


def _action_signer(path: str) -> ActionSigner | None:
    """Return what signs actions with the key that a file holds now, None: no file is named.

    Raises:
        CredentialError: the file cannot be used, or holds no private key of role ``controller``.
    """
    if not path:
        return None
    from tocsin.pipeline.identity.action_signatures import ActionSigner
    from tocsin.pipeline.identity.message_signatures import SigningKeyFile

    own = SigningKeyFile(path, Role.CONTROLLER)
    return ActionSigner(own.now()).follow(own)


def _action_work(
    args: argparse.Namespace,
    signer: ActionSigner | None,
    check: Check | None,
    speakers: KeyFile[AckChecker] | None,
    fleet: FleetWork,
    check_record: Callable[[Record, bytes], object],
) -> ActionWork:
    """Return the work of the controller of actions.

    Args:
        args: the flags.
        signer: signs actions, None: they are unsigned.
        check: checks verdicts, None: all are believed.
        speakers: checks who tells it something, None: nobody is believed.
        fleet: what is known of machines and jobs.
        check_record: checks the record of an agent.

    Raises:
        ConfigError: the policy file is wrong.
    """
    from tocsin.pipeline.actions.controller import ActionController
    from tocsin.pipeline.actions.policy.ladder import PolicyLadder
    from tocsin.pipeline.actions.policy.policy_file import DEFAULT_POLICY, load_policy
    from tocsin.pipeline.identity.action_signatures import AckChecker
    from tocsin.pipeline.kafka.action_work import ActionParties, ActionWork

    policy = load_policy(args.policy or DEFAULT_POLICY)
    config = policy.limits.controller_config(
        is_dry_run=not args.act, spare_count=args.spares, may_shrink=args.may_shrink
    )
    nobody = AckChecker(())

    def told() -> Iterator[MachineFacts | JobFacts]:
        for view in list(fleet.views.values()):
            yield from view.facts()

    def make() -> ActionController:
        return ActionController(config, PolicyLadder(policy))

    return ActionWork(
        make, ActionParties(signer, lambda: nobody if speakers is None else speakers.now(), check, check_record), told
    )
