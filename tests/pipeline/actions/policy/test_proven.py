"""A hardware code beside a process that stands or died, as verdicts and events of other programs tell it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.pipeline.actions.policy.samples import A, asked, event, ladder, seen, verdict
from tests.pipeline.actions.policy.test_replay import decided
from tocsin.schemas.verdicts import FaultKind, VerdictState, Witness, WitnessKind

FROZEN = verdict("process_frozen", action=A.RESTART, fault=FaultKind.HANG, evidence=(seen("stopped", detector="x"),))
WAITERS = tuple(Witness(f"w{index}", WitnessKind.PEERS_WAIT) for index in range(2))
RESTART = [("restart", "n1", "process_is_named")]
EVICT = [("evict", "n1", "machine_fault")]


@pytest.mark.parametrize("cause", ["process_frozen", "process_exit"])
@pytest.mark.parametrize("seconds", [-9.0, 0.0, 1.9])
def test_an_xid_of_the_same_machine_is_the_stronger_reason(cause: str, seconds: float) -> None:
    found = decided([replace(FROZEN, cause=cause)], [event("xid", {"code": 79}, seconds)])

    assert [(one.kind.value, one.target.name if one.target else "", one.by) for one in found] == EVICT


def test_an_xid_in_the_evidence_is_the_stronger_reason() -> None:
    told = replace(FROZEN, evidence=(*FROZEN.evidence, seen("xid", "n1: XID 79: fell off the bus (RESTART_BM)")))

    assert asked(ladder(), told) == EVICT


@pytest.mark.parametrize(
    ("code", "seconds", "on"),
    [
        (79, 0.0, "n2"),
        (79, -11.0, "n1"),
        (79, -86_400.0, "n1"),
        (13, 0.0, "n1"),
        (31, 0.0, "n1"),
        (43, 0.0, "n1"),
        (94, 0.0, "n1"),
        (999, 0.0, "n1"),
    ],
)
def test_what_proves_no_broken_part_of_this_machine_now_leaves_it(code: int, seconds: float, on: str) -> None:
    one = ladder()
    one.on_event(event("xid", {"code": code}, seconds, on=on))

    assert [kind for kind, _, _ in asked(one, FROZEN)] == ["restart"]


@pytest.mark.parametrize(
    "changes",
    [
        {"witnesses": ()},
        {"witnesses": WAITERS[:1]},
        {"action": A.NOTIFY},
        {"action": A.PROBE},
        {"cause": "collective_mismatch"},
        {"suspects": (*FROZEN.suspects, *verdict(hosts=("n2",)).suspects)},
        {"fault": FaultKind.FAIL_SLOW},
    ],
)
def test_without_witnesses_or_where_the_engine_would_not_stop_the_job_nothing_is_taken(
    changes: dict[str, object],
) -> None:
    one = ladder()
    one.on_event(event("xid", {"code": 79}))

    assert "evict" not in [kind for kind, _, _ in asked(one, replace(FROZEN, **changes))]  # type: ignore[arg-type]
    assert asked(one, replace(FROZEN, witnesses=WAITERS)) == EVICT


def test_a_restart_that_waits_gives_way_to_the_eviction() -> None:
    opened = replace(FROZEN, state=VerdictState.OPEN)
    later = replace(FROZEN, update=1, detected_ns=opened.detected_ns + 3_000_000_000)
    found = decided([opened, later], [event("xid", {"code": 79}, 4.0)])

    assert [(one.kind.value, one.outcome.value, one.by) for one in found] == [
        ("restart", "refused", "verdict_open"),
        ("evict", "act", "machine_fault"),
    ]
