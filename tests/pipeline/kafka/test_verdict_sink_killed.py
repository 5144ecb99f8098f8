"""Killed at any moment and restarted: the tables are equal."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.kafka.kit import (
    FaultyStore,
    drained,
    tables,
    topic,
)
from tests.pipeline.stores.samples import ONSET, SECOND, verdict
from tocsin.pipeline.kafka.consumer_api import RefusedMessage
from tocsin.pipeline.kafka.topic_sink import TopicSinkConfig
from tocsin.pipeline.kafka.verdict_sink import VerdictSink
from tocsin.pipeline.lab.testing.messages import MemoryBox, MemorySource
from tocsin.pipeline.lab.testing.store import MemoryStore
from tocsin.schemas.verdicts import ActionKind, Verdict, VerdictState


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
    wanted = FaultyStore()
    drained(messages, wanted)

    store, box, committed = FaultyStore(), MemoryBox(), dict[int, int]()
    mortal = _Mortal(deaths)
    for _ in range(len(deaths) + 1):
        stop = threading.Event()
        source = MemorySource(messages, committed, stop.set)
        source.poll_count = poll_count
        source.commit = mortal.around(source.commit)  # type: ignore[method-assign]
        one = _Delegate(store, mortal)
        dead_letters = _DeadLetters(box, mortal)
        try:
            VerdictSink(source, one, dead_letters, TopicSinkConfig(linger_seconds=0.0)).run(stop)
        except Killed:
            continue
        break
    assert tables(store) == tables(wanted)
    assert committed == {0: len(messages)}
    assert {dead_letter.message.offset_count for dead_letter in box.dead_letters} == {len(messages) - 1}


class _Delegate(FaultyStore):
    """The same tables in another process."""

    def __init__(self, store: MemoryStore, mortal: _Mortal) -> None:
        super().__init__()
        self.verdicts, self.actions = store.verdicts, store.actions
        self.write_verdicts = mortal.around(super().write_verdicts)  # type: ignore[method-assign]
        self.write_actions = mortal.around(super().write_actions)  # type: ignore[method-assign]


class _DeadLetters:
    def __init__(self, box: MemoryBox, mortal: _Mortal) -> None:
        self._write = mortal.around(box.write)

    def write(self, dead_letters: Sequence[RefusedMessage]) -> None:
        self._write(dead_letters)
