"""``tocsin models promote``: compares a new model with the current one on the same recordings, and promotes it."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tocsin.cli.announcing import add_announcing_arguments, check, is_addressed, of_registry, send
from tocsin.cli.registry import registry_of
from tocsin.cli.workers import bar_of, interrupt, shared_out
from tocsin.schemas.errors import ConfigError, EngineError, ModelRefusedError, RegistryError
from tocsin.schemas.printable import counted, plain
from tocsin.schemas.reasons import PromotionRefusal

if TYPE_CHECKING:
    from tocsin.pipeline.lab.registry import ModelCard, Promotion, Registry
    from tocsin.pipeline.lab.registry.comparison import Comparison

EXIT_NO = 1
_UNREADABLE = "current_unreadable"
"""Key in ``current.json``, next to the names of ``PromotionRefusal``: the current model could not be read for a
comparison."""
_ROWS = (
    ("faults", "faults"),
    ("hits", "hits"),
    ("precision", "precision"),
    ("recall", "recall"),
    ("F1", "f1"),
    ("false accusations", "false_accusations"),
    ("  per machine-day", "false_accusations_per_machine_day"),
    ("cause right", "cause_accuracy"),
    ("median s", "median_seconds"),
    ("90 % s", "p90_seconds"),
)


class _Before(NamedTuple):
    """The promotion and model that were current before.

    Attributes:
        promotion: the promotion, None: nothing was promoted, or ``current.json`` cannot be read.
        card: card of the current version, None: there is none, or it cannot be read.
        trouble: why it cannot be read, "": it can.
        is_garbled: whether ``current.json`` itself cannot be read.
    """

    promotion: Promotion | None
    card: ModelCard | None
    trouble: str = ""
    is_garbled: bool = False

    @property
    def version(self) -> str:
        """Version for display."""
        if self.is_garbled:
            return "unreadable"
        return "nothing" if self.promotion is None else self.promotion.version


def add_promote_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments to the parser."""
    parser.add_argument("detector", metavar="DETECTOR")
    parser.add_argument("version", metavar="VERSION", help="of 'tocsin models list'; builtin: what ships")
    text = "recordings with truth.json, or folders that hold some; none that a model was trained on"
    parser.add_argument("--validate", metavar="RECORDING", type=Path, nargs="+", default=[], help=text)
    text = "processes (default: one a processor)"
    parser.add_argument("--jobs", metavar="N", type=int, default=len(os.sched_getaffinity(0)), help=text)
    text = "also where it is worse, was compared with nothing, or nobody can read the current one; current.json says so"
    parser.add_argument("--force", action="store_true", help=text)
    add_announcing_arguments(parser)


def promote(args: argparse.Namespace) -> int:
    """Compare, promote and announce a model.

    Returns:
        The exit status: 0, or 1 if the new model is worse or the recordings are too few to tell.
    """
    from tocsin.models.model_formats import FORMATS

    signal.signal(signal.SIGTERM, interrupt)  # as Ctrl-C: the workers end with it
    is_announced = is_addressed(args)
    if args.jobs < 1:
        raise ConfigError("--jobs", args.jobs, "at least 1")
    if not (args.validate or args.force):
        raise ConfigError("--validate", None, "given: recordings to compare the models on (or --force: without)")
    registry = registry_of(args)
    announce = of_registry(registry, args.detector, args.version)
    registry.readable(args.detector, args.version)  # before minutes of work
    if is_announced or args.detector in FORMATS:
        check(args, announce)
    before = _before(args, registry)
    name = f"{args.detector} {args.version}"
    if before.version == args.version:
        print(plain(f"{name}: is the current one already"))
    else:
        figures = _figures(args, registry, before)
        if figures is None:
            return EXIT_NO
        if not before.is_garbled:
            registry.check_unchanged(args.detector, before.promotion)
        registry.promote(args.detector, args.version, figures, is_forced=before.is_garbled)
        print(plain(f"{name}: promoted (before: {before.version})"))
    if is_announced:
        try:
            send(args, announce)
        except EngineError as error:
            again = f"tocsin models announce {args.detector} --version {args.version}"
            raise EngineError(f"{name} is promoted, but not announced: {error}; then: {again} ...") from error
    return 0


def _before(args: argparse.Namespace, registry: Registry) -> _Before:
    """Return what is current now.

    With ``--force``, a current model that cannot be read is reported and left out of the comparison.

    Raises:
        RegistryError: it cannot be read, and ``--force`` is not given.
    """
    before = _Before(None, None, is_garbled=True)
    try:
        before = _Before(registry.promotion(args.detector), None)
        card = registry.in_use(args.detector)
        if card is not None and args.validate:
            registry.readable(args.detector, card.version)
    except (RegistryError, ModelRefusedError) as error:
        if not args.force:
            text = f"cannot be read: {error} (with --force another one is promoted in its place)"
            raise RegistryError(error.reason, f"the current model of {args.detector}", text) from error
        print(plain(f"in spite of ({_UNREADABLE}): {error}"), file=sys.stderr)
        return before._replace(trouble=str(error))
    return before._replace(card=card)


def _figures(args: argparse.Namespace, registry: Registry, before: _Before) -> dict[str, Any] | None:
    """Return the figures that justify the promotion, None: it is refused; print them either way."""
    against = None if before.card is None else before.card.version
    troubles = {_UNREADABLE: before.trouble} if before.trouble else {}
    if not args.validate:
        not_validated = PromotionRefusal.NOT_VALIDATED
        shortfalls = {**troubles, not_validated.value: not_validated.meaning}
        return {"against": against, "shortfalls": shortfalls, "forced": True}
    from tocsin.pipeline.lab.registry import fingerprint_of
    from tocsin.pipeline.recording.under import recordings_under

    new = registry.card(args.detector, args.version)
    folders = recordings_under(args.validate)
    fingerprint = fingerprint_of(folders)
    is_own_data = new.training.get("fingerprint") == fingerprint
    if is_own_data:
        print(plain(f"{args.version} was trained on these very recordings: its figures flatter it"), file=sys.stderr)
    if not args.force and _are_too_few(folders):
        return None
    comparison = _compare(args, registry, (before.card, new), folders)
    print(table_of(comparison, against or "", args.version))
    for one in comparison.shortfalls:
        print(plain(f"{'in spite of' if args.force else 'refused'} ({one.reason.value}): {one.text}"))
    if comparison.shortfalls and not args.force:
        return None
    basis = {"against": against, "fingerprint": fingerprint, "trained_on_them": is_own_data}
    found = comparison.to_object()
    shortfalls = {**troubles, **found["shortfalls"]}
    return {**basis, **found, "shortfalls": shortfalls, "forced": bool(shortfalls)}


def _are_too_few(folders: list[Path]) -> bool:
    """Return whether the recordings are too few for any result; checked before minutes of work."""
    from tocsin.pipeline.lab.registry.comparison import too_few
    from tocsin.pipeline.recording.score import extent_of

    extent = extent_of(folders)
    found = too_few(extent)
    if found:
        print(f"{counted(len(folders), 'recording')}, {extent.machine_days:.2f} machine-days")
    for one in found:
        print(plain(f"refused ({one.reason.value}): {one.text}; nothing was judged"))
    return bool(found)


def _compare(
    args: argparse.Namespace, registry: Registry, cards: tuple[ModelCard | None, ModelCard], folders: list[Path]
) -> Comparison:
    """Judge the recordings with both models, with a progress bar on a terminal, and return the comparison."""
    from tocsin.pipeline.lab.registry.validation import validate

    draw = bar_of("recordings") if sys.stderr.isatty() else None

    def show_progress(_: str, done: int, total: int) -> None:
        if draw is not None:
            draw(done / total)
            print(end="\n" if done == total else "", file=sys.stderr)

    with shared_out(min(args.jobs, len(folders))) as executor:
        return validate(registry, cards, folders, executor, show_progress)


def table_of(comparison: Comparison, current_name: str, new_name: str) -> str:
    """Return the figures of both models side by side, as text."""
    old = None if comparison.current is None else comparison.current.to_object()
    new = comparison.new.to_object()
    head = f"{counted(comparison.recording_count, 'recording')}, {comparison.new.machine_days:.2f} machine-days"
    rows = [("", f"current ({current_name})" if old else "", f"new ({new_name})")]
    rows += [(title, _shown(old[key]) if old else "", _shown(new[key])) for title, key in _ROWS]
    widths = [max(len(row[index]) for row in rows) for index in range(3)]
    lines = [f"{row[0]:{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}".rstrip() for row in rows]
    return "\n".join([head, *lines])


def _shown(value: object) -> str:
    """Return a figure as text, "-" if it is None."""
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
