"""The sender of alerts killed at any moment: the set of pages is that of an undisturbed run."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline.kafka.test_alert_work import World, confirmed
from tocsin.pipeline.alerts.adapters.keys import delivery_id
from tocsin.pipeline.alerts.notice import Notice
from tocsin.pipeline.stores.alert_codec import decode_alert
from tocsin.schemas.kafka.topics import ALERTS_SENT
from tocsin.schemas.verdicts import VerdictState

Told: TypeAlias = tuple[str, str]
"""Verdict id and kind of a message."""

SCRIPT = (
    (confirmed("v1"),),
    (confirmed("v1", 1), confirmed("v2")),
    (confirmed("v2", 2, VerdictState.CANCELLED), confirmed("v3")),
    (confirmed("v1", 3, VerdictState.RESOLVED),),
)


def told_of(notice: Notice) -> Told:
    return notice.verdict.verdict_id, notice.kind.value


class Killed(BaseException):
    """kill -9 as far as the process can tell: nothing of it runs any more."""


class MortalWorld(World):
    """Processes that are killed before or after a commit or a message, whenever one of these numbers comes up."""

    def __init__(self, deaths: Sequence[int]) -> None:
        self.deaths = set(deaths)
        self.count = 0
        self.may_come_again: Counter[Told] = Counter()
        """What was answered but not committed at each death."""
        self.was_killed = threading.Event()
        super().__init__()
        self.pager.send = self.around(self.pager.send)  # type: ignore[method-assign]

    def around(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def mortal(*args: Any) -> Any:
            self.tick()
            answer = work(*args)
            self.tick()
            return answer

        return mortal

    def tick(self) -> None:
        self.count += 1
        if self.count in self.deaths:
            self.was_killed.set()
            raise Killed

    def begin(self) -> None:
        super().begin()
        self.was_killed.clear()
        self.seat.commit = self.around(self.seat.commit)  # type: ignore[method-assign]

    def serve(self) -> None:
        """Work until all is sent; a process that is killed is followed by another one."""
        for _ in range(len(self.deaths) + 1):
            try:
                self.run(5)
                self.send()
                self.run(1)
                self.send()
            except Killed:
                self.work.end()
                self.may_come_again.update(set(map(told_of, self.pager.sent)) - self.committed())
                self.begin()
            else:
                return

    def committed(self) -> set[Told]:
        """Return the messages whose delivery is in the topic of what was sent."""
        rows = [decode_alert(one.value or b"") for one in self.seats.log.get(ALERTS_SENT, [])]
        return {(row.verdict_id, row.kind) for row in rows}

    def send(self) -> None:
        def sending() -> None:
            try:
                self.work.send_once()
            except Killed:
                return

        thread = threading.Thread(target=sending)
        thread.start()
        try:
            while thread.is_alive():
                self.commit()
                thread.join(0.001)
            if self.was_killed.is_set():
                raise Killed
            self.commit()
        except Killed:
            self.work.end()  # the thread, too, is no more
            thread.join()
            raise


@settings(max_examples=30)
@given(st.lists(st.integers(1, 40), max_size=5))
def test_killed_at_any_moment_the_pages_are_the_same(deaths: list[int]) -> None:
    world = MortalWorld(deaths)
    for lines in SCRIPT:
        world.say(*lines)
        world.serve()
    world.work.end()
    messages = {delivery_id(one): told_of(one) for one in world.pager.sent}
    assert sorted(messages.values()) == [
        ("v1", "firing"),
        ("v1", "resolved"),
        ("v2", "firing"),
        ("v2", "taken_back"),
        ("v3", "firing"),
    ]
    again = Counter(map(told_of, world.pager.sent)) - Counter(messages.values())
    assert again <= world.may_come_again
    assert len(world.seats.log[ALERTS_SENT]) >= len(messages)
