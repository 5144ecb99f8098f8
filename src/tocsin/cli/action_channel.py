"""Where ``tocsin actions`` asks: an engine's control socket, an engine on another machine, or the topics of Kafka."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from tocsin.cli.action_settings import action_keys_of
from tocsin.cli.engine_reader import CHANGING, channel_of
from tocsin.cli.identity import signer_of
from tocsin.cli.kafka import add_kafka_arguments, settings_of
from tocsin.cli.operator_channel import OperatorChannel, is_over_kafka
from tocsin.schemas.credentials import Role
from tocsin.schemas.errors import ConfigError

if TYPE_CHECKING:
    from tocsin.pipeline.kafka.action_client import ActionClient


def add_actions_kafka_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags for asking over Kafka; those for the credential are the engine's."""
    add_kafka_arguments(parser, text="ask the topics of these brokers, not an engine (docs/actions.md)")
    text = "with --kafka: believe only actions that a controller of this file signed [env: TOCSIN_CONTROLLER_KEYS]"
    default = os.environ.get("TOCSIN_CONTROLLER_KEYS", "")
    parser.add_argument("--controller-keys", metavar="FILE", default=default, help=text)


def actions_channel(args: argparse.Namespace, roles: tuple[Role, ...]) -> OperatorChannel | ActionClient:
    """Return what answers requests about actions, by the flags.

    Args:
        args: the command's flags.
        roles: roles that may send the request over a network.

    Raises:
        ConfigError: a flag is wrong, or no credential is given for what needs one.
        CredentialError: a file cannot be used, or holds no credential of these roles.
        FieldError: the credential holds no private key.
    """
    if not is_over_kafka(args):
        return channel_of(args, roles)
    settings, keys = settings_of(args), action_keys_of(args.controller_keys)
    signer = signer_of(args, *CHANGING) if roles == CHANGING else None
    if roles == CHANGING and signer is None:
        must = "the file of a key pair of role operator (tocsin token issue NAME --role operator)"
        raise ConfigError("--token-file", args.token_file, must)
    from tocsin.pipeline.identity.action_signatures import AckSigner
    from tocsin.pipeline.kafka.action_client import ActionClient
    from tocsin.pipeline.kafka.action_exchange import KafkaExchange

    exchange = KafkaExchange(settings, args.topic_prefix)
    return ActionClient(
        exchange, None if signer is None else AckSigner(signer), keys.now() if keys is not None else None
    )
