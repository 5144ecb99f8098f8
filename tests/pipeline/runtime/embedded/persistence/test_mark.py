"""The mark of what is judged: it outlives the process, whatever the names are."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from tocsin.pipeline.runtime.embedded.persistence.epoch_mark import BundleKey, EpochMark, FatalBundle
from tocsin.schemas.records import JobKey
from tocsin.schemas.wire.validate import MAX_NAME_BYTES

LONGEST = {
    "ascii": "a" * MAX_NAME_BYTES,
    "accents": "\u00e9" * (MAX_NAME_BYTES // 2),
    "beyond the basic plane": "\U0001f600" * (MAX_NAME_BYTES // 4),
    "controls": "\x00" * MAX_NAME_BYTES,
    "quotes": '"\\\n' * (MAX_NAME_BYTES // 3),
}


@pytest.mark.parametrize("name", LONGEST.values(), ids=LONGEST.keys())
def test_the_longest_names_are_found_again_and_counted(name: str, tmp_path: Path) -> None:
    job = JobKey(name, name, 3)
    for count in range(3):
        mark = EpochMark(tmp_path / "judging")
        found = mark.suspect
        mark.judging(job, 1_700_000_000_000_000_000)
        mark.close()
        assert found == (FatalBundle(BundleKey(job, 1_700_000_000_000_000_000), count) if count else None)


@pytest.mark.parametrize("text", [b"[" * 4000, b"[1,2]\nab", b'["x",1,1,1]\nab', b"{}", b'["c","j",0,7,1]'])
def test_a_mark_that_says_nothing_of_ours_is_none(text: bytes, tmp_path: Path) -> None:
    EpochMark(tmp_path / "judging").close()
    body = zlib.crc32(text).to_bytes(4, "little") + text
    with (tmp_path / "judging").open("r+b") as file:
        file.write(len(body).to_bytes(2, "little") + body)
    assert EpochMark(tmp_path / "judging").suspect is None
