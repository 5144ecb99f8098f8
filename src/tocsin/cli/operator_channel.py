"""Where people's notes go: an engine's control socket, an engine on another machine, or the controller over Kafka."""

from __future__ import annotations

import argparse
import getpass
import os
from typing import TYPE_CHECKING, Protocol

from tocsin.cli.engine_reader import CHANGING, Message, channel_of
from tocsin.cli.identity import signer_of
from tocsin.cli.kafka import add_kafka_arguments, settings_of
from tocsin.cli.sink import check_of
from tocsin.schemas.credentials import Role
from tocsin.schemas.errors import ConfigError

if TYPE_CHECKING:
    from tocsin.pipeline.kafka.operator_client import OperatorClient


class OperatorChannel(Protocol):
    """Takes a person's request and answers it."""

    def call(self, cmd: str, **args: object) -> Message:
        """Send one request with its arguments, and return the answer.

        Raises:
            EngineAbsentError: nobody answers.
            EngineRefusedError: it is refused; ``reason`` says why.
            EngineError: it cannot be sent.
        """
        ...


def add_operator_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags for asking the controller over Kafka; those for the credential are the engine's."""
    add_kafka_arguments(parser, text="ask 'tocsin controller' over these brokers, not an engine (docs/notes.md)")
    text = "with --kafka: believe only answers that an engine of this file signed [env: TOCSIN_VERDICT_KEYS]"
    parser.add_argument("--verdict-keys", metavar="FILE", default=os.environ.get("TOCSIN_VERDICT_KEYS", ""), help=text)


def is_kafka_named(args: argparse.Namespace) -> bool:
    """Return whether the flags name brokers, and not only the environment."""
    return bool(args.kafka) and args.kafka != os.environ.get("TOCSIN_KAFKA", "")


def is_over_kafka(args: argparse.Namespace) -> bool:
    """Return whether the flags, or else the environment, name brokers and no engine.

    Raises:
        ConfigError: brokers and an engine are named.
    """
    named = [name for name in ("engine", "data") if getattr(args, name, None)]
    if named and is_kafka_named(args):
        raise ConfigError(f"--{named[0]}", str(getattr(args, named[0])), "left out where --kafka is given")
    return bool(args.kafka) and not named


def operator_channel(args: argparse.Namespace, roles: tuple[Role, ...] = CHANGING) -> OperatorChannel:
    """Return what takes a person's request, by the flags.

    Args:
        args: the command's flags.
        roles: roles that may send the request over a network.

    Raises:
        ConfigError: a flag is wrong, or no credential is given for an engine on another machine.
        CredentialError: a file cannot be used, or holds no credential of these roles.
    """
    return kafka_channel(args) if is_over_kafka(args) else channel_of(args, roles)


def kafka_channel(args: argparse.Namespace) -> OperatorClient:
    """Return what asks the controller over Kafka.

    Raises:
        ConfigError: a flag is wrong.
        CredentialError: a file cannot be used, or holds no credential of an operator.
    """
    settings, check, signer = settings_of(args), check_of(args.verdict_keys), signer_of(args, *CHANGING)
    from tocsin.pipeline.kafka.operator_client import OperatorClient

    return OperatorClient(settings, args.topic_prefix, signer, settings.username or getpass.getuser(), check)
