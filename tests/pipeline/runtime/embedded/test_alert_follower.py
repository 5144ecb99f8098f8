"""Alerts in the embedded engine: one page for one fault, over a kill, and a watchdog while it ticks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.alerts.verdict_samples import at, verdict
from tests.pipeline.runtime.embedded.restarts import Life
from tocsin.pipeline.alerts.adapters import ADAPTERS
from tocsin.pipeline.alerts.notice import AlertSeverity, DeliveryReason, DeliveryResult, NoticeKind
from tocsin.pipeline.alerts.queue import AlertQueue
from tocsin.pipeline.alerts.routes import AlertWatchdog, Route, RouteConfig
from tocsin.pipeline.lab.testing.alerts import FakeAdapter
from tocsin.pipeline.runtime.embedded.alert_follower import AlertFollower, AlertHooks, attach_alerts
from tocsin.pipeline.runtime.embedded.listener.knock import knock
from tocsin.pipeline.runtime.embedded.listener_watch import ListenerWatch
from tocsin.pipeline.runtime.embedded.store_writer import Write
from tocsin.pipeline.runtime.job_pipeline import JobPipeline

ROUTES = RouteConfig({}, (Route("all", "pager"),), watchdog=AlertWatchdog("dog", 10.0))


class Alerted(Life):
    """An engine's life with alerts; the receivers outlive it."""

    def __init__(self, folder: Path) -> None:
        self.pager, self.dog = FakeAdapter(), FakeAdapter()
        self.seconds = 0.0
        super().__init__(folder)

    def attached(self) -> None:
        queue, server = AlertQueue(self.folder / "alerts.db", self.job.now_ns), self.service.server
        self.listener = ListenerWatch(lambda: knock(server.address, has_tls=server.has_tls), lambda: self.seconds)
        self.alerts = AlertFollower(
            ROUTES,
            {"pager": self.pager, "dog": self.dog},
            queue,
            AlertHooks(
                on_sent=lambda row: self.service.writer.put(Write(alerts=(row,))),
                counters=self.service.engine.counters,
                listener=self.listener,
            ),
            clock_ns=lambda: self.job.now_ns,
            has_threads=False,
        )
        self.service.attach(self.alerts)

    def step(self, second: int, strike: int = -1) -> None:
        if second == strike:
            self.job.kill(1)
        if self.is_up:
            self.alerts.sender.run_once(self.job.now_ns)


def test_one_page_over_a_kill(tmp_path: Path) -> None:
    life = Alerted(tmp_path)
    life.run(40, lambda second: life.step(second, 20))
    life.step(0)
    first = [one.verdict.verdict_id for one in life.pager.sent if one.kind is NoticeKind.FIRING]
    assert first
    life.kill()
    life.run(3)
    life.start()
    life.run(30, life.step)

    fired = [one.verdict.verdict_id for one in life.pager.sent if one.kind is NoticeKind.FIRING]
    assert fired == first
    assert len(set(fired)) == len(fired)
    life.end()
    assert life.pager.is_closed
    rows = [(row.verdict_id, row.kind, row.outcome) for row in life.store.alerts_sent]
    assert rows == [(first[0], "firing", "delivered")] * 2, "once more at the start, the same row"
    assert len(set(life.store.alerts_sent)) == 1


def test_actions_that_nobody_executes_silence_no_page(tmp_path: Path) -> None:
    life = Alerted(tmp_path)
    life.run(40, lambda second: life.step(second, 20))

    assert life.standing() > 0, "an action is proposed, and nothing executed it"
    assert [one.kind for one in life.pager.sent] == [NoticeKind.FIRING]
    assert life.pager.sent[0].severity is AlertSeverity.PAGE
    life.end()


def test_a_page_is_resolved_after_a_kill_and_nothing_is_told_again(tmp_path: Path) -> None:
    life = Alerted(tmp_path)
    life.run(40, lambda second: life.step(second, 20))
    (page,) = life.pager.sent
    life.kill()
    life.run(2)
    life.start()
    life.client.call("incident_close", id=page.verdict.verdict_id, note="mine")
    life.run(30, life.step)

    ends = [one for one in life.pager.sent if one.is_ending]
    assert [one.verdict.verdict_id for one in ends] == [page.verdict.verdict_id]
    assert ends[0].reference == f"m-{page.verdict.verdict_id}"
    assert len(life.pager.sent) == 2
    life.end()


def test_killed_before_it_was_sent_the_page_goes_out_after_the_start(tmp_path: Path) -> None:
    life = Alerted(tmp_path)
    life.pager.answers = [DeliveryResult(DeliveryReason.UNREACHABLE)] * 1000
    life.run(40, lambda second: life.step(second, 20))
    assert life.pager.sent == []
    assert life.alerts.status()["waiting"]["pager"] >= 1
    assert life.alerts.status()["troubles"] == {"pager": "unreachable"}
    families = {one.name: one for one in life.alerts.families()}
    (age,) = [
        one for one in families["tocsin_alerts_oldest_waiting_seconds"].samples if one.labels["receiver"] == "pager"
    ]
    assert age.value > 5
    life.kill()
    life.pager.answers = []
    life.start()
    life.run(30, life.step)

    fired = [one.verdict.verdict_id for one in life.pager.sent if one.kind is NoticeKind.FIRING]
    assert fired
    assert len(set(fired)) == len(fired)
    life.end()


def test_the_watchdog_fires_while_it_ticks_and_status_and_metrics_tell(tmp_path: Path) -> None:
    life = Alerted(tmp_path)
    life.run(43, lambda second: life.step(second, 5))
    life.step(0)

    assert [one.kind for one in life.dog.sent] == [NoticeKind.WATCHDOG] * 4
    status = life.client.call("status")["alerts"]
    assert status["sent"]["dog"] == {"delivered": 4}
    assert status["waiting"] == {}
    assert status["watchdog"]["withheld"] == ""
    assert all(row.receiver != "dog" for row in life.store.alerts_sent)
    families = {one.name: one for one in life.alerts.families()}
    samples = {tuple(one.labels.values()): one.value for one in families["tocsin_alerts_sent_total"].samples}
    assert samples["dog", "delivered"] == 4
    assert {one.labels["receiver"] for one in families["tocsin_alerts_waiting"].samples} == {"dog", "pager"}
    life.end()


def test_the_watchdog_falls_silent_when_the_engine_ticks_and_judges_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Alerted(tmp_path)
    life.run(25, life.step)
    before = len(life.dog.sent)
    assert before > 0

    def broken(*_args: object) -> None:
        raise ValueError("no")

    monkeypatch.setattr(JobPipeline, "on_bundle", broken)
    life.run(60, life.step)
    assert len(life.dog.sent) <= before + 1, "one may have been on its way"
    assert life.client.call("status")["alerts"]["watchdog"]["withheld"] == "raised"
    assert life.service.death() == ""
    monkeypatch.undo()
    life.run(40, life.step)
    assert len(life.dog.sent) > before + 1
    life.end()


def test_the_watchdog_falls_silent_when_the_listener_answers_no_knock(tmp_path: Path) -> None:
    life = Alerted(tmp_path)
    life.run(25, life.step)
    before = len(life.dog.sent)
    assert before > 0
    life.service.server.close()  # its thread is gone, and all else goes on

    def step(second: int) -> None:
        life.seconds += 1.0
        if second % 10 == 0:
            life.listener.knock()
        life.step(second)

    life.run(90, step)
    assert len(life.dog.sent) <= before + 4, "those of the first half minute"
    assert life.client.call("status")["alerts"]["watchdog"]["withheld"] == "listener_silent"
    life.end()


def test_a_routes_file_is_attached_with_a_thread_for_each_receiver(tmp_path: Path) -> None:
    path = tmp_path / "alerts.yaml"
    path.write_text(
        "version: 1\n"
        "receivers:\n  hook: {kind: webhook, url: 'http://127.0.0.1:9/', signing_key_env: TOCSIN_TEST_KEY}\n"
        "routes:\n  - {name: all, receiver: hook}\n"
    )
    life = Life(tmp_path)
    life.end()
    life.attached = lambda: setattr(  # type: ignore[method-assign]  # one more follower
        life, "alerts", attach_alerts(life.service, path, tmp_path, ADAPTERS)
    )
    life.start()

    assert [thread.name for thread in life.service.followers.threads()] == ["alerts-hook"]
    assert life.service.death() == ""
    life.end()


def test_a_queue_that_cannot_be_written_hurts_no_tick_and_is_counted(tmp_path: Path) -> None:
    life = Alerted(tmp_path)
    life.alerts.queue.close()
    for second in range(30):
        life.alerts.on_verdicts([], life.job.now_ns + second * 1_000_000_000)

    assert life.service.death() == ""
    assert life.dog.sent == []


def test_no_secret_lands_in_the_queue_or_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    secret = "hunter2" * 5
    monkeypatch.setenv("TOCSIN_TEST_KEY", secret[:32])
    monkeypatch.setenv("TOCSIN_TEST_URL", f"http://127.0.0.1:9/{secret}")
    settings: list[dict[str, object]] = [
        {"kind": "webhook", "url_env": "TOCSIN_TEST_URL", "signing_key_env": "TOCSIN_TEST_KEY"},
        {"kind": "slack", "webhook_url_env": "TOCSIN_TEST_URL"},
        {"kind": "pagerduty", "url": "http://127.0.0.1:9/", "routing_key_env": "TOCSIN_TEST_KEY"},
    ]
    adapters = {str(one["kind"]): ADAPTERS[str(one["kind"])].make(one, "receivers.r") for one in settings}
    routes = RouteConfig({}, tuple(Route(name, name, goes_on=True) for name in adapters))
    queue = AlertQueue(tmp_path / "alerts.db", at(0))
    alerts = AlertFollower(routes, adapters, queue, clock_ns=lambda: at(1), has_threads=False)
    alerts.on_verdicts([verdict()], at(1))
    alerts.sender.run_once(at(1))

    assert queue.waiting_counts() == dict.fromkeys(adapters, 1)
    assert len(caplog.records) >= len(adapters)
    kept = b"".join(path.read_bytes() for path in tmp_path.glob("alerts.db*"))
    assert b"gpu_lost" in kept
    assert b"hunter2" not in kept
    assert "hunter2" not in str([record.__dict__ for record in caplog.records]) + str(alerts.status())
