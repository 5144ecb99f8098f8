"""Announcing a model to running engines: the flags, the check and the sending."""

from __future__ import annotations

import argparse
import base64
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tocsin.cli.identity import add_signer_argument, signer_of
from tocsin.cli.kafka import add_kafka_arguments, settings_of
from tocsin.cli.paths import control_socket, data_folder
from tocsin.schemas.credentials import Role
from tocsin.schemas.errors import ConfigError, EngineError, ModelRefusedError
from tocsin.schemas.model_announcement import (
    MAX_AHEAD_NS,
    NOTICE_NS,
    ModelAnnouncement,
    boundary_after,
    withdrawal,
)
from tocsin.schemas.printable import plain
from tocsin.schemas.records import NS_PER_SECOND

if TYPE_CHECKING:
    from tocsin.pipeline.lab.registry import Registry

Announce = Callable[[int, int], ModelAnnouncement]
"""Function (now in ns, start of use in ns) -> the announcement to send."""
_NOTICE_SECONDS: Final = NOTICE_NS / NS_PER_SECOND
_MAX_SECONDS: Final = MAX_AHEAD_NS / NS_PER_SECOND - 5
_ANSWER_SECONDS: Final = 10.0
_LOCAL: Final = "local"


def add_announcing_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say to whom a model is announced, and from when on it is used."""
    text = f"used from the first slice on that begins so much later, at least {_NOTICE_SECONDS:g} (default: 30)"
    parser.add_argument("--effective-in", type=float, default=30.0, metavar="SECONDS", help=text)
    text = f"an embedded engine: its control socket (serve --control), or {_LOCAL}: of this user's data folder"
    parser.add_argument("--to", metavar="SOCKET", help=text)
    add_kafka_arguments(parser, text="brokers of the Flink jobs")
    add_signer_argument(parser, Role.TRAINER.value)


def is_addressed(args: argparse.Namespace) -> bool:
    """Return whether the flags (or the environment) name an engine or brokers.

    Raises:
        ConfigError: ``--effective-in`` is out of range.
    """
    if not _NOTICE_SECONDS <= args.effective_in <= _MAX_SECONDS:
        raise ConfigError("--effective-in", args.effective_in, f"from {_NOTICE_SECONDS:g} to {_MAX_SECONDS:g} seconds")
    return bool(args.to or args.kafka)


def of_registry(registry: Registry, detector: str, version: str) -> Announce:
    """Return a function that builds the announcement of one model version of the registry.

    If the version is the detector's own built-in settings, the announcement is a withdrawal of the current model.

    Raises:
        RegistryError: the version does not exist, is damaged, or is marked as refused.
    """
    registry.check_not_refused(detector, version)
    card, payload = registry.card(detector, version), registry.payload(detector, version)
    if card.is_own:
        return lambda now_ns, since_ns: withdrawal(detector, now_ns, since_ns)
    digest, written = card.content_hash, card.format
    return lambda now_ns, since_ns: ModelAnnouncement(now_ns, detector, version, written, digest, payload, since_ns)


def check(args: argparse.Namespace, announce: Announce) -> ModelAnnouncement:
    """Return the announcement as it would be sent now, after checking that running engines can use it.

    Raises:
        EngineError: they cannot use it; the message says why.
    """
    from tocsin.models.model_formats import accept

    now_ns = time.time_ns()
    announcement = announce(now_ns, boundary_after(now_ns, round(args.effective_in * NS_PER_SECOND)))
    try:
        accept(announcement)
    except ModelRefusedError as error:
        raise _refused(announcement, error) from error
    return announcement


def send(args: argparse.Namespace, announce: Announce) -> None:
    """Send the announcement to the engine or the brokers of the flags, and print from when on the model is used.

    Raises:
        EngineError: the model is refused, or nothing can be reached at the address.
    """
    announcement = check(args, announce)
    try:
        if args.to:
            _tell_engine(args.to, announcement)
        else:
            from tocsin.pipeline.kafka.announce import announce as to_kafka

            to_kafka(settings_of(args), args.topic_prefix, announcement, signer_of(args, Role.TRAINER))
    except ModelRefusedError as error:
        raise _refused(announcement, error) from error
    since = datetime.fromtimestamp(announcement.effective_ns / NS_PER_SECOND, UTC)
    print(plain(f"{announcement.name} {announcement.version}: used by slices from {since:%Y-%m-%d %H:%M:%S} UTC on"))


def _refused(announcement: ModelAnnouncement, error: ModelRefusedError) -> EngineError:
    """Return the error for a model that was refused, with the reason."""
    return EngineError(f"{announcement.name} {announcement.version} is refused ({error.reason}): {error}")


def _tell_engine(place: str, announcement: ModelAnnouncement) -> None:
    """Send the announcement to an embedded engine over its control socket.

    Raises:
        ConfigError: the address is that of the agents' socket, where an engine accepts no models.
        EngineError: the engine cannot be reached, or does not answer.
        ModelRefusedError: the engine refuses the model.
    """
    from tocsin.pipeline.runtime.embedded.control_socket import ControlClient, EngineRefusedError
    from tocsin.schemas.wire.codec import encode

    record = base64.b64encode(encode(announcement)).decode()
    try:
        ControlClient(_control_of(place), _ANSWER_SECONDS).call("model", record=record)
    except EngineRefusedError as error:
        raise ModelRefusedError(error.reason, str(error)) from error


def _control_of(place: str) -> Path:
    """Return the path of the control socket that ``--to`` names; "local" is the one in this user's data folder."""
    if place == _LOCAL:
        return control_socket(data_folder())
    path = Path(place.removeprefix("unix:"))
    if ":" in place.removeprefix("unix:") or not path.is_absolute():
        must = f"{_LOCAL}, or the path of an engine's control socket (models do not go to the agents' address any more)"
        raise ConfigError("--to", place, must)
    return path
