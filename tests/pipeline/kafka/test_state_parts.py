"""The state in pieces: what is written is read, leftovers of longer parts do not count."""

import pytest

from tocsin.pipeline.kafka.state_parts import PIECE_BYTES, StateParts, pack_positions, unpack_positions
from tocsin.schemas.errors import SnapshotError

Log = dict[bytes, bytes | None]


def read(log: Log) -> tuple[StateParts, dict[str, bytes]]:
    parts = StateParts()
    for key, value in log.items():
        parts.take(key, value)
    return parts, parts.parts()


def test_long_short_and_removed_parts_are_read_as_they_were_written() -> None:
    log: Log = {}
    writer, _ = read(log)
    long = bytes(range(256)) * (PIECE_BYTES // 100)
    log.update(writer.records({"a#b/c": long, "empty": b"", "gone": b"x"}))
    assert max(len(value or b"") for value in log.values()) <= PIECE_BYTES + 4

    reader, found = read(log)
    assert found == {"a#b/c": long, "empty": b"", "gone": b"x"}
    log.update(reader.records({"a#b/c": b"short", "gone": None}))
    again, found = read(log)
    assert found == {"a#b/c": b"short", "empty": b""}
    assert [key for key, value in log.items() if value is not None] == [b"a#b/c#0", b"empty#0"]
    log.update(again.records({"a#b/c": long}))
    assert read(log)[1]["a#b/c"] == long


def test_a_missing_piece_is_an_error_and_foreign_records_are_none() -> None:
    log: Log = dict(StateParts().records({"part": bytes(PIECE_BYTES + 1)}))
    del log[b"part#1"]
    with pytest.raises(SnapshotError, match="1 of 2 pieces"):
        read(log)
    assert read({b"no piece": b"x", b"#": b"x"})[1] == {}


def test_positions_are_read_as_they_were_written() -> None:
    positions = {("events", 0): 7, ("events", 1): 0, ("verdicts", 0): 1 << 40}
    assert unpack_positions(pack_positions(positions)) == positions
    with pytest.raises(SnapshotError, match="damaged"):
        unpack_positions(b"[[1]]")
