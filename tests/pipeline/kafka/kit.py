"""A sink's world without a broker and without a database."""

import threading
from collections.abc import Callable, Sequence

from tests.hand_clock import HandClock
from tocsin.pipeline.kafka.consumer_api import Message
from tocsin.pipeline.kafka.topic_sink import TopicSinkConfig
from tocsin.pipeline.kafka.verdict_sink import VerdictSink
from tocsin.pipeline.lab.testing.messages import MemoryBox, MemorySource
from tocsin.pipeline.lab.testing.store import MemoryStore
from tocsin.pipeline.stores.base import ActionChange, Store
from tocsin.schemas.cloudevents import encode_verdict
from tocsin.schemas.errors import StoreError
from tocsin.schemas.verdicts import Advice, Verdict


def message(of: Verdict | bytes | None, offset: int, partition: int = 0) -> Message:
    value = encode_verdict(of) if isinstance(of, Verdict) else of
    return Message("tocsin.verdicts", partition, offset, b"c1/job-1", value)


def topic(*values: Verdict | bytes | None) -> list[Message]:
    return [message(value, offset) for offset, value in enumerate(values)]


class FaultyStore(MemoryStore):
    """A store that fails as it is told: ``fault(rows)`` returns the error of a write, or None."""

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
        action: Advice = change.action
        actions[action.verdict_id, action.verdict_update, action.kind, action.target] = change
    return incidents, actions


def drained(messages: Sequence[Message], store: Store, box: MemoryBox | None = None) -> VerdictSink:
    """Run a sink until the topic is empty."""
    stop = threading.Event()
    clock = HandClock(1000.0)
    sink = VerdictSink(WaitingSource(messages, clock, stop.set), store, box or MemoryBox(), TopicSinkConfig(), clock)
    sink.run(stop)
    return sink


class WaitingSource(MemorySource):
    """Lets the clock go on while it is kept alive, and says when it is empty."""

    def __init__(self, messages: Sequence[Message], clock: HandClock, when_empty: Callable[[], None]) -> None:
        super().__init__(messages, when_empty=when_empty)
        self._clock = clock

    def keep_alive(self, seconds: float) -> None:
        super().keep_alive(seconds)
        self._clock.seconds += seconds
