"""The queue's rows as parts: a queue made from them gives the same notices, whatever happened before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.alerts.verdict_samples import at, verdict
from tocsin.pipeline.alerts.notice import AlertSeverity, DeliveryReason, Notice, NoticeKind
from tocsin.pipeline.alerts.queue import AlertQueue
from tocsin.pipeline.alerts.queue_mirror import QueueMirror
from tocsin.schemas.errors import SnapshotError

NOW = at(60)


class Pair:
    """A queue, its mirror, and the parts that somebody else keeps."""

    def __init__(self, path: Path, parts: dict[str, bytes]) -> None:
        self.queue = AlertQueue(path, NOW)
        self.mirror = QueueMirror(path)
        self.mirror.load(parts)
        self.parts = parts

    def keep(self) -> None:
        for name, data in self.mirror.changes().items():
            if data is None:
                self.parts.pop(name, None)
            else:
                self.parts[name] = data

    def close(self) -> None:
        self.mirror.close()
        self.queue.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path / "first.db", {})
    yield made
    made.close()


def notice(number: int, kind: NoticeKind = NoticeKind.FIRING) -> Notice:
    return Notice("a route/%", kind, AlertSeverity.PAGE, verdict(number), NOW, NOW)


def test_another_queue_goes_on_with_the_parts(pair: Pair, tmp_path: Path) -> None:
    pair.queue.put([(notice(1), "pager"), (notice(2), "pager")], NOW, {"told": 1})
    first, second = pair.queue.take("pager", NOW, 10)
    pair.queue.delivered([first], ["m1"], NOW)
    pair.queue.failed([second], DeliveryReason.TIMED_OUT, NOW + 5)
    pair.keep()
    assert not pair.mirror.has_changes()
    assert pair.mirror.changes() == {}

    other = Pair(tmp_path / "second.db", dict(pair.parts))
    assert other.queue.router_state() == {"told": 1}
    assert other.queue.told_count() == 1
    assert other.queue.take("pager", NOW, 10) == []
    [again] = other.queue.take("pager", NOW + 5, 10)
    assert (again.notice, again.try_count) == (second.notice, 2)
    other.queue.delivered([again], [], NOW + 5)
    other.queue.put([(notice(1, NoticeKind.RESOLVED), "pager")], NOW + 6)
    [end] = other.queue.take("pager", NOW + 6, 10)
    assert end.notice.reference == "m1"
    other.queue.delivered([end], [], NOW + 6)
    other.keep()
    assert other.queue.told_count() == len([name for name in other.parts if name.startswith("told/")]) == 1
    other.close()


def test_what_changes_back_and_forth_is_one_part_as_it_is_now(pair: Pair) -> None:
    pair.queue.put([(notice(1), "pager")], NOW)
    pair.queue.put([(notice(1, NoticeKind.RESOLVED), "pager")], NOW)  # it was never sent: nothing waits
    pair.keep()
    assert [name for name in pair.parts if name.startswith("waiting/")] == []


def test_a_part_that_is_no_row_is_an_error_and_others_are_left_out(pair: Pair) -> None:
    pair.mirror.load({"held": b"[]", "positions": b"x"})
    for data in (b"x", b"[]", b'{"route": "r"}'):
        with pytest.raises(SnapshotError, match="no row"):
            pair.mirror.load({"waiting/r/v": data})
    assert pair.queue.waiting_counts() == {}
