"""Answers of a group's hosts as lines of text, which reach the caller between the lines of other hosts."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Final

from tocsin.schemas.errors import FieldError
from tocsin.schemas.preflight import HostAnswer, answer_of

_PIECE: Final = re.compile(r"tocsin-preflight-answer (\d{1,4}) (\d{1,4})/(\d{1,4}) (.*)")
_PIECE_CHARACTERS: Final = 800
"""Slurm passes on at most 1,024 bytes of a task's line at once; the rest of a longer line may come after another's."""


def answer_lines(rank: int, answer: HostAnswer) -> list[str]:
    """Return a host's answer as lines of ASCII text, each shorter than 1,000 characters.

    Args:
        rank: the host's number in its group.
        answer: what its checks found.
    """
    text = json.dumps(answer.to_json())
    pieces = [text[start : start + _PIECE_CHARACTERS] for start in range(0, len(text), _PIECE_CHARACTERS)]
    return [f"tocsin-preflight-answer {rank} {index}/{len(pieces)} {piece}" for index, piece in enumerate(pieces, 1)]


def answers_in(output: str) -> dict[int, HostAnswer]:
    """Return the complete answers in what all hosts printed: the host's number -> its answer.

    Lines of one host stand in their order; those of several hosts may be mixed, with anything else between them and
    a prefix before each. An answer with a missing piece, or one that cannot be read, is left out.

    Args:
        output: the lines of all hosts.
    """
    pieces: dict[int, dict[int, str]] = {}
    counts: dict[int, int] = {}
    for line in output.splitlines():
        if (found := _PIECE.search(line)) is not None:
            rank, index, counts[rank] = int(found[1]), int(found[2]), int(found[3])
            pieces.setdefault(rank, {})[index] = found[4]
    answers: dict[int, HostAnswer] = {}
    for rank, parts in pieces.items():
        with contextlib.suppress(ValueError, FieldError, KeyError, TypeError):
            answers[rank] = answer_of(json.loads("".join(parts[index] for index in range(1, counts[rank] + 1))))
    return answers
