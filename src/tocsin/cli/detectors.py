"""The flag ``--detector NAME=MODE``: which learned detectors run, and what their anomalies may do."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from tocsin.schemas.records import NS_PER_SECOND

DETECTOR_HELP: Final = (
    "a learned detector and what it may do: off, evidence (it supports verdicts of others) or accuse (it may also open"
    " one alone); may be repeated (default: all off)"
)


def add_detector_argument(parser: argparse.ArgumentParser) -> None:
    """Add the flag ``--detector``, which may be repeated."""
    parser.add_argument("--detector", metavar="NAME=MODE", action="append", help=DETECTOR_HELP)


def learned_lines(learned: list[dict[str, Any]], in_use: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each learned detector of a job: its mode, its model, since when it judges, whom it names.

    Args:
        learned: the detectors' states, as an engine tells them.
        in_use: detector -> version, hash and first use of its announced model.
    """
    for state in learned:
        name, mode, card = state["detector"], state["mode"], state.get("card")
        if card is None:
            model = in_use.get(name)
            waits = f"; model {model['version']} is announced and judges nothing" if model else ""
            yield f"  learned   {name}: {mode}{waits}"
            continue
        since_ns = int(in_use.get(name, {}).get("since_ns", 0))
        begin = f"since {_time(since_ns)}" if since_ns else "as it ships"
        digest = f" ({card['content_hash'][:8]})" if card["content_hash"] else ""  # settings of the program have none
        model_text = f"model {card['version']}{digest} {begin}" if card["version"] else "no model"
        names = f"names {', '.join(state['names'])}" if state["names"] else "names nobody"
        yield f"  learned   {name}: {mode}, {model_text}; {names}"
        yield f"            {', '.join(f'{key} {_shown(value)}' for key, value in card.items() if key not in _HEAD)}"
        if state["abstained"]:
            counts = sorted(state["abstained"].items(), key=lambda item: (-item[1], item[0]))
            yield f"            judged nothing: {', '.join(f'{count} x {reason}' for reason, count in counts)}"


def judging_lines(answer: Mapping[str, Any], cards: Mapping[tuple[str, str], Mapping[str, Any]]) -> Iterator[str]:
    """Yield for each running job which announced or learned model judges it, since when, and its card's figures.

    Args:
        answer: an engine's answer to ``status``, or that of a database's tables.
        cards: (detector, hash of the payload) -> the model's card in the registry.
    """
    running = [job for job in answer["jobs"] if not (job.get("superseded") or job.get("ended"))]
    if not running:
        yield "no job runs: no model judges now"
    for job in running:
        yield f"job {job['job_id']} (cluster {job['cluster']}, attempt {job['attempt']})"
        in_use, learned = job.get("models_in_use", {}), job.get("learned", [])
        yield from learned_lines(learned, in_use)
        for name in sorted(in_use.keys() - {state["detector"] for state in learned}):
            model = in_use[name]
            hash_text = model["content_hash"][:8]
            yield f"  rules     {name}: model {model['version']} ({hash_text}) since {_time(model['since_ns'])}"
        hashes = {state["detector"]: state["card"]["content_hash"] for state in learned if state.get("card")}
        hashes |= {name: model["content_hash"] for name, model in in_use.items()}
        yield from (_card_line(name, cards[name, digest]) for name, digest in hashes.items() if (name, digest) in cards)


def _card_line(name: str, card: Mapping[str, Any]) -> str:
    """Return what a model's card says of its training."""
    figures = card["metrics"].get("validation") or card["metrics"].get("training") or {}
    f1 = f", F1 {figures['f1']:.3f}" if isinstance(figures.get("f1"), float) else ""
    count = card["training"].get("recordings", "?")
    return f"            card of {name}: trained {card['trained_at'][:10]} on {count} recordings{f1}"


def _time(at_ns: int) -> str:
    return f"{datetime.fromtimestamp(at_ns / NS_PER_SECOND, UTC):%Y-%m-%d %H:%M:%S} UTC"


_HEAD: Final = frozenset({"version", "content_hash"})


def _shown(value: object) -> str:
    """Return a value of a card as text; a mapping as its keys in order, each with its values in brackets."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} ({_inner(inner)})" for key, inner in value.items()) or "none"
    if isinstance(value, list | tuple):
        return " ".join(map(_shown, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _inner(value: object) -> str:
    """Return what stands in brackets: the names and values of a mapping, else the value."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(inner)}" for key, inner in value.items())
    return _shown(value)
