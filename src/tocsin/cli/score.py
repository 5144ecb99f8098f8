"""``tocsin score FOLDER …``: compares recordings' verdicts with the truth."""

import argparse
import sys
from pathlib import Path

from tocsin.cli.limits import add_limit_arguments, read_limits_of
from tocsin.cli.main import EXIT_ERROR
from tocsin.pipeline.recording.score import FolderScore, Score, add_up, by_kind, score_folder
from tocsin.pipeline.recording.under import recordings_or_paths
from tocsin.schemas.errors import TocsinError
from tocsin.schemas.printable import counted, json_text, named, plain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    parser.add_argument(
        "folders",
        metavar="FOLDER",
        type=Path,
        nargs="+",
        help="recording with truth.json and verdicts.jsonl (see 'tocsin replay'), or a folder that holds some",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    add_limit_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Score the recordings and print the figures.

    Returns:
        The exit status: 0, or 2 if a recording could not be scored (the others are scored nevertheless).
    """
    scores: list[FolderScore] = []
    failed_count, limits = 0, read_limits_of(args)
    for folder in recordings_or_paths(args.folders):
        try:
            scores.append(score_folder(folder, limits))
        except (TocsinError, OSError) as error:
            failed_count += 1
            print(plain(f"tocsin score: {named(folder, error)}"), file=sys.stderr)
    if not scores:
        return EXIT_ERROR
    total, causes = add_up(scores)
    kinds = by_kind(scores)
    if args.json:
        found = {
            "all": total.to_object(),
            "kinds": {name: score.to_object() for name, score in kinds.items()},
            "causes": {name: score.to_object() for name, score in causes.items()},
        }
        print(json_text(found))
    else:
        print(table_of(total, causes, kinds))
    return EXIT_ERROR if failed_count else 0


def table_of(total: Score, causes: dict[str, Score], kinds: dict[str, Score] | None = None) -> str:
    """Return the figures as text: in all, then by kind (if given), then by cause."""
    lines = [
        f"{counted(total.hit_count + total.missed_count, 'fault')}, {total.machine_days:.2f} machine-days",
        f"precision {_share(total.precision)}  recall {_share(total.recall)}  F1 {_share(total.f1)}",
        f"false accusations {total.false_count} ({_number(total.false_per_machine_day)} per machine-day)",
        f"ever named wrongly (also if taken back) {total.ever_wrong_count}",
        f"cause right {_share(total.cause_accuracy)} of the hits",
        f"onset to detection: median {_number(total.median_seconds)} s, 90 % {_number(total.p90_seconds)} s",
    ]
    for title, scores in (("kind", kinds), ("cause", causes)):
        if scores:
            lines += ["", *rows_of(title, scores)]
    return "\n".join(lines)


def rows_of(title: str, scores: dict[str, Score]) -> list[str]:
    """Return the lines of a table by kind or cause; ``title`` is its first column's name."""
    scores = {plain(name): score for name, score in scores.items()}
    width = max(len(name) for name in (title, *scores))
    lines = [f"{title:{width}}  faults  hits  recall  cause right  median s   90 % s"]
    for name, score in scores.items():
        count = score.hit_count + score.missed_count
        lines.append(
            f"{name:{width}}  {count:6}  {score.hit_count:4}  {_share(score.recall):>6}  "
            f"{_share(score.cause_accuracy):>11}  {_number(score.median_seconds):>8}  {_number(score.p90_seconds):>7}"
        )
    return lines


def _share(value: float | None) -> str:
    """Return a ratio with three digits after the point, "-" if it is None."""
    return "-" if value is None else f"{value:.3f}"


def _number(value: float | None) -> str:
    """Return a number with two digits after the point, "-" if it is None."""
    return "-" if value is None else f"{value:.2f}"
