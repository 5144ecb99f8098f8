"""``tocsin models list | show | promote | refuse | announce | withdraw``: manages trained models."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tocsin.cli.announcing import Announce, add_announcing_arguments, check, is_addressed, of_registry, send
from tocsin.cli.database import add_database_arguments
from tocsin.cli.detectors import judging_lines
from tocsin.cli.engine_reader import add_engine_arguments
from tocsin.cli.main import EXIT_ERROR
from tocsin.cli.promote import add_promote_arguments, promote
from tocsin.cli.registry import add_registry_argument, registry_of
from tocsin.cli.status import asked
from tocsin.schemas.errors import ConfigError, RegistryError
from tocsin.schemas.model_announcement import (
    BUILTIN_VERSION,
    MAX_MODEL_BYTES,
    ModelAnnouncement,
    content_hash,
    withdrawal,
)
from tocsin.schemas.printable import json_text, plain, readable

if TYPE_CHECKING:
    from tocsin.pipeline.lab.registry import ModelCard, Registry


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their flags to the parser."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    listed = verbs.add_parser("list", help="all models, which is current, which are refused")
    listed.add_argument("detector", metavar="DETECTOR", nargs="?", help="only its models")
    text = "also ask the engine, or the tables of a distributed one: which model judges each job, and since when"
    listed.add_argument("--judging", action="store_true", help=text)
    add_database_arguments(listed)
    add_engine_arguments(listed)
    shown = verbs.add_parser("show", help="all that is known of one model")
    shown.add_argument("detector", metavar="DETECTOR")
    shown.add_argument("version", metavar="VERSION", nargs="?", help="(default: the current one)")
    text = "make a model the current one, if it is not worse on validation recordings"
    promoted = verbs.add_parser("promote", help=text)
    add_promote_arguments(promoted)
    refused = verbs.add_parser("refuse", help="mark a model: it is not promoted or announced any more")
    refused.add_argument("detector", metavar="DETECTOR")
    refused.add_argument("version", metavar="VERSION")
    refused.add_argument("--reason", metavar="TEXT", required=True, help="why, for those who come later")
    announced = verbs.add_parser("announce", help="give running engines a model, without a restart")
    _add_announce(announced)
    withdrawn = verbs.add_parser("withdraw", help="give running engines the detector's own settings back")
    withdrawn.add_argument("subject", metavar="DETECTOR")
    for verb in (announced, withdrawn):
        add_announcing_arguments(verb)
        verb.add_argument("--dry-run", action="store_true", help="check it, and send nothing")
    for verb in (listed, shown):
        verb.add_argument("--json", action="store_true", help="JSON instead of text")
    for verb in (listed, shown, promoted, refused, announced):
        add_registry_argument(verb)


def _add_announce(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``announce``."""
    text = "a detector: one of its models in the registry; with --detector: a model's file (docs/models.md)"
    parser.add_argument("subject", metavar="DETECTOR|FILE", help=text)
    parser.add_argument("--detector", metavar="NAME", help="with a file: which detector it is for, e.g. peers")
    text = "which version (default: the current one); with a file: its name for people (default: of its sha256)"
    parser.add_argument("--version", metavar="TEXT", help=text)
    parser.add_argument("--format", metavar="NAME/N", help="with a file: how it is written (default: this program's)")


def run(args: argparse.Namespace) -> int:
    """Run the chosen subcommand and return its exit status."""
    verbs = {
        "list": _list,
        "show": _show,
        "promote": promote,
        "refuse": _refuse,
        "announce": _announce,
        "withdraw": _announce,
    }
    return verbs[args.verb](args)


# -- list, show, refuse ----------------------------------------------------------------------------


def _list(args: argparse.Namespace) -> int:
    """Print the models; return the exit status, 2 if one cannot be read."""
    registry = registry_of(args)
    bad: list[str] = []
    cards = registry.cards(args.detector, lambda error: bad.append(str(error)))
    current: dict[str, str] = {}
    for detector in dict.fromkeys(card.detector for card in cards):
        try:
            current[detector] = _current_version(registry, detector, cards)
        except RegistryError as error:
            bad.append(f"{error} (promote another one with --force)")
    rows = [_row(registry, card, current.get(card.detector), bad) for card in cards]
    if args.json:
        print(json_text([_with_readable_figures(row) for row in rows]))
    elif rows:
        print(_table(rows))
    else:
        print(f"no models{f' of {args.detector}' if args.detector else ''} in {registry.where}")
    if args.judging and not args.json:
        by_hash = {(row["detector"], row["content_hash"]): row for row in rows}
        for line in judging_lines(asked(args)[0], by_hash):
            print(plain(line))
    for text in bad:
        print(plain(f"tocsin models: {text}"), file=sys.stderr)
    return EXIT_ERROR if bad else 0


def _current_version(registry: Registry, detector: str, cards: Sequence[ModelCard]) -> str:
    """Return the promoted version of a detector, or the built-in one if none was ever promoted.

    Raises:
        RegistryError: the promoted version does not exist.
    """
    promotion = registry.promotion(detector)
    if promotion is None:
        return BUILTIN_VERSION
    if not any((card.detector, card.version) == (detector, promotion.version) for card in cards):
        text = f"names {promotion.version}, which is not there"
        raise RegistryError("not_found", f"{registry.where}/{detector}/current.json", text)
    return promotion.version


def _row(registry: Registry, card: ModelCard, current: str | None, bad: list[str]) -> dict[str, Any]:
    """Return a model's row of the list; problems with reading it are added to ``bad``."""
    try:
        reason = registry.refusal(card.detector, card.version)
    except RegistryError as error:
        bad.append(str(error))
        reason = str(error)
    is_current = card.version == current
    state = "refused" if reason is not None else "current" if is_current else ""
    try:
        registry.payload(card.detector, card.version)
    except RegistryError as error:
        bad.append(str(error))
        state = "damaged"
    return {**asdict(card), "state": state, "current": is_current, "refused": reason}


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the list as a table with the most important figures."""
    head = ("DETECTOR", "VERSION", "STATE", "FORMAT", "TRAINED (UTC)", "RECORDINGS", "FAULTS", "F1", "VALIDATED F1")
    lines = [head, *(tuple(map(plain, _cells(row))) for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of a model's row."""
    training, metrics = row["training"], row["metrics"]
    figures = [_figure(metrics.get(name), "f1") for name in ("training", "validation")]
    both = "current, refused" if row["current"] and row["refused"] is not None else row["state"]
    counts = (str(training.get(name, "-")) for name in ("recordings", "faults"))
    when = str(row["trained_at"])[:16].replace("T", " ") or "own settings"
    return (row["detector"], row["version"], both, row["format"], when, *counts, *figures)


def _figure(figures: object, name: str) -> str:
    """Return a figure as text, "-" if it is missing."""
    value = figures.get(name) if isinstance(figures, dict) else None
    return f"{value:.3f}" if isinstance(value, int | float) else "-"


def _show(args: argparse.Namespace) -> int:
    """Print everything known about one model, and return the exit status 0."""
    registry = registry_of(args)
    promotion = registry.promotion(args.detector)
    version = args.version or (BUILTIN_VERSION if promotion is None else promotion.version)
    card = registry.card(args.detector, version)
    size = len(registry.payload(args.detector, version))
    found: dict[str, Any] = {**asdict(card), "bytes": size, "refused": registry.refusal(args.detector, version)}
    if promotion is not None and promotion.version == version:
        found["promoted"] = asdict(promotion)
    print(json_text(_with_readable_figures(found)) if args.json else "\n".join(lines_of(found)))
    return 0


def _with_readable_figures(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row with its figures rounded to six digits.

    Thresholds keep all digits, because the model uses them.
    """
    return {**row, "metrics": readable(row["metrics"]), "training": readable(row["training"])}


def lines_of(values: Mapping[str, Any], indent: str = "") -> list[str]:
    """Return nested values as indented lines, without those that are empty."""
    lines = []
    for key, value in values.items():
        if isinstance(value, dict):
            lines += [f"{indent}{plain(key)}:", *lines_of(value, indent + "  ")] if value else []
        elif value is not None and value != "":
            lines.append(f"{indent}{plain(key)}: {plain(_shown(value))}")
    return lines


def _shown(value: object) -> str:
    """Return a value as text."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return ", ".join(map(_shown, value)) if isinstance(value, list | tuple) else str(value)


def _refuse(args: argparse.Namespace) -> int:
    """Mark a model as refused, and return the exit status 0."""
    registry = registry_of(args)
    if not args.reason.strip():
        raise ConfigError("--reason", args.reason, "a sentence for those who come later")
    registry.refuse(args.detector, args.version, args.reason.strip())
    print(f"{args.detector} {args.version}: refused")
    promotion = registry.promotion(args.detector)
    if promotion is not None and promotion.version == args.version:
        print("it is the current one, and engines that use it go on with it: promote another one")
    return 0


# -- announce, withdraw ----------------------------------------------------------------------------


def _announce(args: argparse.Namespace) -> int:
    """Announce or withdraw a model (or only check it, with ``--dry-run``), and return the exit status 0."""
    if not (is_addressed(args) or args.dry_run):
        raise ConfigError("--to", args.to, "given, or --kafka (or TOCSIN_KAFKA)")
    announce = _announcement(args)
    if args.dry_run:
        announcement = check(args, announce)
        print(f"{announcement.name} {announcement.version}: can be used")
    else:
        send(args, announce)
    return 0


def _announcement(args: argparse.Namespace) -> Announce:
    """Return the function that builds the announcement that the flags ask for."""
    if args.verb == "withdraw":
        return lambda now_ns, since_ns: withdrawal(args.subject, now_ns, since_ns)
    if args.detector:
        return _of_file(args)
    from tocsin.pipeline.lab.registry.card import is_detector

    if not is_detector(args.subject):
        raise ConfigError("--detector", args.detector, "given with a file: which detector the model is for")
    registry = registry_of(args)
    version = args.version
    if not version:
        promotion = registry.promotion(args.subject)
        if promotion is None:
            raise ConfigError("--version", None, f"given: nothing of {args.subject} is promoted in {registry.where}")
        version = promotion.version
    return of_registry(registry, args.subject, version)


def _of_file(args: argparse.Namespace) -> Announce:
    """Return the function that builds the announcement of a model file."""
    try:
        payload = Path(args.subject).read_bytes()
    except OSError as error:
        raise ConfigError("FILE", args.subject, f"a file that can be read ({error.strerror})") from error
    if not payload:
        raise ConfigError("FILE", f"{args.subject}, 0 bytes", "a model: the file is empty")
    if len(payload) > MAX_MODEL_BYTES:
        raise ConfigError("FILE", f"{args.subject}, {len(payload)} bytes", f"at most {MAX_MODEL_BYTES} bytes")
    digest = content_hash(payload)
    name, version, written = args.detector, args.version or digest[:12], args.format or f"{args.detector}/1"
    return lambda now_ns, since_ns: ModelAnnouncement(now_ns, name, version, written, digest, payload, since_ns)
