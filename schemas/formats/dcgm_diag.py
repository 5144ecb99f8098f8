"""Pure parser of ``dcgmi diag --json``: the tests that failed. Read from DCGM 3 and 4's documentation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from tocsin.schemas.errors import DecodeError

_DEEPEST: Final = 12
_STATUS: Final = "status"


def failures_in(text: str) -> tuple[int, list[str]]:
    """Return the number of results in a report and a sentence for each failed one.

    The report is a tree of categories, tests and results whose names differ between versions. Every object with a field
    ``status`` is a result; it is named by the nearest ``name`` or ``category`` around it.

    Args:
        text: what ``dcgmi diag -r 1 --json`` printed; lines before the first brace are passed over.

    Raises:
        DecodeError: it is no JSON object, or has no result.
    """
    start = text.find("{")
    try:
        report = json.loads(text[start:]) if start >= 0 else None
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"dcgmi's report is no JSON: {error}") from error
    results = list(_results(report, "", 0))
    if not results:
        raise DecodeError("dcgmi's report has no results")
    return len(results), [sentence for sentence, is_failed in results if is_failed]


def _results(value: object, name: str, depth: int) -> Iterator[tuple[str, bool]]:
    """Give a sentence for each result below a value, and whether it failed."""
    if depth > _DEEPEST:
        return
    if isinstance(value, list):
        for one in value:
            yield from _results(one, name, depth + 1)
    if not isinstance(value, dict):
        return
    own = value.get("name") or value.get("category")
    name = own if isinstance(own, str) else name
    status = value.get(_STATUS)
    if isinstance(status, str):
        notes = value.get("warnings") or value.get("warning") or value.get("info") or ""
        place = value.get("gpu_ids", value.get("gpu_id", value.get("entity_id", "")))
        where = f" (GPU {place})" if place != "" else ""
        yield f"{name}{where}: {_note(notes) or status}"[:300], status.strip().lower() in {"fail", "failed"}
    for one in value.values():
        if isinstance(one, dict | list):
            yield from _results(one, name, depth + 1)


def _note(notes: object) -> str:
    """Return the text of a warning, which is a text, an object with one, or a list of either."""
    if isinstance(notes, list):
        return "; ".join(filter(None, map(_note, notes)))
    if isinstance(notes, dict):
        return _note(notes.get("warning", ""))
    return notes if isinstance(notes, str) else ""
