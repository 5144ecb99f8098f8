"""The flags of all commands that use Kafka."""

from __future__ import annotations

import argparse
import os

from tocsin.schemas.errors import ConfigError
from tocsin.schemas.kafka.settings import KafkaSettings, kafka_settings
from tocsin.schemas.kafka.topics import DEFAULT_PREFIX, check_prefix


def add_kafka_arguments(
    parser: argparse.ArgumentParser,
    flag: str = "--kafka",
    text: str = "brokers to begin with",
    *,
    is_kept: bool = False,
) -> None:
    """Add the flags ``--kafka``, ``--kafka-config`` and ``--topic-prefix``.

    Args:
        parser: parser of the command.
        flag: name of ``--kafka`` in this command (``--to-kafka``, ``--from-kafka``).
        text: help text of that flag.
        is_kept: whether brokers and prefix default to None, which means: keep the running job's, whatever the
            environment says.
    """
    kept = "default: as the running job has it"
    is_named = flag == "--kafka" and not is_kept
    parser.add_argument(
        flag,
        dest="kafka",
        metavar="HOST:PORT[,..]",
        default=None if is_kept else os.environ.get("TOCSIN_KAFKA", "") if is_named else "",
        help=text + (f" ({kept})" if is_kept else " [env: TOCSIN_KAFKA]" if is_named else ""),
    )
    parser.add_argument(
        "--kafka-config",
        metavar="FILE",
        default=os.environ.get("TOCSIN_KAFKA_CONFIG", ""),
        help="TOML or .properties file with the security settings (docs/kafka.md) [env: TOCSIN_KAFKA_CONFIG]",
    )
    parser.add_argument(
        "--topic-prefix",
        metavar="NAME",
        default=None if is_kept else os.environ.get("TOCSIN_TOPIC_PREFIX", DEFAULT_PREFIX),
        help="first part of the topics' names "
        + (f"({kept})" if is_kept else f"[env: TOCSIN_TOPIC_PREFIX; default: {DEFAULT_PREFIX}]"),
    )


def settings_of(args: argparse.Namespace) -> KafkaSettings:
    """Return the Kafka settings from the flags.

    Raises:
        ConfigError: no brokers are named, or a value is not valid.
    """
    if not args.kafka:
        raise ConfigError("kafka", args.kafka, "the brokers, HOST:PORT[,HOST:PORT ...] (--kafka or TOCSIN_KAFKA)")
    check_prefix(args.topic_prefix)
    return kafka_settings(args.kafka, args.kafka_config)
