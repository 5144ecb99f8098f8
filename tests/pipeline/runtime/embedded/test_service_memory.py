"""What the service remembers beside the operators comes back as it was, and full pages are not written again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.pipeline.stores.samples import JOB, ONSET, SECOND, verdict
from tocsin.pipeline.core.operator import UNCHANGED
from tocsin.pipeline.detect.align import AlignedHealth
from tocsin.pipeline.incidents.proposals import HoldRules, ProposalBook
from tocsin.pipeline.runtime.embedded.persistence.snapshots import SnapshotFiles
from tocsin.pipeline.runtime.embedded.service_memory import ServiceMemory
from tocsin.schemas.verdicts import ActionKind


def _memory(kept_lines_count: int) -> ServiceMemory:
    return ServiceMemory(kept_lines_count, ProposalBook(HoldRules(), ONSET, lambda *_: ()))


def _state(memory: ServiceMemory) -> dict[str, object]:
    return {
        "lines": memory.lines,
        "dropped": memory.dropped_count,
        "proposals": memory.proposals.to_state(),
        "again": list(memory.again),
        "minutes": memory.minutes.to_state(),
        "floors": memory.floors,
    }


@pytest.mark.parametrize("counts", [[5], [250], [99, 1, 1], [350, 30, 170], [1000, 99]])
def test_lines_survive_whatever_was_dropped_between_two_snapshots(tmp_path: Path, counts: list[int]) -> None:
    memory, shelf, number = _memory(300), SnapshotFiles(tmp_path), 0
    for tick, count in enumerate(counts):
        for _ in range(count):
            memory.add_line({"n": number})
            number += 1
        generation, _ = shelf.write(memory.snapshot(shelf.known), tick, tick)
    again = _memory(300)
    again.restore(shelf.load(generation))

    assert _state(again) == _state(memory)
    assert again.lines[-1] == {"n": number - 1}
    assert again.dropped_count + len(again.lines) == number


def test_full_pages_are_not_written_again() -> None:
    memory = _memory(10_000)
    for number in range(250):
        memory.add_line({"n": number})
    first = memory.snapshot()
    second = memory.snapshot(first.keys())

    assert [name for name, data in second.items() if data == UNCHANGED] == ["service/lines/0", "service/lines/100"]


def test_actions_evidence_that_is_due_and_minutes_survive() -> None:
    memory = _memory(10)
    one = verdict("a", 2)
    drain = replace(one, verdict_id="hard", action=ActionKind.DRAIN)
    for each in (one, replace(one, suspects=(), verdict_id="nobody"), drain):
        list(memory.proposals.take(each))
    memory.again.append((ONSET + SECOND, one))
    memory.floors["a"] = 7
    memory.minutes.count(JOB, AlignedHealth("n3", ONSET, 5, 0, (), 0))
    again = _memory(10)
    again.restore(memory.snapshot())

    assert _state(again) == _state(memory)
    assert [one.action.kind for one in again.proposals.due(ONSET + 900 * SECOND)] == [ActionKind.DRAIN]
    memory.forget()
    assert _state(memory) == _state(_memory(10))
