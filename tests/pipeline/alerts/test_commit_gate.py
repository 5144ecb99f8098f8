"""The gate at which a sending thread waits until what it changed is stored."""

from __future__ import annotations

import threading

from tests.pipeline.waiting import until
from tocsin.pipeline.alerts.committed_queue import CommitGate


def test_a_waiter_that_comes_after_the_changes_were_read_asks_for_another_commit() -> None:
    gate = CommitGate()
    gate.begin()  # the changes are read here, the waiter's among them
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(gate.wait(20.0)))
    thread.start()
    until(lambda: gate.is_awaited)
    gate.done()
    assert gate.is_awaited, "what is stored now was read before the waiter came"
    gate.begin()
    assert not gate.is_awaited
    gate.done()
    thread.join()
    assert found == [True]
