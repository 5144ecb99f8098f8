"""The sender: a dead receiver delays no other, tries get rarer, and nothing is lost or sent twice."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.pipeline.alerts.verdict_samples import at, verdict
from tocsin.pipeline.alerts.notice import AlertSeverity, DeliveryReason, DeliveryResult, Notice, NoticeKind
from tocsin.pipeline.alerts.queue import AlertQueue
from tocsin.pipeline.alerts.sender import AlertSender, SenderConfig
from tocsin.pipeline.lab.testing.alerts import FakeAdapter
from tocsin.pipeline.stores.alert_sent import AlertSent

DEAD = DeliveryResult(DeliveryReason.UNREACHABLE)


def _notice(kind: NoticeKind, second: int, number: int = 1, receiver: str = "a") -> tuple[Notice, str]:
    return Notice("all", kind, AlertSeverity.PAGE, verdict(number, second), at(0), at(second)), receiver


class Bench:
    """A queue, two receivers and a sender."""

    def __init__(self, folder: Path, resend_seconds: float | None = None) -> None:
        self.queue = AlertQueue(folder / "alerts.db", at(0))
        self.a, self.b = FakeAdapter(resend_seconds=resend_seconds), FakeAdapter()
        self.rows: list[AlertSent] = []
        config = SenderConfig(jitter_seconds=0.0, give_up_after_seconds={"all": 1000})
        self.sender = AlertSender(self.queue, {"a": self.a, "b": self.b}, config, self.rows.append)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_dead_receiver_delays_no_other_and_is_tried_ever_more_seldom(bench: Bench) -> None:
    bench.a.answers = [DEAD] * 5
    bench.queue.put([_notice(NoticeKind.FIRING, 0), _notice(NoticeKind.FIRING, 0, 2, "b")], at(0))
    calls = []
    for second in range(60):
        before = bench.a.call_count
        bench.sender.run_once(at(second))
        if bench.a.call_count > before:
            calls.append(second)

    assert calls == [0, 1, 3, 7, 15, 31]
    assert len(bench.a.sent) == len(bench.b.sent) == 1
    (row,) = [row for row in bench.rows if row.receiver == "a"]
    assert (row.outcome, row.tries_count, row.receiver_kind, row.kind) == ("delivered", 6, "fake", "firing")
    assert (row.made_ns, row.sent_ns) == (at(0), at(31))
    assert bench.sender.outcomes() == {("a", "unreachable"): 5, ("a", "delivered"): 1, ("b", "delivered"): 1}


def test_a_receiver_that_asks_to_wait_is_left_alone(bench: Bench) -> None:
    bench.a.answers = [DeliveryResult(DeliveryReason.RATE_LIMITED, retry_after_seconds=40)]
    bench.queue.put([_notice(NoticeKind.FIRING, 0)], at(0))
    for second in range(40):
        bench.sender.run_once(at(second))
    assert bench.a.call_count == 1
    bench.sender.run_once(at(40))

    assert len(bench.a.sent) == 1


def test_it_gives_up_after_a_while(bench: Bench) -> None:
    bench.a.answers = [DEAD] * 100
    bench.queue.put([_notice(NoticeKind.FIRING, 0)], at(0))
    for second in range(0, 1300, 10):
        bench.sender.run_once(at(second))

    assert [(row.outcome, row.detail) for row in bench.rows] == [("gave_up", "unreachable")]
    assert bench.queue.waiting_counts() == {}


def test_one_bad_notice_takes_no_other_with_it(bench: Bench) -> None:
    bad = DeliveryResult(DeliveryReason.REJECTED)
    good = DeliveryResult(DeliveryReason.DELIVERED)
    bench.a.answers = [bad, good, bad, good]
    bench.queue.put([_notice(NoticeKind.FIRING, 0, number) for number in range(3)], at(0))
    assert bench.sender.run_once(at(0)) == 2

    assert len(bench.a.sent) == 2
    assert sorted(row.outcome for row in bench.rows) == ["delivered", "delivered", "rejected"]
    assert bench.queue.waiting_counts() == {}


def test_a_standing_incident_is_sent_again_until_its_end(tmp_path: Path) -> None:
    bench = Bench(tmp_path, resend_seconds=60)
    bench.queue.put([_notice(NoticeKind.FIRING, 0)], at(0))
    for second in range(0, 200, 10):
        bench.sender.run_once(at(second))
    assert [one.kind.value for one in bench.a.sent] == ["firing"] * 4
    bench.queue.put([_notice(NoticeKind.RESOLVED, 200)], at(200))
    for second in range(200, 400, 10):
        bench.sender.run_once(at(second))

    assert [one.kind.value for one in bench.a.sent] == [*["firing"] * 4, "resolved"]
    assert bench.a.sent[-1].reference == f"m-{verdict(1).verdict_id}"
    assert len(bench.rows) == 2


def test_killed_between_two_runs_it_sends_once(bench: Bench, tmp_path: Path) -> None:
    bench.queue.put([_notice(NoticeKind.FIRING, 0)], at(0))
    bench.sender.run_once(at(0))
    other = Bench(tmp_path)
    other.sender.run_once(at(1))

    assert len(bench.a.sent) == 1
    assert other.a.sent == []


def test_an_adapter_that_raises_ends_nothing_and_its_words_are_kept_nowhere(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(FakeAdapter):
        def send(self, notices: Sequence[Notice], now_ns: int) -> DeliveryResult:
            if self.call_count < 3:
                self.call_count += 1
                raise RuntimeError("hunter2")
            return super().send(notices, now_ns)

    bench.a = Broken()
    bench.sender = AlertSender(bench.queue, {"a": bench.a}, SenderConfig(jitter_seconds=0.0), bench.rows.append)
    bench.queue.put([_notice(NoticeKind.FIRING, 0)], at(0))
    for second in range(20):
        bench.sender.run_once(at(second))

    assert len(bench.a.sent) == 1
    assert "RuntimeError" in str([record.__dict__ for record in caplog.records])
    assert "hunter2" not in f"{bench.rows}{[record.__dict__ for record in caplog.records]}"


def test_one_that_fails_always_holds_up_no_other_even_a_page(tmp_path: Path) -> None:
    class Picky(FakeAdapter):
        def send(self, notices: Sequence[Notice], now_ns: int) -> DeliveryResult:
            if notices[0].verdict.verdict_id == verdict(1).verdict_id:
                return DeliveryResult(DeliveryReason.SERVER_ERROR)
            return super().send(notices, now_ns)

    adapter, queue = Picky(max_batch_count=1), AlertQueue(tmp_path / "alerts.db", at(0))
    sender = AlertSender(queue, {"a": adapter}, SenderConfig(jitter_seconds=0.0))
    ticket = Notice("all", NoticeKind.FIRING, AlertSeverity.TICKET, verdict(2), at(0), at(0))
    queue.put([_notice(NoticeKind.FIRING, 0), (ticket, "a")], at(0))
    for second in range(20):
        sender.run_once(at(second))

    assert [one.verdict.verdict_id for one in adapter.sent] == [verdict(2).verdict_id]


def test_what_was_sent_is_kept_for_a_day(bench: Bench, tmp_path: Path) -> None:
    bench.queue.put([_notice(NoticeKind.FIRING, 0)], at(0))
    bench.sender.run_once(at(1))
    again = AlertQueue(tmp_path / "alerts.db", at(2))

    assert again.kept_sent(at(3)) == bench.rows
    assert len(bench.rows) == 1
    assert again.kept_sent(at(2 * 86_400)) == []


@pytest.mark.parametrize(
    ("reason", "told"), [(DeliveryReason.UNREACHABLE, []), (DeliveryReason.TIMED_OUT, ["resolved"])]
)
def test_the_end_of_what_was_given_up_is_told_only_where_it_may_have_arrived(
    bench: Bench, reason: DeliveryReason, told: list[str]
) -> None:
    bench.a.answers = [DeliveryResult(reason)] * 100
    bench.queue.put([_notice(NoticeKind.FIRING, 0)], at(0))
    for second in range(0, 1300, 10):
        bench.sender.run_once(at(second))
    assert [row.outcome for row in bench.rows] == ["gave_up"]
    bench.a.answers = []
    bench.queue.put([_notice(NoticeKind.RESOLVED, 2000)], at(2000))
    bench.sender.run_once(at(2000))

    assert [one.kind.value for one in bench.a.sent] == told
    assert bench.queue.told_count() == 0


def test_the_end_of_what_was_refused_is_not_told(bench: Bench) -> None:
    bench.a.answers = [DeliveryResult(DeliveryReason.REJECTED)]
    bench.queue.put([_notice(NoticeKind.FIRING, 0)], at(0))
    bench.sender.run_once(at(0))
    bench.queue.put([_notice(NoticeKind.RESOLVED, 2)], at(2))
    bench.sender.run_once(at(2))

    assert bench.a.sent == []
    assert bench.queue.waiting_counts() == {}


MISTAKES = [DeliveryReason.UNAUTHORISED, DeliveryReason.NOT_FOUND, DeliveryReason.REDIRECTED]


@pytest.mark.parametrize("reason", MISTAKES)
def test_a_mistake_in_configuration_drops_no_page_and_is_tried_ever_more_seldom(
    bench: Bench, reason: DeliveryReason
) -> None:
    bench.sender = AlertSender(bench.queue, {"a": bench.a}, SenderConfig(jitter_seconds=0.0), bench.rows.append)
    bench.a.answers = [DeliveryResult(reason)] * 14
    bench.queue.put([_notice(NoticeKind.FIRING, 0)], at(0))
    calls = []
    for second in range(4000):
        before = bench.a.call_count
        bench.sender.run_once(at(second))
        calls += [second] if bench.a.call_count > before else []
        if second == 3000:
            assert bench.sender.troubles() == {"a": reason.value}
            assert bench.queue.waiting_counts() == {"a": 1}

    waits = [after - before for before, after in itertools.pairwise(calls)]
    assert waits[:12] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]
    bench.a.answers = []  # mended
    bench.sender.run_once(at(4600))
    assert [one.kind.value for one in bench.a.sent] == ["firing"]
    assert bench.sender.troubles() == {}
    assert [row.outcome for row in bench.rows] == ["delivered"]


def test_a_mistake_that_is_mended_by_a_restart_is_tried_at_once(bench: Bench, tmp_path: Path) -> None:
    bench.a.answers = [DeliveryResult(DeliveryReason.UNAUTHORISED)] * 20
    bench.queue.put([_notice(NoticeKind.FIRING, 0)], at(0))
    for second in range(700):
        bench.sender.run_once(at(second))
    assert bench.a.sent == []
    other = Bench(tmp_path)
    other.sender.run_once(at(701))

    assert [one.kind.value for one in other.a.sent] == ["firing"]


def test_a_page_that_is_out_of_date_is_given_up_and_the_incident_counts_as_untold(bench: Bench) -> None:
    bench.a.answers = [DeliveryResult(DeliveryReason.NOT_FOUND)] * 100
    bench.queue.put([_notice(NoticeKind.FIRING, 0)], at(0))
    for second in range(0, 2500, 10):
        bench.sender.run_once(at(second))

    assert [(row.outcome, row.detail) for row in bench.rows] == [("gave_up", "not_found")]
    assert bench.sender.lost() == {verdict(1).verdict_id: "gave_up"}
    bench.a.answers = []
    bench.queue.put([_notice(NoticeKind.RESOLVED, 2500)], at(2500))
    bench.sender.run_once(at(4000))
    assert bench.a.sent == []


def test_an_alert_that_ends_by_itself_is_sent_again_before_it_does(tmp_path: Path) -> None:
    bench = Bench(tmp_path, resend_seconds=60)
    bench.queue.put([_notice(NoticeKind.FIRING, 0)], at(0))
    bench.sender.run_once(at(0))
    bench.a.answers = [DeliveryResult(DeliveryReason.NOT_FOUND)] * 9
    for second in range(1, 400):
        bench.sender.run_once(at(second))

    assert len(bench.a.sent) >= 2
