"""``tocsin models announce FILE | withdraw DETECTOR``: give running engines another model, without a restart."""

import argparse
import socket
import time
from datetime import UTC, datetime
from pathlib import Path

from tocsin.cli.kafka import add_kafka_arguments, settings_of
from tocsin.schemas.errors import ConfigError, EngineError, ModelRefusedError
from tocsin.schemas.model_announcement import (
    MAX_AHEAD_NS,
    MAX_MODEL_BYTES,
    NOTICE_NS,
    ModelAnnouncement,
    boundary_after,
    content_hash,
    withdrawal,
)
from tocsin.schemas.records import NS_PER_SECOND

_NOTICE_SECONDS = NOTICE_NS / NS_PER_SECOND
_MAX_SECONDS = MAX_AHEAD_NS / NS_PER_SECOND - 5
_ANSWER_SECONDS = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("what", choices=("announce", "withdraw"), help="announce a model, or go back to the default")
    text = "announce: the model's file (docs/models.md); withdraw: the detector's name"
    parser.add_argument("subject", metavar="FILE|DETECTOR", help=text)
    parser.add_argument("--detector", metavar="NAME", help="announce: which detector it is for: peers, steps")
    text = "announce: its name for people (default: the first 12 digits of the file's sha256)"
    parser.add_argument("--version", metavar="TEXT", help=text)
    parser.add_argument("--format", metavar="NAME/N", help="announce: how it is written (default: this version's)")
    text = f"used from the first slice on that begins so much later, at least {_NOTICE_SECONDS:g} (default: 30)"
    parser.add_argument("--effective-in", type=float, default=30.0, metavar="SECONDS", help=text)
    parser.add_argument("--to", metavar="ADDRESS", help="an embedded engine: unix:PATH or HOST:PORT (serve --listen)")
    add_kafka_arguments(parser, text="brokers of the Flink jobs")
    parser.add_argument("--dry-run", action="store_true", help="check it, and send nothing")


def run(args: argparse.Namespace) -> int:
    """Check and send it; status 1 where it is refused."""
    from tocsin.models.documents import accept

    if not _NOTICE_SECONDS <= args.effective_in <= _MAX_SECONDS:
        raise ConfigError("--effective-in", args.effective_in, f"from {_NOTICE_SECONDS:g} to {_MAX_SECONDS:g} seconds")
    if not (args.dry_run or args.to or args.kafka):
        raise ConfigError("--to", args.to, "given, or --kafka (or TOCSIN_KAFKA)")
    announcement = _announcement(args)
    try:
        accept(announcement)
        if args.dry_run:
            print(f"{announcement.name} {announcement.version}: can be used")
            return 0
        if args.to:
            _tell_engine(args.to, announcement)
        else:
            from tocsin.pipeline.bus.announce import announce

            announce(settings_of(args), args.topic_prefix, announcement)
    except ModelRefusedError as error:
        raise EngineError(f"{announcement.name} {announcement.version} is refused ({error.reason}): {error}") from error
    since = datetime.fromtimestamp(announcement.effective_ns / NS_PER_SECOND, UTC)
    print(f"{announcement.name} {announcement.version}: used by slices from {since:%Y-%m-%d %H:%M:%S} UTC on")
    return 0


def _announcement(args: argparse.Namespace) -> ModelAnnouncement:
    now_ns = time.time_ns()
    effective_ns = boundary_after(now_ns, round(args.effective_in * NS_PER_SECOND))
    if args.what == "withdraw":
        return withdrawal(args.subject, now_ns, effective_ns)
    if not args.detector:
        raise ConfigError("--detector", args.detector, "given: which detector the model is for")
    path = Path(args.subject)
    try:
        payload = path.read_bytes()
    except OSError as error:
        raise ConfigError("FILE", args.subject, f"a file that can be read ({error.strerror})") from error
    if len(payload) > MAX_MODEL_BYTES:
        raise ConfigError("FILE", f"{args.subject}, {len(payload)} bytes", f"at most {MAX_MODEL_BYTES} bytes")
    name = content_hash(payload)
    version, written = args.version or name[:12], args.format or f"{args.detector}/1"
    return ModelAnnouncement(now_ns, args.detector, version, written, name, payload, effective_ns)


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
