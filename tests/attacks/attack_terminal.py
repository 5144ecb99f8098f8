"""M3: hidden characters of names on a terminal."""

from __future__ import annotations

import io
import sys
import unicodedata
from datetime import UTC, datetime
from typing import Any

from tests.attacks.registry import Outcome, attack
from tests.hostile_answers import job_answer
from tocsin.cli import status
from tocsin.cli.incident_text import render, render_one
from tocsin.cli.terminal import GuardedStream
from tocsin.schemas.printable import HIDDEN_CATEGORIES, json_text, plain

_HIDDEN = [one for one in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(one) in HIDDEN_CATEGORIES]
_FIELDS = (
    *("summary", "what", "state", "cause", "machine", "ranks", "why", "action", "reason", "job", "cluster"),
    *("verdict_id", "attempt", "update_number"),
)
_FORGED = "nothing is wrong now"


def _is_clean(text: str, kept: str = "\n") -> bool:
    return all(unicodedata.category(one) not in HIDDEN_CATEGORIES or one in kept for one in text) and not any(
        line.startswith(_FORGED) for line in text.splitlines()
    )


@attack("M3", "every hidden character through every way out")
def characters() -> Outcome:
    """Each character of Cc, Cf, Cs, Zl, Zp; plain text, JSON, and the net below."""
    passed = []
    for one in _HIDDEN:
        stream = io.StringIO()
        GuardedStream(stream).write(f"a{one}b")
        outs = plain(f"a{one}b"), json_text({one: one})
        if not all(_is_clean(out, "") for out in outs) or not _is_clean(stream.getvalue(), "\n\t"):
            passed.append(hex(ord(one)))
    return Outcome(3 * len(_HIDDEN), f"{len(passed)} characters pass: {passed[:5]}", held=not passed)


@attack("M3", "forged lines in incidents and status")
def lines() -> Outcome:
    """Each field holds colours, bidi marks and a line of its own."""
    evil = f"a\x1b[2J\x07\r\n{_FORGED}\r{_FORGED}\x85{_FORGED}\u2028{_FORGED}\u2029\u202e\x9b1m"
    now = datetime(2026, 1, 2, tzinfo=UTC)
    times = dict.fromkeys(("since", "detected", "expires"), f"{now:%Y-%m-%d %H:%M:%S}")
    plain_row: dict[str, Any] = {**dict.fromkeys(_FIELDS, "x"), **times, "confidence": 0.5, "evidence_list": ["e"]}
    rows = [{**plain_row, field: evil} for field in _FIELDS]
    shown = [render([row], now) + "\n" + render_one(row, now) for row in rows]
    shown.append(render_one({**plain_row, "evidence_list": [evil]}, now) + "\n" + render(rows, now, job_id=evil))
    shown += [plain(line) for line in status.describe(job_answer(evil), [])]
    wrong = [text[:80] for text in shown if not _is_clean(text)]
    return Outcome(len(shown), f"{len(wrong)} are not clean: {wrong[:2]}", held=not wrong)
