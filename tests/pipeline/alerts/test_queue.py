"""The queue of notices: the newest replaces, ends are never lost, and a damaged file is moved aside."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tests.pipeline.alerts.verdict_samples import at, verdict
from tocsin.pipeline.alerts.notice import AlertSeverity, DeliveryReason, Notice, NoticeKind
from tocsin.pipeline.alerts.queue import AlertQueue
from tocsin.pipeline.alerts.queue_file import QueueReason


def _notice(
    kind: NoticeKind, second: int, number: int = 1, severity: AlertSeverity = AlertSeverity.PAGE
) -> tuple[Notice, str]:
    return Notice("all", kind, severity, verdict(number, second, update=second), at(0), at(second)), "r"


@pytest.fixture
def queue(tmp_path: Path) -> AlertQueue:
    return AlertQueue(tmp_path / "alerts.db", at(0))


def _kinds(queue: AlertQueue, second: int) -> list[str]:
    return [one.notice.kind.value for one in queue.take("r", at(second), 10)]


def test_the_newest_replaces_and_stays_a_firing(queue: AlertQueue) -> None:
    queue.put([_notice(NoticeKind.FIRING, 0)], at(0))
    assert queue.put([_notice(NoticeKind.CHANGED, 1)], at(1)) == 1
    (one,) = queue.take("r", at(2), 10)

    assert one.notice.kind is NoticeKind.FIRING
    assert one.notice.verdict == verdict(1, 1, update=1)


def test_a_change_after_a_kill_is_told_as_one_though_the_firing_may_never_have_gone_out(
    queue: AlertQueue, tmp_path: Path
) -> None:
    queue.put([_notice(NoticeKind.FIRING, 0)], at(0))
    queue.take("r", at(0), 10)  # killed here, before or after it was sent
    queue.close()
    again = AlertQueue(tmp_path / "alerts.db", at(1))
    again.put([_notice(NoticeKind.CHANGED, 1)], at(1))

    assert _kinds(again, 2) == ["changed"]


def test_an_end_removes_what_never_arrived(queue: AlertQueue) -> None:
    queue.put([_notice(NoticeKind.FIRING, 0)], at(0))
    queue.failed(queue.take("r", at(0), 10), DeliveryReason.UNREACHABLE, at(1))
    queue.put([_notice(NoticeKind.RESOLVED, 2)], at(2))

    assert queue.waiting_counts() == {}


@pytest.mark.parametrize("reason", [DeliveryReason.TIMED_OUT, None])
def test_an_end_stays_where_the_firing_may_have_arrived(queue: AlertQueue, reason: DeliveryReason | None) -> None:
    queue.put([_notice(NoticeKind.FIRING, 0)], at(0))
    sent = queue.take("r", at(0), 10)
    if reason is not None:
        queue.failed(sent, reason, at(1))
        queue.failed(queue.take("r", at(1), 10), DeliveryReason.UNREACHABLE, at(2))
    queue.put([_notice(NoticeKind.RESOLVED, 2)], at(2))

    assert _kinds(queue, 2) == ["resolved"]


def test_an_end_that_comes_while_the_firing_is_sent_is_sent_after_it(queue: AlertQueue) -> None:
    queue.put([_notice(NoticeKind.FIRING, 0)], at(0))
    sent = queue.take("r", at(0), 10)
    queue.put([_notice(NoticeKind.RESOLVED, 2)], at(2))
    queue.delivered(sent, ("m1",), at(3))
    (end,) = queue.take("r", at(3), 10)

    assert end.notice.kind is NoticeKind.RESOLVED
    assert end.notice.reference == "m1"
    queue.delivered([end], (), at(4))
    assert (queue.told_count(), queue.waiting_counts()) == (0, {})


def test_all_is_there_after_a_restart(queue: AlertQueue, tmp_path: Path) -> None:
    queue.put([_notice(NoticeKind.FIRING, 0), _notice(NoticeKind.FIRING, 0, 2)], at(0), {"a": 1})
    queue.delivered(queue.take("r", at(0), 1), ("m",), at(0))
    fresh = AlertQueue(tmp_path / "alerts.db", at(1))  # the first one was killed

    assert fresh.router_state() == {"a": 1}
    assert fresh.told_count() == 1
    assert fresh.waiting_counts() == {"r": 1}
    assert fresh.begun_anew is None
    assert [one.notice.reference for one in fresh.resends("r", at(5), 10)] == ["m"]
    assert stat.S_IMODE((tmp_path / "alerts.db").stat().st_mode) & 0o007 == 0


def test_pages_go_first(queue: AlertQueue) -> None:
    queue.put([_notice(NoticeKind.FIRING, 0, 1, AlertSeverity.TICKET), _notice(NoticeKind.FIRING, 1, 2)], at(1))

    assert [one.notice.severity.value for one in queue.take("r", at(1), 1)] == ["page"]


def test_a_damaged_file_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "alerts.db"
    path.write_bytes(b"no database at all, but long enough to be one" * 100)
    queue = AlertQueue(path, at(0))

    assert queue.begun_anew is QueueReason.FILE_DAMAGED
    assert (tmp_path / f"alerts.db.damaged-{at(0)}").exists()
    assert queue.put([_notice(NoticeKind.FIRING, 0)], at(0)) == 0
    assert queue.drop_unknown(["other"]) == 1
