"""Alerts over topics: one page for one fault, whoever is active when, and nothing that the fleet's incident tells."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from tests.pipeline.kafka.fleet_kit import second_of
from tests.pipeline.stores.samples import ONSET, SECOND, verdict
from tocsin.pipeline.alerts.notice import DeliveryReason, DeliveryResult, NoticeKind
from tocsin.pipeline.alerts.queue import AlertQueue, QueuedNotice
from tocsin.pipeline.alerts.routes import AlertWatchdog, Route, RouteConfig
from tocsin.pipeline.alerts.told_parts import told_of
from tocsin.pipeline.identity.action_signatures import ActionChecker, ActionSigner
from tocsin.pipeline.identity.message_signatures import new_signing_key, public_half
from tocsin.pipeline.kafka.alert_work import AlertWork, AlertWorkConfig
from tocsin.pipeline.kafka.consumer_api import Message
from tocsin.pipeline.kafka.fleet_work import FleetWork, covered_output
from tocsin.pipeline.kafka.operator_notes import taken_output
from tocsin.pipeline.kafka.topic_sink import Check
from tocsin.pipeline.lab.testing.alerts import FakeAdapter
from tocsin.pipeline.lab.testing.seats import MemorySeat, MemorySeats
from tocsin.pipeline.stores.alert_codec import decode_alert
from tocsin.schemas.action_codec import encode_action
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action, ActionTarget, action_id_of
from tocsin.schemas.cloudevents import encode_verdict
from tocsin.schemas.covers import Cover
from tocsin.schemas.credentials import Role
from tocsin.schemas.errors import IdentityError, TakenOverError
from tocsin.schemas.job_key import FLEET_JOB_ID
from tocsin.schemas.kafka.topics import ACTIONS, ALERTS_SENT, COVERED, EVENTS, NOTES_TAKEN, VERDICTS
from tocsin.schemas.operator_notes import Maintenance
from tocsin.schemas.operator_requests import NoteTaken
from tocsin.schemas.reasons import IdentityRefusal, Reason
from tocsin.schemas.verdicts import ActionKind, Component, ComponentKind, Verdict, VerdictState
from tocsin.schemas.wire.codec import encode

ROUTES = RouteConfig({}, (Route("all", "pager"),), watchdog=AlertWatchdog("dog", 60.0))
_CONTROLLER = new_signing_key(Role.CONTROLLER, "controller", 1)
FIRING, RESOLVED = NoticeKind.FIRING, NoticeKind.RESOLVED


class World:
    """The topics, the receivers, and the processes, one after another."""

    def __init__(self, *, is_acting: bool = False) -> None:
        self.seats = MemorySeats((VERDICTS, COVERED, NOTES_TAKEN, ACTIONS))
        self.read_action = ActionChecker([public_half(_CONTROLLER)]).admit if is_acting else None
        self.pager, self.dog = FakeAdapter(), FakeAdapter()
        self.check: Check | None = None
        self.now_ns = ONSET + 60 * SECOND
        self.begin()

    def begin(self) -> None:
        """Another process takes over; the former one does nothing any more."""
        self.seat = MemorySeat(self.seats)
        self.seats.holder, self.seat.poll_count = self.seat, 1000
        adapters = {"pager": self.pager, "dog": self.dog}
        self.work = AlertWork(
            AlertWorkConfig(ROUTES, read_action=self.read_action),
            lambda: adapters,
            None,
            self.check,
            clock_ns=lambda: self.now_ns,
            has_threads=False,
        )
        self.work.begin(*self.seat.take_over())

    def say(self, *verdicts: Verdict) -> None:
        for one in verdicts:
            self.seats.write(VERDICTS, encode_verdict(one))

    def plan(self, target: Component, seconds: int, *hosts: str, said: int = 0) -> None:
        """Work that begins now is told by the controller; ``said``: when, among several words on it."""
        end_ns = self.now_ns + seconds * SECOND
        work = Maintenance("00ff", "c1", target, self.now_ns, end_ns, "new cable", "operator:ann", said)
        output = taken_output(NoteTaken(work, hosts))
        self.seats.write(NOTES_TAKEN, output.value, output.key)

    def page(self, about: Verdict, detail: str, *, is_forged: bool = False) -> None:
        """The controller of actions wants people to know something."""
        target = ActionTarget(about.job, None, ())
        times = self.now_ns, self.now_ns + 600 * SECOND, ActionState.DONE, "held_for_long", self.now_ns
        action_id = action_id_of(about.verdict_id, ActionKind.NOTIFY, target)
        words = (action_id, about.verdict_id, 0, ActionKind.NOTIFY, target, about.cause, "controller", "controller")
        value = encode_action(Action(*words, *times, detail=detail))
        signature = b"forged" if is_forged else ActionSigner(_CONTROLLER).header(value)
        self.seats.write(ACTIONS, value, signature=signature)

    def run(self, seconds: int = 1) -> None:
        """Let time pass: read, commit what is due."""
        for _ in range(seconds):
            self.now_ns += SECOND
            self.work.take(self.seat.poll(0.0))
            self.commit()

    def commit(self) -> None:
        if self.work.is_due():
            changes = self.work.changes()
            self.seat.commit(self.work.outputs(), changes)
            self.work.committed()

    def send(self) -> None:
        """Send in another thread, as a sender does, while this one commits."""
        sending = threading.Thread(target=self.work.send_once)
        sending.start()
        while sending.is_alive():
            self.commit()
            sending.join(0.001)
        self.commit()

    def told(self) -> list[tuple[NoticeKind, str]]:
        return [(one.kind, one.verdict.verdict_id) for one in self.pager.sent]


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.work.end()


def confirmed(name: str, update: int = 0, state: VerdictState = VerdictState.CONFIRMED) -> Verdict:
    return verdict(name, update, state=state, detected_ns=ONSET + (10 + update) * SECOND)


def test_a_page_goes_out_once_whoever_is_active(world: World) -> None:
    world.say(confirmed("v1"))
    world.run(2)
    world.begin()  # killed while the line waits for the controller's word
    world.run(5)
    world.begin()  # killed before it was sent
    world.send()
    assert world.told() == [(FIRING, "v1")]
    world.begin()  # killed after it was sent
    world.say(confirmed("v1", 1))
    world.run(5)
    world.send()
    world.say(confirmed("v1", 2, VerdictState.RESOLVED))
    world.run(5)
    world.begin()
    world.send()
    assert world.told() == [(FIRING, "v1"), (RESOLVED, "v1")]
    assert world.pager.sent[-1].reference == "m-v1"
    rows = [decode_alert(one.value or b"") for one in world.seats.log[ALERTS_SENT]]
    assert [(one.verdict_id, one.kind, one.outcome) for one in rows if one.receiver == "pager"] == [
        ("v1", "firing", "delivered"),
        ("v1", "resolved", "delivered"),
    ]


def test_a_failed_page_is_tried_again_by_the_next_process(world: World) -> None:
    world.pager.answers = [DeliveryResult(DeliveryReason.UNREACHABLE)]
    world.say(confirmed("v1"))
    world.run(5)
    world.send()
    assert world.told() == []
    world.begin()
    world.run(300)
    world.send()
    assert world.told() == [(FIRING, "v1")]


def test_a_process_that_was_replaced_sends_nothing(world: World) -> None:
    world.say(confirmed("v1"))
    world.run(5)
    old, seat = world.work, world.seat
    world.begin()
    sending = threading.Thread(target=old.send_once)
    sending.start()
    while not old.is_due():
        sending.join(0.001)
    with pytest.raises(TakenOverError):
        seat.commit([], old.changes())
    old.end()
    sending.join()
    assert world.told() == []
    world.send()
    assert world.told() == [(FIRING, "v1")]


def test_what_a_fleet_incident_stands_for_pages_nobody_even_after_a_takeover(world: World) -> None:
    world.say(confirmed("v1"))
    world.run(1)
    output = covered_output(Cover(confirmed("v1").job.cluster, "v1", "fleet1", world.now_ns))
    world.seats.write(COVERED, output.value, output.key)
    world.run(5)
    world.send()
    world.begin()
    world.say(confirmed("v1", 1), confirmed("v2"))
    world.run(5)
    world.send()
    assert world.told() == [(FIRING, "v2")]


def test_many_hosts_that_fail_alike_are_one_page_about_the_fleet(world: World) -> None:
    fleet = FleetWork()
    fleet.begin({}, {EVENTS: 1, VERDICTS: 1})
    for second in range(13):
        lines = [encode(one) for one in second_of(second, world.now_ns, 8)]
        fleet.take([Message(EVENTS, 0, second, None, line) for line in lines])
    for output in fleet.outputs():
        world.seats.write(output.topic, output.value, output.key)
    world.run(5)
    world.send()

    [(kind, _)] = world.told()
    [page] = world.pager.sent
    assert (kind, page.verdict.job.job_id) == (FIRING, FLEET_JOB_ID)
    fleet.end()


def test_the_watchdog_is_told_until_the_canaries_stop(world: World) -> None:
    world.run(3)
    world.send()
    assert [one.kind for one in world.dog.sent] == [NoticeKind.WATCHDOG]
    canary = verdict("c1", 0, state=VerdictState.RESOLVED, reason=Reason.CANARY.value)
    world.say(canary)
    world.run(601)
    world.send()
    count = len(world.dog.sent)
    assert count > 1
    world.run(120)
    world.send()
    assert len(world.dog.sent) <= count + 1
    world.say(canary)
    world.run(61)
    world.send()
    assert len(world.dog.sent) > count


def test_a_message_that_is_no_verdict_is_counted_and_left_out(world: World) -> None:
    world.seats.write(VERDICTS, b"no verdict")
    world.say(confirmed("v1"))
    world.run(5)
    world.send()
    assert world.told() == [(FIRING, "v1")]
    assert sum(world.work.refused.values()) == 1


@pytest.mark.parametrize(
    ("target", "hosts"),
    [
        (Component(ComponentKind.HOST, "n3"), ()),
        (Component(ComponentKind.LEAF, "leaf1"), ("n2", "n3")),
        (Component(ComponentKind.JOB, "job-1"), ()),
    ],
)
def test_under_planned_work_nobody_is_told_until_it_ends(
    world: World, target: Component, hosts: tuple[str, ...]
) -> None:
    world.plan(target, 60, *hosts)
    world.say(confirmed("v1"))
    world.run(10)
    world.begin()  # killed while the work holds the line
    world.run(45)
    world.send()
    assert world.told() == []
    world.run(10)
    world.send()
    assert world.told() == [(FIRING, "v1")]


def test_work_that_is_ended_early_holds_nothing_any_more(world: World) -> None:
    host = Component(ComponentKind.HOST, "n3")
    world.plan(host, 3600)
    world.say(confirmed("v1"))
    world.run(10)
    world.plan(host, 0, said=1)
    world.run(2)
    world.send()
    assert world.told() == [(FIRING, "v1")]


def test_the_row_of_a_delivery_and_its_state_are_written_together(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.say(confirmed("v1"))
    world.run(5)
    between = threading.Event()
    real = AlertQueue.delivered

    def slow(self: AlertQueue, batch: Sequence[QueuedNotice], references: Sequence[str], now_ns: int) -> None:
        if batch[0].receiver == "pager":
            between.set()
            time.sleep(0.2)  # the row is there, the state is not: what is read now must hold neither or, later, both
        real(self, batch, references, now_ns)

    monkeypatch.setattr(AlertQueue, "delivered", slow)
    sending = threading.Thread(target=world.work.send_once)
    sending.start()
    while not between.wait(0.001):
        world.commit()
    world.commit()
    rows = [decode_alert(one.value or b"").receiver for one in world.seats.log.get(ALERTS_SENT, [])]
    parts = told_of(world.seats.state, world.now_ns)
    standing = [one.receiver for one in parts if (one.state, one.receiver) == ("standing", "pager")]
    assert rows == standing
    while sending.is_alive():
        world.commit()
        sending.join(0.001)


def test_the_state_says_to_a_person_what_stands_and_what_waits(world: World) -> None:
    world.say(confirmed("v1"))
    world.run(5)
    [waits] = [one for one in told_of(world.seats.state, world.now_ns) if one.receiver == "pager"]
    assert (waits.state, waits.route, waits.verdict_id) == ("waiting", "all", "v1")
    world.send()
    [stands] = [one for one in told_of(world.seats.state, world.now_ns) if one.receiver == "pager"]
    assert (stands.state, stands.verdict_id, stands.kind) == ("standing", "v1", FIRING)


def test_work_on_another_host_holds_nothing(world: World) -> None:
    world.plan(Component(ComponentKind.LEAF, "leaf1"), 3600, "n2", "n4")
    world.say(confirmed("v1"))
    world.run(5)
    world.send()
    assert world.told() == [(FIRING, "v1")]


def test_work_that_ended_long_ago_leaves_the_state(world: World) -> None:
    world.plan(Component(ComponentKind.HOST, "n3"), 60)
    world.say(confirmed("v1"))
    world.run(70)
    assert [name for name in world.seats.state if name.startswith("work/")] == ["work/00ff"]
    world.now_ns += 2 * 3600 * SECOND
    world.begin()
    world.say(confirmed("v2"))
    world.run(5)
    assert [name for name in world.seats.state if name.startswith("work/")] == []


def test_notes_that_no_engine_signed_hold_nothing(world: World) -> None:
    def check(value: bytes, signature: bytes | None, at_ns: int) -> None:
        if b"maintenance_id" in value:
            raise IdentityError(IdentityRefusal.UNSIGNED, "no signature")

    world.check = check
    world.begin()
    world.plan(Component(ComponentKind.HOST, "n3"), 3600)
    world.say(confirmed("v1"))
    world.run(5)
    world.send()
    assert world.told() == [(FIRING, "v1")]
    assert world.work.refused == {"unsigned": 1}


def test_the_age_of_what_waits_is_a_metric(world: World) -> None:
    world.pager.answers = [DeliveryResult(DeliveryReason.UNREACHABLE)]
    world.say(confirmed("v1"))
    world.run(5)
    world.send()
    world.now_ns += 100 * SECOND
    [family] = [one for one in world.work.families() if one.name == "tocsin_alerts_oldest_waiting_seconds"]
    ages = {one.labels["receiver"]: one.value for one in family.samples}
    assert 100 <= ages["pager"] <= 106
    assert ages["dog"] < 106


def test_what_people_are_to_know_of_an_action_is_told_where_its_incident_was_told() -> None:
    world = World(is_acting=True)
    world.say(confirmed("v1"))
    world.page(confirmed("v1"), "evict n1: nobody who is alive carries it out")
    world.run(2)
    world.begin()  # killed while both wait
    world.run(4)
    world.send()
    world.run(8)
    world.send()
    assert world.told() == [(FIRING, "v1"), (NoticeKind.CHANGED, "v1")]
    assert world.pager.sent[-1].note == "evict n1: nobody who is alive carries it out"
    world.page(confirmed("v1"), "evict n1: a forged sentence", is_forged=True)
    world.begin()
    world.run(10)
    world.send()
    assert len(world.told()) == 2
    assert sum(world.work.refused.values()) == 1
    world.work.end()
