"""``tocsin topics apply | check``: the Kafka topics as this version needs them."""

import argparse

from tocsin.cli.kafka import add_kafka_arguments, settings_of
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.printable import plain

_HOUR_SECONDS = 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "what", choices=("apply", "check"), help="make them as they should be, or say what differs (then status 1)"
    )
    add_kafka_arguments(parser)
    text = "of the topics that hold jobs' records; they can grow, never shrink (default: 4 for new topics)"
    parser.add_argument("--partitions", type=int, metavar="N", help=text)
    text = "how long input topics keep what agents sent, by its own time; 0: for good (default: 12 for new topics)"
    parser.add_argument("--keep-hours", type=float, metavar="H", help=text)
    text = "topics that recordings are played into, whatever their time (replay --to-kafka): kept for good"
    parser.add_argument("--retain-forever", action="store_true", help=text)
    parser.add_argument(
        "--replication", type=int, default=-1, metavar="N", help="copies of a new topic (default: the broker's)"
    )


def run(args: argparse.Namespace) -> int:
    """Do it; 1 where ``check`` finds a difference."""
    settings = settings_of(args)
    if args.partitions is not None and args.partitions < 1:
        raise ConfigError("--partitions", args.partitions, "at least 1")
    if args.keep_hours is not None and args.retain_forever:
        raise ConfigError("--keep-hours", args.keep_hours, "left out with --retain-forever, which keeps for good")
    if args.keep_hours is not None and not 0 <= args.keep_hours < 1e6:
        raise ConfigError("--keep-hours", args.keep_hours, "0 (for good) or more")
    if args.replication != -1 and not 1 <= args.replication < 2**15:
        raise ConfigError("--replication", args.replication, "at least 1")
    from tocsin.pipeline.kafka import topics

    keep_seconds = None if args.keep_hours is None else args.keep_hours * _HOUR_SECONDS
    wish = topics.WantedTopics(args.topic_prefix, args.partitions, keep_seconds, args.replication, args.retain_forever)
    differences = topics.apply(settings, wish) if args.what == "apply" else topics.check(settings, wish)
    for difference in differences:
        done = "created" if difference.what == "missing" else f"{difference.what}: {difference.wanted}"
        print(plain(f"{difference.topic}: {done}" if args.what == "apply" else difference))
    count = len(wish.topics())
    if not differences:
        print(plain(f"{count} topics are as they should be"))
    elif args.what == "check":
        print("'tocsin topics apply' makes them so")
    return 1 if differences and args.what == "check" else 0
