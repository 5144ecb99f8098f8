"""The Flink job's options as flags: those of ``flink submit``, and those that ``flink upgrade`` keeps."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict, fields, replace
from typing import Any, Final

from tocsin.cli.detectors import add_detector_argument
from tocsin.cli.kafka import add_kafka_arguments
from tocsin.pipeline.identity.signed import SignatureConfig
from tocsin.pipeline.runtime.flink.options import LONGEST_INTERVAL_SECONDS, OPTIONS_VARIABLE, JobOptions
from tocsin.pipeline.runtime.flink.sql import STARTS, StreamOptions
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.kafka.settings import KafkaSettings

_FLAGS: Final = {
    "servers": "kafka",
    "prefix": "topic_prefix",
    "group": "group",
    "start": "start",
    "is_exactly_once": "exactly_once",
    "checkpoint_seconds": "checkpoint_seconds",
    "slot_count": "parallelism",
    "snapshot_seconds": "snapshot_seconds",
    "canary_seconds": "canary_seconds",
    "credentials": "credentials",
    "allow_player": "allow_player",
    "signing_key": "signing_key",
    "detectors": "detector",
}
"""Flag (argparse name) of each field of the options, including those of its stream and signatures."""


_PLAYER: Final = "recordings are played to it: a player speaks for any host (with --credentials: one of that role)"


def add_job_arguments(parser: argparse.ArgumentParser, *, is_kept: bool = False) -> None:
    """Add the flags of the job's options.

    Args:
        parser: parser of the subcommand.
        is_kept: whether flags default to None, which means: keep the running job's value.
    """

    def add(flag: str, metavar: str, default: Any, text: str, **more: Any) -> None:
        shown = "as the running job has it" if is_kept else default
        kind: dict[str, Any] = {} if "choices" in more else {"type": type(default), "metavar": metavar}
        text = f"{text} (default: {shown})"
        parser.add_argument(flag, default=None if is_kept else default, help=text, **kind, **more)

    add_kafka_arguments(parser, is_kept=is_kept)
    add("--checkpoint-seconds", "S", 10.0, "between two checkpoints: what is said again after a failure")
    add("--parallelism", "N", 1, "slots to use")
    add("--canary-seconds", "S", 0, "so often each job gets a verdict that measures the way to the tables, 0: never")
    add("--snapshot-seconds", "S", 60, "stream seconds between two snapshots of a job's operators")
    text = "credentials of all hosts, on the TaskManagers' machines: records that none of them signed are refused"
    add("--credentials", "FILE", os.environ.get("TOCSIN_CREDENTIALS", ""), text)
    add(
        "--signing-key", "FILE", "", "sign verdicts with this private key of role engine, on the TaskManagers' machines"
    )
    text = "where to begin without a savepoint; committed: where the group stood, else latest"
    add("--start", "", "committed", text, choices=tuple(STARTS))
    text = "verdicts in transactions: none comes twice, each comes a checkpoint later"
    if is_kept:
        text += " (default: as the running job has it)"
        parser.add_argument("--exactly-once", action=argparse.BooleanOptionalAction, help=text)
        parser.add_argument("--allow-player", action=argparse.BooleanOptionalAction, help=_PLAYER)
    else:
        parser.add_argument("--exactly-once", action="store_true", help=text)
        parser.add_argument("--allow-player", action="store_true", help=_PLAYER)
    add_detector_argument(parser)
    shown = "as the running job has it" if is_kept else "<topic prefix>.flink"
    parser.add_argument("--group", metavar="NAME", help=f"consumer group (default: {shown})")
    text = "how long it may take until all parts run, checkpoints not counted (default: %(default)s)"
    parser.add_argument("--wait-seconds", type=float, default=120.0, metavar="S", help=text)
    shown = "this one; where the running job was given one: that" if is_kept else f"this one, {sys.executable}"
    text = f"Python on the TaskManagers' machines, with this tocsin (default: {shown})"
    parser.add_argument("--python", default=None if is_kept else sys.executable, metavar="PATH", help=text)


def job_options(args: argparse.Namespace, settings: KafkaSettings) -> JobOptions:
    """Return the job's options from the flags.

    Raises:
        ConfigError: a value is not valid; names the flag.
    """
    properties = settings.java_properties()
    servers = properties.pop("bootstrap.servers")
    if properties == {"security.protocol": "PLAINTEXT"}:
        properties = {}
    stream = StreamOptions(
        servers,
        args.topic_prefix,
        properties,
        args.group or _group_of(args.topic_prefix),
        args.start,
        is_exactly_once=args.exactly_once,
    )
    return JobOptions(
        stream,
        args.name,
        args.checkpoint_seconds,
        args.parallelism,
        args.snapshot_seconds,
        args.canary_seconds,
        signatures=SignatureConfig(args.credentials, args.allow_player, args.signing_key),
        detectors=tuple(args.detector or ()),
    )


def running_options(shown: str) -> JobOptions:
    """Return the options of a running job, which another version of tocsin may have submitted.

    Options that this version does not know are left out; those that the other did not know get their defaults.

    Raises:
        ConfigError: the text was not written by tocsin.
    """
    try:
        data: dict[str, Any] = json.loads(shown)
        known, known_stream = ({field.name for field in fields(kind)} for kind in (JobOptions, StreamOptions))
        stream = StreamOptions(**{name: value for name, value in data["stream"].items() if name in known_stream})
        kept = {name: value for name, value in data.items() if name in known}
        if stream.is_exactly_once and kept.get("checkpoint_seconds", 0.0) > LONGEST_INTERVAL_SECONDS:
            kept["checkpoint_seconds"] = LONGEST_INTERVAL_SECONDS  # as it is from now on: earlier versions took more
        signatures = SignatureConfig(**kept.pop("signatures", {}))
        detectors = tuple(kept.pop("detectors", ()))
        return JobOptions(**{**kept, "stream": stream, "signatures": signatures, "detectors": detectors})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(OPTIONS_VARIABLE, shown[:200], "what 'tocsin flink submit' writes") from error


def keep(args: argparse.Namespace, running: JobOptions) -> None:
    """Replace flags that were not given by the running job's options."""
    if (
        args.topic_prefix is not None
        and args.group is None
        and running.stream.group == _group_of(running.stream.prefix)
    ):
        args.group = _group_of(args.topic_prefix)  # it was not chosen: it goes with the topics
    for name, value in _values_by_field(running).items():
        if getattr(args, _FLAGS[name]) is None:
            setattr(args, _FLAGS[name], value)
    origin = running.origin or {}
    if args.python is None:
        client, worker = origin.get("client_python"), origin.get("worker_python")
        args.python = worker if worker and worker != client else sys.executable


def upgraded_options(args: argparse.Namespace, settings: KafkaSettings, running: JobOptions) -> JobOptions:
    """Return the options of the upgraded job from the flags, after ``keep``; options without a flag are kept.

    Raises:
        ConfigError: a value is not valid; names the flag.
    """
    options = job_options(args, settings)
    return replace(options, stream=replace(options.stream, lateness_seconds=running.stream.lateness_seconds))


def changes(running: JobOptions, options: JobOptions) -> list[str]:
    """Return which options differ, one line each; security properties are left out, because jobs do not show them."""
    old, new = _values_by_field(running), _values_by_field(options)
    return [
        f"--{_FLAGS[name].replace('_', '-')}: {_as_text(old[name])} -> {_as_text(new[name])}"
        for name in _FLAGS
        if old[name] != new[name]
    ]


def unknown_names(shown: str) -> list[str]:
    """Return the names of a running job's options that this version does not know."""
    data: dict[str, Any] = json.loads(shown)
    known, known_stream = ({field.name for field in fields(kind)} for kind in (JobOptions, StreamOptions))
    return sorted((data.keys() - known) | (data["stream"].keys() - known_stream))


def _values_by_field(options: JobOptions) -> dict[str, Any]:
    """Return the options that have a flag, by field name."""
    every = asdict(options)
    every |= every["stream"] | every["signatures"]
    return {name: every[name] for name in _FLAGS}


def _as_text(value: Any) -> str:
    """Return a value as text: "yes" or "no" for a bool, a list with commas."""
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _group_of(prefix: str) -> str:
    """Return the default consumer group for a topic prefix."""
    return f"{prefix}.flink"
