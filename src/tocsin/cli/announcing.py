"""A model on its way to running engines: the flags, the check, the sending."""

from __future__ import annotations

import argparse
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from tocsin.cli.kafka import add_kafka_arguments, settings_of
from tocsin.schemas.errors import ConfigError, EngineError, ModelRefusedError
from tocsin.schemas.model_announcement import (
    MAX_AHEAD_NS,
    NOTICE_NS,
    ModelAnnouncement,
    boundary_after,
    withdrawal,
)
from tocsin.schemas.records import NS_PER_SECOND

if TYPE_CHECKING:
    from tocsin.pipeline.registry import Registry

Announce = Callable[[int, int], ModelAnnouncement]
"""(now, from when on it is used) -> what is announced."""
_NOTICE_SECONDS: Final = NOTICE_NS / NS_PER_SECOND
_MAX_SECONDS: Final = MAX_AHEAD_NS / NS_PER_SECOND - 5
_ANSWER_SECONDS: Final = 10.0


def add_announcing_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare to whom a model is announced, and from when on it is used."""
    text = f"used from the first slice on that begins so much later, at least {_NOTICE_SECONDS:g} (default: 30)"
    parser.add_argument("--effective-in", type=float, default=30.0, metavar="SECONDS", help=text)
    parser.add_argument("--to", metavar="ADDRESS", help="an embedded engine: unix:PATH or HOST:PORT (serve --listen)")
    add_kafka_arguments(parser, text="brokers of the Flink jobs")


def is_addressed(args: argparse.Namespace) -> bool:
    """Tell whether the flags (or the environment) name an engine or brokers.

    Raises:
        ConfigError: ``--effective-in`` is out of range.
    """
    if not _NOTICE_SECONDS <= args.effective_in <= _MAX_SECONDS:
        raise ConfigError("--effective-in", args.effective_in, f"from {_NOTICE_SECONDS:g} to {_MAX_SECONDS:g} seconds")
    return bool(args.to or args.kafka)


def of_registry(registry: Registry, detector: str, version: str) -> Announce:
    """Return how a version of the registry is announced; a detector's own settings: as a withdrawal.

    Raises:
        RegistryError: it is not there, damaged, or marked as refused.
    """
    registry.check_not_refused(detector, version)
    card, payload = registry.card(detector, version), registry.payload(detector, version)
    if card.is_own:
        return lambda now_ns, since_ns: withdrawal(detector, now_ns, since_ns)
    digest, written = card.content_hash, card.format
    return lambda now_ns, since_ns: ModelAnnouncement(now_ns, detector, version, written, digest, payload, since_ns)


def check(args: argparse.Namespace, announce: Announce) -> ModelAnnouncement:
    """Return what would be announced now, if running engines can use it.

    Raises:
        EngineError: they cannot; says why.
    """
    from tocsin.models.documents import accept

    now_ns = time.time_ns()
    announcement = announce(now_ns, boundary_after(now_ns, round(args.effective_in * NS_PER_SECOND)))
    try:
        accept(announcement)
    except ModelRefusedError as error:
        raise _refused(announcement, error) from error
    return announcement


def send(args: argparse.Namespace, announce: Announce) -> None:
    """Announce it to whom the flags name, and say from when on it is used.

    Raises:
        EngineError: it is refused, or nobody is there.
    """
    announcement = check(args, announce)
    try:
        if args.to:
            _tell_engine(args.to, announcement)
        else:
            from tocsin.pipeline.bus.announce import announce as to_kafka

            to_kafka(settings_of(args), args.topic_prefix, announcement)
    except ModelRefusedError as error:
        raise _refused(announcement, error) from error
    since = datetime.fromtimestamp(announcement.effective_ns / NS_PER_SECOND, UTC)
    print(f"{announcement.name} {announcement.version}: used by slices from {since:%Y-%m-%d %H:%M:%S} UTC on")


def _refused(announcement: ModelAnnouncement, error: ModelRefusedError) -> EngineError:
    return EngineError(f"{announcement.name} {announcement.version} is refused ({error.reason}): {error}")


def _tell_engine(address: str, announcement: ModelAnnouncement) -> None:
    """Hand it to an embedded engine as a record, and wait for the answer.

    Raises:
        EngineError: it cannot be reached, or does not answer.
        ModelRefusedError: it does not take the model.
    """
    from tocsin.collectors.link import LENGTH, FrameReader, parse_control
    from tocsin.pipeline.server import parse_address
    from tocsin.schemas.codec import encode

    kind, where = parse_address(address)
    data = encode(announcement)
    reader = FrameReader()
    try:
        with socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET, socket.SOCK_STREAM) as peer:
            peer.settimeout(_ANSWER_SECONDS)
            peer.connect(where)
            peer.sendall(LENGTH.pack(len(data)) + data)
            while True:
                chunk = peer.recv(1 << 16)
                if not chunk:
                    raise EngineError(f"the engine at {address} closed the connection without an answer")
                for answer in map(parse_control, reader.feed(chunk)):
                    if answer["t"] == "refused":
                        raise ModelRefusedError(str(answer.get("reason")), str(answer.get("message")))
                    if answer["t"] == "ack":
                        return
    except OSError as error:
        raise EngineError(f"no engine answers at {address}: {error}") from error
