"""Rows of actions under planned work, as a sink writes them: waiting while it goes on, proposed when it ends."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tests.hand_clock import HandClock
from tests.pipeline.kafka.kit import WaitingSource, topic
from tests.pipeline.stores.samples import ONSET, SECOND, verdict
from tocsin.pipeline.alerts.planned_work import PlannedWork
from tocsin.pipeline.kafka.planned_actions import PlannedActions
from tocsin.pipeline.kafka.topic_sink import TopicSinkConfig
from tocsin.pipeline.kafka.verdict_sink import VerdictSink
from tocsin.pipeline.lab.testing.messages import MemoryBox
from tocsin.pipeline.lab.testing.store import MemoryStore
from tocsin.schemas.operator_notes import Maintenance
from tocsin.schemas.operator_requests import NoteTaken
from tocsin.schemas.verdicts import Component, ComponentKind, Verdict

LEAF = Component(ComponentKind.LEAF, "leaf1")


class World:
    """A store, the work that is planned, and a sink for each batch of verdicts."""

    def __init__(self) -> None:
        self.store, self.work, self.now_ns = MemoryStore(), PlannedWork(), ONSET
        self.planned = PlannedActions(self.work, lambda: self.now_ns)
        self.silenced: list[str | None] = []

    def plan(self, seconds: int, said: int = 0) -> None:
        work = Maintenance("00ff", "c1", LEAF, ONSET, ONSET + seconds * SECOND, "new optics", "operator:ann", said)
        self.work.take(NoteTaken(work, ("n3",)), self.now_ns)

    def run(self, *verdicts: Verdict, then_ns: int = 0) -> None:
        """Write verdicts; then let the sink look once more at another time."""
        stop, clock = threading.Event(), HandClock(1000.0)

        def when_empty() -> None:
            if self.now_ns >= then_ns:
                stop.set()
            self.now_ns = max(self.now_ns, then_ns)

        source = WaitingSource(topic(*verdicts), clock, when_empty)
        config, clock_ns = TopicSinkConfig(), lambda: self.now_ns
        sink = VerdictSink(source, self.store, MemoryBox(), config, clock, clock_ns)
        sink.planned, sink.silence = self.planned, lambda one: self.work.silence(one, self.now_ns)
        sink.run(stop)
        [gauge] = [one for one in sink.families() if one.name == "tocsin_incident"]
        self.silenced = [one.labels.get("silenced") for one in gauge.samples]

    def states(self) -> Sequence[tuple[str, str]]:
        return [(one.state.value, one.detail) for one in self.store.actions_of(["v1"])]


def test_actions_wait_under_work_and_are_proposed_when_it_ends() -> None:
    world = World()
    world.plan(100)
    world.run(verdict("v1"), then_ns=ONSET + 60 * SECOND)
    assert world.states() == [("waiting", "under_maintenance")]
    assert world.silenced == ["under_maintenance"]
    world.run(verdict("v1", 1), then_ns=ONSET + 101 * SECOND)
    assert world.states() == [("proposed", "")]
    assert world.silenced == [None]


def test_what_was_proposed_waits_from_the_begin_of_the_work_to_its_early_end() -> None:
    world = World()
    world.run(verdict("v1"))
    assert world.states() == [("proposed", "")]
    world.now_ns = ONSET + 20 * SECOND
    world.plan(3600)
    world.run(verdict("v1"))
    assert world.states() == [("waiting", "under_maintenance")]
    world.plan(30, said=1)
    world.run(verdict("v1"), then_ns=ONSET + 31 * SECOND)
    assert world.states() == [("proposed", "")]


def test_work_elsewhere_changes_no_row() -> None:
    world = World()
    work = Maintenance("00ff", "c1", LEAF, ONSET, ONSET + 100 * SECOND, "new optics", "operator:ann", 0)
    world.work.take(NoteTaken(work, ("n4",)), ONSET)
    world.run(verdict("v1"), then_ns=ONSET + 101 * SECOND)
    assert world.states() == [("proposed", "")]
    assert len(world.store.actions) == 1
