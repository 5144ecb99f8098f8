"""The pages of metrics that tocsin's processes show, made by the code that shows them; Flink's as they were seen."""

from __future__ import annotations

import base64
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

from tests.hand_clock import HandClock
from tests.pipeline.actions.executors.made import made_action
from tests.pipeline.actions.executors.world import StepTarget
from tests.pipeline.actions.kit import CLUSTER, KINDS, verdict_on
from tests.pipeline.kafka.action_kit import CONTROLLER, EXECUTOR, KEYS, ActionWorld
from tests.pipeline.kafka.fleet_kit import second_of
from tests.pipeline.kafka.kit import FaultyStore, drained, topic
from tests.pipeline.kafka.kit import WaitingSource as Source
from tests.pipeline.runtime.embedded.restarts import Life
from tests.pipeline.stores.samples import verdict
from tocsin.collectors.agent import agent_metrics
from tocsin.collectors.agent.runner import CollectorReport
from tocsin.collectors.agent.tally import Tally
from tocsin.collectors.transport.sink import SinkStatus
from tocsin.pipeline.actions.executors.client import ExecutorClient, ExecutorKeys
from tocsin.pipeline.actions.executors.core import ExecutorConfig
from tocsin.pipeline.alerts.notice import DeliveryReason, DeliveryResult
from tocsin.pipeline.alerts.queue import AlertQueue
from tocsin.pipeline.alerts.routes import AlertWatchdog, Route, RouteConfig
from tocsin.pipeline.identity.action_signatures import AckSigner, ActionChecker, ActionSigner
from tocsin.pipeline.incidents.standing import incident_families
from tocsin.pipeline.kafka.active import ActiveConfig, ActiveProcess, ActiveWork
from tocsin.pipeline.kafka.alert_work import AlertWork, AlertWorkConfig
from tocsin.pipeline.kafka.fleet_work import FleetWork
from tocsin.pipeline.kafka.report_sink import ReportSink
from tocsin.pipeline.kafka.topic_sink import TopicSink, TopicSinkConfig
from tocsin.pipeline.kafka.verdicts import KafkaVerdicts
from tocsin.pipeline.lab.testing import JobShape
from tocsin.pipeline.lab.testing.alerts import FakeAdapter
from tocsin.pipeline.lab.testing.messages import MemoryBox
from tocsin.pipeline.lab.testing.seats import MemorySeat, MemorySeats
from tocsin.pipeline.runtime.embedded.alert_follower import AlertFollower, AlertHooks
from tocsin.pipeline.runtime.embedded.ettr_follower import attach_ettr
from tocsin.pipeline.runtime.embedded.fleet_follower import attach_fleet
from tocsin.pipeline.runtime.embedded.service_metrics import families_of
from tocsin.pipeline.runtime.flink.driver import COUNTERS
from tocsin.schemas import events
from tocsin.schemas.action_codec import encode_action
from tocsin.schemas.action_events import ExecutorHeard
from tocsin.schemas.cloudevents import encode_verdict
from tocsin.schemas.formats.prometheus_text import Family, Sample
from tocsin.schemas.kafka.topics import COVERED, EVENTS, VERDICTS
from tocsin.schemas.records import NS_PER_SECOND, RankPlace
from tocsin.schemas.verdicts import ActionKind
from tocsin.schemas.wire.codec import encode

ROUTES = RouteConfig({}, (Route("all", "pager"),), watchdog=AlertWatchdog("dog", 10.0))
BEGIN_NS = 1_800_000_000 * NS_PER_SECOND
_OPERATOR = "flink_taskmanager_job_task_operator"
_FLINK = {
    "flink_jobmanager_numRunningJobs": {"host": "jobmanager"},
    "flink_jobmanager_job_numRestarts": {"job_name": "tocsin"},
    "flink_jobmanager_job_numberOfFailedCheckpoints": {"job_name": "tocsin"},
    f"{_OPERATOR}_currentInputWatermark": {"job_name": "tocsin", "operator_name": "operators"},
    f"{_OPERATOR}_pendingRecords": {"job_name": "tocsin", "operator_name": "source"},
}
"""Flink's own metrics, and labels of theirs, as they stood on the pages of a 2.2.1 cluster that ran the job."""

Pages = Mapping[str, list[Family]]
"""Name of the scrape job -> what one of its processes shows."""


def pages(folder: Path) -> Pages:
    """Return the pages; each metric that can have a sample has one."""
    return {
        "tocsin-agent": _agent(),
        "tocsin-serve": _engine(folder),
        "tocsin-sink": _sinks(),
        "tocsin-controller": [*_active("controller", FleetWork(), (EVENTS, VERDICTS)), *_acting()],
        "tocsin-executor-job": _executor(),
        "tocsin-alerts": _alerts(),
        "tocsin-flink": _flink(),
    }


def _agent() -> list[Family]:
    tally = Tally(Counter({"hello": 1}), Counter({"undecodable": 1}), Counter({"xid": 1}))
    reports = {"nvml": CollectorReport(False, 0.1, "hung"), "host": CollectorReport(True, 0.1, "")}
    skipped = {"host": {"nothing_here": 1}}
    return agent_metrics.families(tally, {"frame": 1}, reports, SinkStatus(dropped_count=1), 0, skipped)


class _PlacedShape(JobShape):
    """A job whose ranks tell all coordinates and their minipods."""

    def place_of(self, rank: int, host: str) -> RankPlace:
        return replace(super().place_of(rank, host), dp=rank, tp=0, minipod=f"pod{rank // 4}")


class _Served(Life):
    """An engine with all that ``tocsin serve`` attaches and that has metrics."""

    def attached(self) -> None:
        attach_fleet(self.service, self.folder)
        attach_ettr(self.service, self.store, self.folder)
        adapters = {"pager": FakeAdapter(), "dog": FakeAdapter()}
        adapters["dog"].answers.append(DeliveryResult(DeliveryReason.SERVER_ERROR))
        adapters["pager"].answers.append(DeliveryResult(DeliveryReason.REJECTED))
        queue = AlertQueue(self.folder / "alerts.db", self.job.now_ns)
        hooks = AlertHooks(counters=self.service.engine.counters)
        now = lambda: self.job.now_ns  # noqa: E731  # the job is younger than its engine
        self.alerts = AlertFollower(ROUTES, adapters, queue, hooks, clock_ns=now, has_threads=False)
        self.service.attach(self.alerts)


def _engine(folder: Path) -> list[Family]:
    life = _Served(folder, _PlacedShape())
    for rank in life.job.ranks:
        life.job.event(rank.rank, events.MODEL, flops_per_step=1e14, gpu_name="NVIDIA H100 80GB HBM3")
    life.run(65)
    life.job.kill(1)
    life.run(5)
    life.alerts.sender.run_once(life.job.now_ns)
    life.service.server.counters["dead_letters_undecodable"] += 1
    life.service.engine.models.counters["accepted"] += 1
    found = families_of(life.service)
    life.end()
    return found


def _sinks() -> list[Family]:
    def failing(sink: TopicSink) -> list[Family]:
        sink.store_errors["store_away"] += 1
        source = KafkaVerdicts(MagicMock(), "verdicts")
        return [*sink.families(), *source.families(sink.metric_prefix)]

    stop, clock = threading.Event(), HandClock(1000.0)
    reports = ReportSink(Source((), clock, stop.set), FaultyStore(), MemoryBox(), TopicSinkConfig(), clock)
    verdicts = drained(topic(verdict("a"), b""), FaultyStore())
    standing = incident_families([verdict("a")])
    shown = {family.name: family for family in (*failing(verdicts), *failing(reports), *standing)}
    return list(shown.values())


def _active(name: str, work: ActiveWork, topics: tuple[str, ...]) -> list[Family]:
    seats = MemorySeats(topics)
    for second in range(6):
        for record in second_of(second, BEGIN_NS, 2) if EVENTS in topics else ():
            seats.write(EVENTS, encode(record))
    seats.write(VERDICTS, encode_verdict(verdict("a")))
    seat, stop = MemorySeat(seats), threading.Event()
    seats.holder, poll = seat, seat.poll

    def polled(seconds: float) -> object:
        found = poll(seconds)
        if not found:
            shown.extend(process.families())
            stop.set()
        return found

    shown: list[Family] = []
    seat.poll = polled  # type: ignore[method-assign, assignment]
    process = ActiveProcess(name, seat, work, ActiveConfig(keep_seconds=0.0), lambda: 0.0)
    process.run(stop)
    return shown


def _acting() -> list[Family]:
    world = ActionWorld()
    world.settle()
    world.judge(verdict_on("n1"))
    world.tell(ExecutorHeard(CLUSTER, "slurm", KINDS, world.now_ns), None)
    world.run(3)
    return world.work.families()


class _OneAction:
    """A channel with one signed action, one without a signature, and an engine that takes no message."""

    def call(self, cmd: str, **args: object) -> dict[str, object]:
        del cmd
        value = encode_action(made_action(ActionKind.RESTART, "n1", now_ns=BEGIN_NS))
        lines = [base64.b64encode(one).decode() for one in (value, ActionSigner(CONTROLLER).header(value), b"")]
        actions = [{"value": lines[0], "signature": lines[1]}, {"value": lines[0], "signature": lines[2]}]
        return {"actions": [] if args["after"] else actions, "seq": 2, "refused": ["unsigned"]}


def _executor() -> list[Family]:
    keys = ExecutorKeys(AckSigner(EXECUTOR), ActionChecker(KEYS))
    configs = [ExecutorConfig("ci", "slurm", frozenset({ActionKind.RESTART}))]
    client = ExecutorClient(configs, _OneAction(), keys, StepTarget([0]), lambda: BEGIN_NS)
    client.exchange()
    return list(client.families())


def _alerts() -> list[Family]:
    work = AlertWork(
        AlertWorkConfig(ROUTES),
        lambda: {"pager": FakeAdapter(), "dog": FakeAdapter()},
        clock_ns=lambda: BEGIN_NS,
        has_threads=False,
    )
    return _active("alerts", work, (VERDICTS, COVERED))


def _flink() -> list[Family]:
    ours = {f"{_OPERATOR}_tocsin_{name}": {"job_name": "tocsin", "operator_name": "operators"} for name in COUNTERS}
    return [Family(name, "gauge", "Flink's", (Sample(labels, 1.0),)) for name, labels in (_FLINK | ours).items()]
