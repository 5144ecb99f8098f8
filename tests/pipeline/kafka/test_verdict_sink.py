"""Verdicts into the database, whatever happens in between: the same rows, nothing lost, nothing stuck."""

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hand_clock import HandClock
from tests.pipeline.kafka.kit import (
    FaultyStore,
    WaitingSource,
    drained,
    tables,
    topic,
)
from tests.pipeline.stores.samples import verdict
from tocsin.pipeline.incidents.proposals import changes_of, standing_after
from tocsin.pipeline.kafka.topic_sink import TopicSinkConfig
from tocsin.pipeline.kafka.verdict_sink import VerdictSink
from tocsin.pipeline.lab.testing.messages import MemoryBox, MemorySource
from tocsin.pipeline.stores.backoff import BackoffConfig
from tocsin.schemas.cloudevents import encode_verdict
from tocsin.schemas.errors import (
    DatabaseNewerError,
    RowRefusedError,
    StoreAwayError,
    StoreError,
    StoreRefusedError,
)
from tocsin.schemas.verdicts import ActionKind, Advice, Component, ComponentKind, Suspect, Verdict, VerdictState

# --- the good way --------------------------------------------------------------------------------


def test_rows_come_first_and_offsets_last() -> None:
    store = FaultyStore()
    stop = threading.Event()
    source = MemorySource(topic(verdict("a"), verdict("b"), verdict("a", 1)), when_empty=stop.set)
    written_at_commit: list[int] = []
    commit = source.commit
    source.commit = lambda batch: (written_at_commit.append(len(store.verdicts)), commit(batch))[1]  # type: ignore[assignment,method-assign,func-returns-value]

    VerdictSink(source, store, MemoryBox()).run(stop)

    assert [(v.verdict_id, v.update) for v in store.verdicts] == [("a", 0), ("b", 0), ("a", 1)]
    assert written_at_commit == [3]
    assert source.committed == {0: 3}


def test_repeated_messages_leave_the_same_rows() -> None:
    values = [verdict("a"), verdict("a", 1), verdict("a", 2, action=ActionKind.NONE, state=VerdictState.RESOLVED)]
    once, often = FaultyStore(), FaultyStore()
    drained(topic(*values), once)
    drained(topic(*values, *values, values[1], values[0], values[2]), often)
    assert tables(often) == tables(once)


def test_the_actions_are_those_of_the_embedded_engine() -> None:
    """Over a restart between any two updates, too: what stood before is read from the database."""
    two = (Suspect(Component(ComponentKind.HOST, "n3")), Suspect(Component(ComponentKind.HOST, "n4")))
    life = [
        verdict("a", 0),
        verdict("a", 1, suspects=two, action=ActionKind.DRAIN),
        verdict("a", 2, action=ActionKind.NONE, state=VerdictState.CANCELLED, reason="recovered"),
        verdict("a", 3, action=ActionKind.NONE, state=VerdictState.CANCELLED, reason="recovered"),
        verdict("a", 4),
        verdict("a", 5, action=ActionKind.NONE, state=VerdictState.EXPIRED, reason="engine_restarted"),
    ]
    embedded = FaultyStore()
    before: tuple[Advice, ...] = ()
    for one in life:
        embedded.write_actions(list(changes_of(one, before)))
        before = standing_after(one, before)
    embedded.verdicts = life
    for cut in range(len(life)):
        store = FaultyStore()
        drained(topic(*life[:cut]), store)
        drained(topic(*life[cut:]), store)
        assert tables(store) == tables(embedded)
        drained(topic(*life[cut:]), store)  # not committed: it comes again
        drained(topic(*life[: cut + 1]), store)
        assert tables(store) == tables(embedded)


def test_an_action_is_one_row_and_only_the_last_stands() -> None:
    """An action that is proposed again is the same one; what is not proposed any more is taken back, also at once."""
    life = [
        verdict("a", 0, action=ActionKind.PROBE),
        verdict("a", 1, action=ActionKind.PROBE),
        verdict("a", 2, action=ActionKind.DRAIN),
        verdict("a", 3, action=ActionKind.PROBE),
    ]
    store = FaultyStore()
    drained(topic(*life, *life[1:3]), store)
    rows = [(one.action.verdict_update, one.action.kind.value, one.state.value) for one in store.actions_of(["a"])]

    assert sorted(rows) == [(0, "probe", "cancelled"), (2, "drain", "cancelled"), (3, "probe", "proposed")]


# --- what cannot be used -------------------------------------------------------------------------


def test_malformed_messages_become_dead_letters_and_stop_nothing() -> None:
    good = encode_verdict(verdict("good"))
    wrong: dict[str, Any] = json.loads(good)
    wrong["data"]["confidence"] = 7
    messages = topic(b"", b"\xff", None, good, json.dumps(wrong).encode(), b"[" * 5000, b"x" * 1_000_001, good)
    store, box = FaultyStore(), MemoryBox()
    sink = drained(messages, store, box)
    assert [v.verdict_id for v in store.verdicts] == ["good", "good"]
    assert [(dead_letter.message.offset_count, dead_letter.reason) for dead_letter in box.dead_letters] == [
        (0, "undecodable"),
        (1, "undecodable"),
        (2, "no_value"),
        (4, "bad_field"),
        (5, "undecodable"),
        (6, "undecodable"),
    ]
    assert "confidence = 7" in box.dead_letters[3].detail
    assert sink.dead_letters == {"undecodable": 4, "no_value": 1, "bad_field": 1}
    assert sink.counters == {"written": 2, "committed": 8}


@given(st.binary() | st.text().map(str.encode), st.data())
def test_no_bytes_stop_the_sink(noise: bytes, data: st.DataObject) -> None:
    good = encode_verdict(verdict("good"))
    at = data.draw(st.integers(0, len(good)))
    store, box = FaultyStore(), MemoryBox()
    drained(topic(noise, good[:at] + noise + good[at:], good), store, box)
    assert store.verdicts[-1] == verdict("good")
    assert len(store.verdicts) + len(box.dead_letters) == 3


def test_a_row_that_the_database_refuses_becomes_a_dead_letter_alone() -> None:
    def fault(rows: Sequence[Verdict]) -> StoreError | None:
        return RowRefusedError("update_number: too large") if any(v.verdict_id == "bad" for v in rows) else None

    store, box = FaultyStore(fault), MemoryBox()
    drained(topic(verdict("a"), verdict("bad"), verdict("b")), store, box)
    assert set(tables(store)[0]) == {"a", "b"}
    assert [(dead_letter.reason, dead_letter.detail) for dead_letter in box.dead_letters] == [
        ("row_refused", "update_number: too large")
    ]


def test_a_lone_row_is_blamed_only_where_another_goes_in() -> None:
    """An error that could be the table's: the last good verdict is the witness."""

    def fault(rows: Sequence[Verdict]) -> StoreError | None:
        return StoreError("strange") if any(v.verdict_id == "bad" for v in rows) else None

    store, box = FaultyStore(fault), MemoryBox()
    stop = threading.Event()
    source = MemorySource(topic(verdict("a"), verdict("bad"), verdict("b")), when_empty=stop.set)
    source.poll_count = 1
    VerdictSink(source, store, box, TopicSinkConfig(linger_seconds=0.0)).run(stop)
    assert set(tables(store)[0]) == {"a", "b"}
    assert [dead_letter.message.offset_count for dead_letter in box.dead_letters] == [1]


def test_a_broken_table_is_waited_for_and_blames_no_row() -> None:
    left = [7]

    def fault(rows: Sequence[Verdict]) -> StoreError | None:
        left[0] -= bool(rows)
        return StoreError("Table tocsin.incidents does not exist") if rows and left[0] > 0 else None

    store, box = FaultyStore(fault), MemoryBox()
    sink = drained(topic(verdict("a"), verdict("b")), store, box)
    assert set(tables(store)[0]) == {"a", "b"}
    assert not box.dead_letters
    assert sink.store_errors["store"] > 0
    assert store.migrate_count > 1, "the tables may have to be made again"


@pytest.mark.parametrize("known", [False, True], ids=["fresh_sink", "known_witness"])
def test_a_broken_table_of_actions_blames_no_verdict(*, known: bool) -> None:
    """A verdict that proposes nothing goes in all the same: it is no witness for those that do."""

    class NoActions(FaultyStore):
        left = 9

        def write_actions(self, changes: Sequence[Any]) -> None:
            self.left -= 1
            if 0 < self.left < 8:
                raise StoreError("Table tocsin.actions does not exist")
            super().write_actions(changes)

    store, box = NoActions(), MemoryBox()
    calm = [verdict(name, action=ActionKind.NONE) for name in ("calm", "calmer")]
    acting = [verdict("a"), verdict("b"), verdict("a", 1, action=ActionKind.NONE, state=VerdictState.RESOLVED)]
    store.left = 9 if known else 8
    stop, clock = threading.Event(), HandClock(1000.0)
    source = WaitingSource(topic(*[verdict("first")][:known], *calm, *acting), clock, stop.set)
    source.poll_count = 1 if known else 100
    sink = VerdictSink(source, store, box, TopicSinkConfig(linger_seconds=0.0), clock)
    sink.run(stop)

    assert not box.dead_letters
    assert {"calm", "calmer", "a", "b"} <= set(tables(store)[0])
    assert {change.action.verdict_id for change in tables(store)[1].values()} >= {"a", "b"}
    assert sink.store_errors["store"] > 0


def test_a_table_that_breaks_while_a_row_is_looked_for_blames_only_that_row() -> None:
    """The bad row is certain; what fails beside it for another reason is not."""
    calls = [0]

    def fault(rows: Sequence[Verdict]) -> StoreError | None:
        calls[0] += bool(rows)
        if any(v.verdict_id == "bad" for v in rows):
            return RowRefusedError("too large")
        return StoreError("Table does not exist") if rows and 2 <= calls[0] <= 8 else None

    store, box = FaultyStore(fault), MemoryBox()
    drained(topic(verdict("a"), verdict("bad"), verdict("b")), store, box)
    assert set(tables(store)[0]) == {"a", "b"}
    assert [dead_letter.message.offset_count for dead_letter in box.dead_letters] == [1]


def test_a_dead_letter_that_cannot_be_kept_is_tried_again_before_the_commit() -> None:
    box = MemoryBox()
    box.failures_left_count = 3
    sink = drained(topic(b"", verdict("a")), FaultyStore(), box)
    assert [dead_letter.reason for dead_letter in box.dead_letters] == ["undecodable"]
    assert sink.store_errors == {"engine": 3}


# --- a database that is away ---------------------------------------------------------------------


def test_an_hour_without_a_database_loses_nothing() -> None:
    clock = HandClock(1000.0)
    back_at = clock.seconds + 3600

    def fault(rows: Sequence[Verdict]) -> StoreError | None:
        return StoreAwayError("connection refused") if clock.seconds < back_at else None

    stop = threading.Event()
    values = [verdict(f"v{n}") for n in range(50)]
    source = WaitingSource(topic(*values), clock, stop.set)
    store = FaultyStore(fault)
    sink = VerdictSink(source, store, MemoryBox(), TopicSinkConfig(), clock)
    sink.run(stop)

    assert set(tables(store)[0]) == {v.verdict_id for v in values}
    assert source.committed == {0: 50}
    assert source.kept_alive_seconds >= 3600, "it stayed a member of its group"
    assert 100 < sink.store_errors["store_away"] < 300, "backs off, but not for good"
    assert sink.health() == (True, "ok")


def test_a_database_that_comes_back_is_looked_at_first() -> None:
    faults: list[StoreError | None] = [None, None, StoreAwayError("gone"), DatabaseNewerError("schema version 9")]
    store = FaultyStore(lambda _: faults.pop(0))
    source = MemorySource(topic(verdict("a"), verdict("b")))
    source.poll_count = 1
    sink = VerdictSink(
        source, store, MemoryBox(), TopicSinkConfig(linger_seconds=0.0, backoff=BackoffConfig(first_seconds=0.0))
    )
    with pytest.raises(DatabaseNewerError, match="version 9"):
        sink.run(threading.Event())
    assert source.committed == {0: 1}


@pytest.mark.parametrize("error", [StoreRefusedError("wrong password"), DatabaseNewerError("version 9")])
@pytest.mark.parametrize("when", [0, 1])
def test_what_needs_a_person_ends_the_sink_and_commits_nothing(error: StoreError, when: int) -> None:
    calls = [0]

    def fault(_: Sequence[Verdict]) -> StoreError | None:
        calls[0] += 1
        return error if calls[0] > when else None

    source = MemorySource(topic(verdict("a")))
    with pytest.raises(type(error), match=str(error)):
        VerdictSink(source, FaultyStore(fault), MemoryBox()).run(threading.Event())
    assert source.committed == {}


def test_what_is_wrong_at_the_start_is_said_at_once() -> None:
    store = FaultyStore(lambda _: StoreError("migration 3 was applied with another checksum"))
    with pytest.raises(StoreError, match="another checksum"):
        VerdictSink(MemorySource([]), store, MemoryBox()).run(threading.Event())


def test_it_stops_while_the_database_is_away_and_commits_nothing() -> None:
    stop = threading.Event()
    source = MemorySource(topic(verdict("a")))
    source.keep_alive = lambda _: stop.set()  # type: ignore[assignment,method-assign]
    calls = [0]

    def fault(rows: Sequence[Verdict]) -> StoreError | None:
        calls[0] += 1
        return StoreAwayError("gone") if rows else None

    VerdictSink(source, FaultyStore(fault), MemoryBox()).run(stop)
    assert source.committed == {}


# --- what it tells -------------------------------------------------------------------------------


def test_metrics_name_every_outcome() -> None:
    sink = drained(topic(verdict("a"), b""), FaultyStore())
    shown: Mapping[str, dict[str, float]] = {
        family.name: {"".join(sample.labels.values()): sample.value for sample in family.samples}
        for family in sink.families()
    }
    assert shown == {
        "tocsin_sink_messages_total": {"written": 1, "committed": 2},
        "tocsin_sink_dead_letters_total": {"undecodable": 1},
        "tocsin_sink_failures_total": {},
        "tocsin_sink_waiting": {"": 0},
        "tocsin_incident": {},
        "tocsin_incidents_not_shown": {"": 0},
    }


def test_a_batch_is_bounded_in_bytes() -> None:
    store = FaultyStore()
    sizes: list[int] = []
    write = store.write_verdicts
    store.write_verdicts = lambda rows: (sizes.append(len(rows)), write(rows))[1]  # type: ignore[assignment,method-assign,func-returns-value]
    value = replace(verdict("a"))
    stop = threading.Event()
    source = MemorySource(topic(*[value] * 9), when_empty=stop.set)
    source.poll_count = 1
    limit = 2 * len(encode_verdict(value))
    VerdictSink(source, store, MemoryBox(), TopicSinkConfig(batch_bytes=limit)).run(stop)
    assert sizes == [2, 2, 2, 2, 1]


def test_what_stands_of_its_partitions_is_shown_until_it_is_over() -> None:
    now_ns = verdict("a").detected_ns
    stop = threading.Event()
    source = MemorySource(topic(verdict("a"), verdict("b"), verdict("b", 1, state=VerdictState.RESOLVED)), {}, stop.set)
    sink = VerdictSink(source, FaultyStore(), MemoryBox(), wall_ns=lambda: now_ns)
    sink.run(stop)
    shown = {family.name: family for family in sink.families()}["tocsin_incident"].samples

    assert [(sample.labels["host"], sample.labels["state"]) for sample in shown] == [("n3", "open")]


def test_where_the_controller_acts_no_proposals_are_written() -> None:
    store, clock, stop = FaultyStore(), HandClock(1000.0), threading.Event()
    sink = VerdictSink(WaitingSource(topic(verdict("a")), clock, stop.set), store, MemoryBox(), clock=clock)
    sink.is_replaced = True
    sink.run(stop)
    assert [one.verdict_id for one in store.verdicts] == ["a"]
    assert store.actions == []
