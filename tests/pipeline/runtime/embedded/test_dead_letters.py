"""Dead letters and late records are kept, bounded, with their bytes."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from tocsin.pipeline.runtime.embedded.dead_letters import DeadLetter, DeadLetterLog


def _lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_letter_keeps_reason_host_and_bytes(tmp_path: Path) -> None:
    """Enough to find out what a sender did wrong, and to send it again."""
    file = DeadLetterLog(tmp_path, "dead-letters")
    file.write(DeadLetter(17, "n3", "bad_field", "steps.rank = -4: must be >= 0", b"\x00TC"))
    (line,) = _lines(tmp_path / "dead-letters.jsonl")

    assert (line["received_ns"], line["host"], line["reason"]) == (17, "n3", "bad_field")
    assert base64.b64decode(str(line["data_base64"])) == b"\x00TC"
    assert file.counts == {"bad_field": 1}


def test_the_files_are_bounded_and_the_newest_stay(tmp_path: Path) -> None:
    """Two files; the older one goes first."""
    file = DeadLetterLog(tmp_path, "late", max_bytes=2_000)
    for number in range(200):
        file.write(DeadLetter(number, "n0", "late", "", b"x" * 50))
    kept = [*_lines(tmp_path / "late.old.jsonl"), *_lines(tmp_path / "late.jsonl")]
    numbers = [line["received_ns"] for line in kept]

    assert numbers == list(range(200 - len(numbers), 200))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 5_000


def test_no_file_exceeds_its_bound_even_by_one_large_letter(tmp_path: Path) -> None:
    file = DeadLetterLog(tmp_path, "late", max_bytes=10_000)
    for number in range(20):
        file.write(DeadLetter(number, "n0", "late", "", b"x" * 4_000))

    assert max(path.stat().st_size for path in tmp_path.iterdir()) <= 10_000
    assert len(list(tmp_path.iterdir())) == 2


def test_letters_are_their_owners_alone(tmp_path: Path) -> None:
    file = DeadLetterLog(tmp_path / "data", "late")
    file.write(DeadLetter(1, "n0", "late", "", b"what a program printed"))

    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "data" / "late.jsonl").stat().st_mode & 0o777 == 0o600
