"""Reports into the database: the same rows however often they come; what is none becomes a dead letter."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from tests.hand_clock import HandClock
from tests.pipeline.kafka.action_kit import KEYS, ActionWorld
from tests.pipeline.kafka.kit import WaitingSource
from tests.pipeline.kafka.test_action_work import struck
from tests.pipeline.stores.samples import JOB, ONSET
from tests.pipeline.stores.test_alert_codec import ROW
from tests.pipeline.stores.test_attempt_starts import STARTED
from tests.pipeline.stores.test_attempt_time_codec import TOLD
from tests.pipeline.stores.test_report_codec import STATE, point
from tests.schemas.test_operator_notes import JUDGED, WORK
from tocsin.pipeline.identity.action_signatures import AckChecker, ActionChecker
from tocsin.pipeline.kafka.consumer_api import Message
from tocsin.pipeline.kafka.report_sink import ReportSink
from tocsin.pipeline.kafka.topic_sink import TopicSinkConfig
from tocsin.pipeline.lab.testing.messages import MemoryBox
from tocsin.pipeline.lab.testing.store import MemoryStore
from tocsin.pipeline.stores.alert_codec import encode_alert
from tocsin.pipeline.stores.attempt_start_codec import encode_attempt_start
from tocsin.pipeline.stores.attempt_time_codec import encode_attempt_time
from tocsin.pipeline.stores.base import EvidencePoint, HostHealth, JobStatus
from tocsin.pipeline.stores.report_codec import encode_evidence, encode_health, encode_status
from tocsin.schemas.action_events import AckKind
from tocsin.schemas.covers import Cover, encode_cover
from tocsin.schemas.errors import IdentityError, RowRefusedError, StoreAwayError
from tocsin.schemas.kafka.topics import (
    ACTION_ACKS,
    ACTIONS,
    ALERTS_SENT,
    COVERED,
    ETTR,
    EVIDENCE,
    HOST_HEALTH,
    JOB_STATUS,
    LATE,
    NOTES_TAKEN,
    topic_name,
)
from tocsin.schemas.operator_requests import NoteTaken, encode_taken
from tocsin.schemas.reasons import IdentityRefusal

MINUTE = HostHealth(JOB, "n1", ONSET, 60, 1, 2)
STATUS = JobStatus(JOB, ONSET, True, STATE, [])
[SERIES], [MINUTES] = encode_evidence([point(1), point(2)]), encode_health([MINUTE])
COVER = Cover("c1", "v1", "f1", 5)


def messages(*reported: tuple[str, bytes | None]) -> list[Message]:
    return [Message(topic_name(name), 0, offset, b"c1/job-1", value) for offset, (name, value) in enumerate(reported)]


def drained(
    found: Sequence[Message], store: MemoryStore, box: MemoryBox, config: TopicSinkConfig | None = None
) -> ReportSink:
    stop, clock = threading.Event(), HandClock(1000.0)
    sink = ReportSink(WaitingSource(found, clock, stop.set), store, box, config or TopicSinkConfig(), clock)
    sink.run(stop)
    return sink


def test_each_topic_fills_its_table() -> None:
    store, box = MemoryStore(), MemoryBox()
    reported = (
        (EVIDENCE, SERIES),
        (HOST_HEALTH, MINUTES),
        (JOB_STATUS, encode_status(STATUS)),
        (ETTR, encode_attempt_time(TOLD)),
        (ETTR, encode_attempt_start(STARTED)),
        (ALERTS_SENT, encode_alert(ROW)),
        (NOTES_TAKEN, encode_taken(NoteTaken(JUDGED))),
        (NOTES_TAKEN, encode_taken(NoteTaken(WORK, ("n1",)))),
        (COVERED, encode_cover(COVER)),
    )
    sink = drained(messages(*reported), store, box)

    assert [one.ts_ns for one in store.evidence] == [point(1).ts_ns, point(2).ts_ns]
    assert (store.health, store.statuses, box.dead_letters) == ([MINUTE], [STATUS], [])
    assert (store.alerts_sent, store.attempt_times, store.notes) == ([ROW], [TOLD], [JUDGED, WORK])
    assert store.attempt_starts == [STARTED]
    assert store.covers == [COVER]
    assert sink.counters == {"written": 9, "committed": 9}


def test_the_controller_s_actions_are_rows_and_its_own_keys_check_them() -> None:
    world, store, box = ActionWorld(), MemoryStore(), MemoryBox()
    struck(world)
    [signed] = [one for one in world.seats.log[ACTIONS] if b'"notify"' not in (one.value or b"")]
    forged = replace(signed, offset_count=signed.offset_count + 1, signature=None)
    config = TopicSinkConfig(action_check=ActionChecker(KEYS).check, ack_check=AckChecker(KEYS).admit)
    world.ack(world.actions()[-1], AckKind.CLAIMED)
    world.ack(world.actions()[-1], AckKind.STARTED, signer=None)
    drained([signed, forged], store, box, config)
    drained(world.seats.log[ACTION_ACKS], store, MemoryBox(), config)

    assert [(one.state.value, one.action.verdict_id, one.action.dry_run) for one in store.actions_of(["v1"])] == [
        ("approved", "v1", False)
    ]
    assert [one.state.value for one in store.action_changes] == ["approved"]
    assert [one.kind for one in store.action_acks] == [AckKind.CLAIMED], "and not what nobody signed"
    assert [one.reason for one in box.dead_letters] == ["unsigned"]


def test_what_is_no_report_becomes_a_dead_letter_and_stops_nothing() -> None:
    store, box = MemoryStore(), MemoryBox()
    drained(messages((EVIDENCE, b"{}"), (JOB_STATUS, None), (LATE, SERIES), (HOST_HEALTH, MINUTES)), store, box)

    assert [(one.message.offset_count, one.reason) for one in box.dead_letters] == [
        (0, "bad_field"),
        (1, "no_value"),
        (2, "unknown_topic"),
    ]
    assert store.health == [MINUTE]


def test_a_report_that_the_database_refuses_is_the_only_one_left_out() -> None:
    class Picky(MemoryStore):
        def write_evidence(self, points: Sequence[EvidencePoint]) -> None:
            if any(one.metric == "bad" for one in points):
                raise RowRefusedError("peer_count: too large")
            super().write_evidence(points)

    store, box = Picky(), MemoryBox()
    [bad] = encode_evidence([point(1, metric="bad")])
    drained(messages((EVIDENCE, bad), (EVIDENCE, SERIES), (HOST_HEALTH, MINUTES)), store, box)

    assert [one.reason for one in box.dead_letters] == ["row_refused"]
    assert (len(store.evidence), store.health) == (2, [MINUTE])


def test_a_database_that_is_away_is_waited_for() -> None:
    class Away(MemoryStore):
        left = 5

        def write_host_health(self, minutes: Sequence[HostHealth]) -> None:
            self.left -= 1
            if self.left > 0:
                raise StoreAwayError("connection refused")
            super().write_host_health(minutes)

    store, box = Away(), MemoryBox()
    sink = drained(messages((HOST_HEALTH, MINUTES)), store, box)

    assert (store.health, box.dead_letters) == ([MINUTE], [])
    assert sink.store_errors == {"store_away": 4}


def test_an_unsigned_report_is_refused_where_signatures_are_asked_for() -> None:
    def check(value: bytes, signature: bytes | None, ts_ns: int) -> None:
        raise IdentityError(IdentityRefusal.UNSIGNED, f"{len(value)} {signature!r} {ts_ns}")

    store, box = MemoryStore(), MemoryBox()
    drained(messages((EVIDENCE, SERIES)), store, box, TopicSinkConfig(check=check))

    assert ([one.reason for one in box.dead_letters], store.evidence) == (["unsigned"], [])


def test_its_metrics_have_names_of_their_own() -> None:
    sink = drained(messages((EVIDENCE, SERIES)), MemoryStore(), MemoryBox())

    assert {family.name for family in sink.families()} == {
        "tocsin_report_sink_messages_total",
        "tocsin_report_sink_dead_letters_total",
        "tocsin_report_sink_failures_total",
        "tocsin_report_sink_waiting",
    }
