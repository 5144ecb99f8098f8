"""Verdicts into the database, whatever happens in between: the same rows, nothing lost, nothing stuck."""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.stores.samples import ONSET, SECOND, verdict
from tocsin.pipeline.consume.messages import DeadLetter, Message
from tocsin.pipeline.consume.verdict_sink import SinkConfig, VerdictSink
from tocsin.pipeline.proposals import changes_of, proposals_of
from tocsin.pipeline.stores.base import ActionChange
from tocsin.pipeline.stores.patience import PatienceConfig
from tocsin.pipeline.testing.messages import MemoryBox, MemorySource
from tocsin.pipeline.testing.store import MemoryStore
from tocsin.schemas.cloudevents import encode_verdict
from tocsin.schemas.errors import (
    DatabaseNewerError,
    RowRefusedError,
    StoreAwayError,
    StoreError,
    StoreRefusedError,
)
from tocsin.schemas.verdicts import Action, ActionKind, Component, ComponentKind, Suspect, Verdict, VerdictState


def message(of: Verdict | bytes | None, offset: int, partition: int = 0) -> Message:
    value = encode_verdict(of) if isinstance(of, Verdict) else of
    return Message("tocsin.verdicts", partition, offset, b"c1/job-1", value)


def topic(*values: Verdict | bytes | None) -> list[Message]:
    return [message(value, offset) for offset, value in enumerate(values)]


class Clock:
    """Time that passes only while a sink waits."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


class TestStore(MemoryStore):
    """A store that fails as it is told: ``fault(rows)`` returns the error of a write, or None."""

    __test__ = False

    def __init__(self, fault: Callable[[Sequence[Verdict]], StoreError | None] = lambda _: None) -> None:
        super().__init__()
        self.fault = fault
        self.migrate_count = 0

    def migrate(self) -> int:
        self.migrate_count += 1
        error = self.fault(())
        if error is not None:
            raise error
        return 6

    def write_verdicts(self, verdicts: Sequence[Verdict]) -> None:
        error = self.fault(verdicts)
        if error is not None:
            raise error
        super().write_verdicts(verdicts)


Tables = tuple[dict[str, Verdict], dict[tuple[object, ...], ActionChange]]


def tables(store: MemoryStore) -> Tables:
    """What stays: the highest update of a verdict, the latest change of an action."""
    incidents: dict[str, Verdict] = {}
    for one in store.verdicts:
        if one.verdict_id not in incidents or incidents[one.verdict_id].update <= one.update:
            incidents[one.verdict_id] = one
    ids = sorted({change.action.verdict_id for change in store.actions})
    actions: dict[tuple[object, ...], ActionChange] = {}
    for change in store.actions_of(ids):
        action: Action = change.action
        actions[action.verdict_id, action.verdict_update, action.kind, action.target] = change
    return incidents, actions


def drained(messages: Sequence[Message], store: MemoryStore, box: MemoryBox | None = None) -> VerdictSink:
    """Run a sink until the topic is empty."""
    stop = threading.Event()
    clock = Clock()
    sink = VerdictSink(_Waiting(messages, clock, stop.set), store, box or MemoryBox(), SinkConfig(), clock)
    sink.run(stop)
    return sink


class _Waiting(MemorySource):
    """Lets the clock go on while it is kept alive, and says when it is empty."""

    def __init__(self, messages: Sequence[Message], clock: Clock, when_empty: Callable[[], None]) -> None:
        super().__init__(messages, when_empty=when_empty)
        self._clock = clock

    def keep_alive(self, seconds: float) -> None:
        super().keep_alive(seconds)
        self._clock.seconds += seconds


# --- the good way --------------------------------------------------------------------------------


def test_rows_come_first_and_offsets_last() -> None:
    store = TestStore()
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
    once, often = TestStore(), TestStore()
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
    embedded = TestStore()
    before: tuple[Action, ...] = ()
    for one in life:
        embedded.write_actions(list(changes_of(one, before)))
        before = proposals_of(one)
    embedded.verdicts = life
    for cut in range(len(life)):
        store = TestStore()
        drained(topic(*life[:cut]), store)
        drained(topic(*life[cut:]), store)
        assert tables(store) == tables(embedded)


# --- what cannot be used -------------------------------------------------------------------------


def test_malformed_messages_become_dead_letters_and_stop_nothing() -> None:
    good = encode_verdict(verdict("good"))
    wrong: dict[str, Any] = json.loads(good)
    wrong["data"]["confidence"] = 7
    messages = topic(b"", b"\xff", None, good, json.dumps(wrong).encode(), b"[" * 5000, b"x" * 1_000_001, good)
    store, box = TestStore(), MemoryBox()
    sink = drained(messages, store, box)
    assert [v.verdict_id for v in store.verdicts] == ["good", "good"]
    assert [(letter.message.offset_count, letter.reason) for letter in box.letters] == [
        (0, "undecodable"),
        (1, "undecodable"),
        (2, "no_value"),
        (4, "bad_field"),
        (5, "undecodable"),
        (6, "undecodable"),
    ]
    assert "confidence = 7" in box.letters[3].detail
    assert sink.dead_letters == {"undecodable": 4, "no_value": 1, "bad_field": 1}
    assert sink.counters == {"written": 2, "committed": 8}


@given(st.binary() | st.text().map(str.encode), st.data())
def test_no_bytes_stop_the_sink(noise: bytes, data: st.DataObject) -> None:
    good = encode_verdict(verdict("good"))
    at = data.draw(st.integers(0, len(good)))
    store, box = TestStore(), MemoryBox()
    drained(topic(noise, good[:at] + noise + good[at:], good), store, box)
    assert store.verdicts[-1] == verdict("good")
    assert len(store.verdicts) + len(box.letters) == 3


def test_a_row_that_the_database_refuses_becomes_a_dead_letter_alone() -> None:
    def fault(rows: Sequence[Verdict]) -> StoreError | None:
        return RowRefusedError("update_number: too large") if any(v.verdict_id == "bad" for v in rows) else None

    store, box = TestStore(fault), MemoryBox()
    drained(topic(verdict("a"), verdict("bad"), verdict("b")), store, box)
    assert set(tables(store)[0]) == {"a", "b"}
    assert [(letter.reason, letter.detail) for letter in box.letters] == [("row_refused", "update_number: too large")]


def test_a_lone_row_is_blamed_only_where_another_goes_in() -> None:
    """An error that could be the table's: the last good verdict is the witness."""

    def fault(rows: Sequence[Verdict]) -> StoreError | None:
        return StoreError("strange") if any(v.verdict_id == "bad" for v in rows) else None

    store, box = TestStore(fault), MemoryBox()
    stop = threading.Event()
    source = MemorySource(topic(verdict("a"), verdict("bad"), verdict("b")), when_empty=stop.set)
    source.poll_count = 1
    VerdictSink(source, store, box, SinkConfig(linger_seconds=0.0)).run(stop)
    assert set(tables(store)[0]) == {"a", "b"}
    assert [letter.message.offset_count for letter in box.letters] == [1]


def test_a_broken_table_is_waited_for_and_blames_no_row() -> None:
    left = [7]

    def fault(rows: Sequence[Verdict]) -> StoreError | None:
        left[0] -= bool(rows)
        return StoreError("Table tocsin.incidents does not exist") if rows and left[0] > 0 else None

    store, box = TestStore(fault), MemoryBox()
    sink = drained(topic(verdict("a"), verdict("b")), store, box)
    assert set(tables(store)[0]) == {"a", "b"}
    assert not box.letters
    assert sink.store_errors["store"] > 0
    assert store.migrate_count > 1, "the tables may have to be made again"


def test_a_dead_letter_that_cannot_be_kept_is_tried_again_before_the_commit() -> None:
    box = MemoryBox()
    box.failures_left_count = 3
    sink = drained(topic(b"", verdict("a")), TestStore(), box)
    assert [letter.reason for letter in box.letters] == ["undecodable"]
    assert sink.store_errors == {"engine": 3}


# --- a database that is away ---------------------------------------------------------------------


def test_an_hour_without_a_database_loses_nothing() -> None:
    clock = Clock()
    back_at = clock.seconds + 3600

    def fault(rows: Sequence[Verdict]) -> StoreError | None:
        return StoreAwayError("connection refused") if clock.seconds < back_at else None

    stop = threading.Event()
    values = [verdict(f"v{n}") for n in range(50)]
    source = _Waiting(topic(*values), clock, stop.set)
    store = TestStore(fault)
    sink = VerdictSink(source, store, MemoryBox(), SinkConfig(), clock)
    sink.run(stop)

    assert set(tables(store)[0]) == {v.verdict_id for v in values}
    assert source.committed == {0: 50}
    assert source.kept_alive_seconds >= 3600, "it stayed a member of its group"
    assert 100 < sink.store_errors["store_away"] < 300, "backs off, but not for good"
    assert sink.health() == (True, "ok")


def test_a_database_that_comes_back_is_looked_at_first() -> None:
    faults: list[StoreError | None] = [None, None, StoreAwayError("gone"), DatabaseNewerError("schema version 9")]
    store = TestStore(lambda _: faults.pop(0))
    source = MemorySource(topic(verdict("a"), verdict("b")))
    source.poll_count = 1
    sink = VerdictSink(
        source, store, MemoryBox(), SinkConfig(linger_seconds=0.0, patience=PatienceConfig(first_seconds=0.0))
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
        VerdictSink(source, TestStore(fault), MemoryBox()).run(threading.Event())
    assert source.committed == {}


def test_what_is_wrong_at_the_start_is_said_at_once() -> None:
    store = TestStore(lambda _: StoreError("migration 3 was applied with another checksum"))
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

    VerdictSink(source, TestStore(fault), MemoryBox()).run(stop)
    assert source.committed == {}


# --- killed --------------------------------------------------------------------------------------


class Killed(BaseException):
    """kill -9 as far as the sink can tell: nothing of it runs any more."""


class _Mortal:
    """Counts what a sink does to the world, and kills it before or after one of these."""

    def __init__(self, deaths: Sequence[int]) -> None:
        self._deaths = set(deaths)
        self._count = 0

    def around(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def mortal(*args: Any) -> Any:
            self._tick()
            answer = work(*args)
            self._tick()
            return answer

        return mortal

    def _tick(self) -> None:
        self._count += 1
        if self._count in self._deaths:
            raise Killed


VERDICTS = st.builds(
    lambda name, update, closing: verdict(
        f"v{name}",
        update,
        action=ActionKind.NONE if closing else ActionKind.RESTART,
        state=VerdictState.RESOLVED if closing else VerdictState.OPEN,
        detected_ns=ONSET + (5 + update) * SECOND,
    ),
    st.integers(0, 2),
    st.integers(0, 3),
    st.booleans(),
)


def _lives(values: Sequence[Verdict]) -> list[Verdict]:
    """One content for each (id, update), in the order in which an engine says them."""
    said: dict[tuple[str, int], Verdict] = {(v.verdict_id, v.update): v for v in values}
    return [said[key] for key in sorted(said, key=lambda key: key[1])]


@given(st.lists(VERDICTS, max_size=12), st.lists(st.integers(1, 60), max_size=8), st.integers(1, 4))
def test_killed_at_any_moment_and_restarted_the_tables_are_equal(
    values: list[Verdict], deaths: list[int], poll_count: int
) -> None:
    messages = topic(*_lives(values), b"poison")
    wanted = TestStore()
    drained(messages, wanted)

    store, box, committed = TestStore(), MemoryBox(), dict[int, int]()
    mortal = _Mortal(deaths)
    for _ in range(len(deaths) + 1):
        stop = threading.Event()
        source = MemorySource(messages, committed, stop.set)
        source.poll_count = poll_count
        source.commit = mortal.around(source.commit)  # type: ignore[method-assign]
        one = _Delegate(store, mortal)
        letters = _Letters(box, mortal)
        try:
            VerdictSink(source, one, letters, SinkConfig(linger_seconds=0.0)).run(stop)
        except Killed:
            continue
        break
    assert tables(store) == tables(wanted)
    assert committed == {0: len(messages)}
    assert {letter.message.offset_count for letter in box.letters} == {len(messages) - 1}


class _Delegate(TestStore):
    """The same tables in another process."""

    def __init__(self, store: MemoryStore, mortal: _Mortal) -> None:
        super().__init__()
        self.verdicts, self.actions = store.verdicts, store.actions
        self.write_verdicts = mortal.around(super().write_verdicts)  # type: ignore[method-assign]
        self.write_actions = mortal.around(super().write_actions)  # type: ignore[method-assign]


class _Letters:
    def __init__(self, box: MemoryBox, mortal: _Mortal) -> None:
        self._write = mortal.around(box.write)

    def write(self, letters: Sequence[DeadLetter]) -> None:
        self._write(letters)


# --- what it tells -------------------------------------------------------------------------------


def test_metrics_name_every_outcome() -> None:
    sink = drained(topic(verdict("a"), b""), TestStore())
    shown: Mapping[str, dict[str, float]] = {
        family.name: {"".join(sample.labels.values()): sample.value for sample in family.samples}
        for family in sink.families()
    }
    assert shown == {
        "tocsin_sink_messages_total": {"written": 1, "committed": 2},
        "tocsin_sink_dead_letters_total": {"undecodable": 1},
        "tocsin_sink_failures_total": {},
        "tocsin_sink_waiting": {"": 0},
    }


def test_a_batch_is_bounded_in_bytes() -> None:
    store = TestStore()
    sizes: list[int] = []
    write = store.write_verdicts
    store.write_verdicts = lambda rows: (sizes.append(len(rows)), write(rows))[1]  # type: ignore[assignment,method-assign,func-returns-value]
    value = replace(verdict("a"))
    stop = threading.Event()
    source = MemorySource(topic(*[value] * 9), when_empty=stop.set)
    source.poll_count = 1
    limit = 2 * len(encode_verdict(value))
    VerdictSink(source, store, MemoryBox(), SinkConfig(batch_bytes=limit)).run(stop)
    assert sizes == [2, 2, 2, 2, 1]
