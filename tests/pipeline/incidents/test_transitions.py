"""The table of a verdict's life: documented as it is, and obeyed by whatever Decide says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chaos.recordings import simulated
from tests.conftest import ROOT
from tests.pipeline.incidents.test_lifecycle import DEGRADED, HANG, JOB, SLOW, STOP, T0, Life, finding
from tests.pipeline.stores.samples import verdict
from tocsin.pipeline.incidents.closing import close_event
from tocsin.pipeline.incidents.transitions import (
    CLOSED,
    TRANSITIONS,
    Actor,
    LifeCheck,
    actor_of,
    markdown_table,
    transition_of,
)
from tocsin.pipeline.recording.replay import ReplayConfig, replay
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import ActionKind, VerdictState

OPEN, CONFIRMED, RESOLVED = VerdictState.OPEN, VerdictState.CONFIRMED, VerdictState.RESOLVED
NONE = ActionKind.NONE

FAULTS = st.sampled_from([STOP, HANG, SLOW, DEGRADED])
FINDINGS = st.builds(
    lambda fault, hosts, certain, tentative, only_holds, harmless, onset: finding(
        fault,
        *sorted(hosts),
        onset=onset,
        certain=certain,
        tentative=tentative,
        only_holds=only_holds,
        is_harmless=harmless,
    ),
    FAULTS,
    st.sets(st.sampled_from(["n3", "n5"]), max_size=2),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(1, 3),
)
SPELLS = st.lists(st.tuples(st.lists(FINDINGS, max_size=3), st.integers(1, 70)), max_size=12)
ENDS = st.sampled_from(["", "human", "attempt", "lost", "ended"])


def test_the_documentation_holds_this_table() -> None:
    assert markdown_table() in (ROOT / "docs/incidents.md").read_text(encoding="utf-8")


@settings(max_examples=60, deadline=None)
@given(SPELLS, ENDS)
def test_whatever_is_found_every_line_is_an_allowed_transition(
    spells: list[tuple[list[object], int]], end: str
) -> None:
    life = Life()
    for findings, seconds in spells:
        life.see(*findings, seconds=seconds)  # type: ignore[arg-type]  # findings by their strategy
    now_ns = T0 + life.second * NS_PER_SECOND
    for standing in life.decide.live if end == "human" else ():
        life.lines += life.decide.close_by_human(close_event(JOB, standing.verdict_id, "n", "uid:1", now_ns), now_ns)
    if end in ("attempt", "ended"):
        life.lines += life.decide.close_all(now_ns, Reason.NEW_ATTEMPT if end == "attempt" else Reason.JOB_ENDED)
    if end == "lost":
        life.lines += life.decide.abandon(now_ns, Reason.OPERATOR_FAILED)

    assert LifeCheck().see_all(life.lines) == []
    assert not end or not life.decide.live


@pytest.mark.parametrize("kind", ["nic_dropout", "gpu_card_drop", "pcie_downgrade"])
def test_the_lines_of_a_recording_are_allowed_transitions(kind: str) -> None:
    lines = list(replay(simulated(kind, 1, seconds=300.0), ReplayConfig()))

    assert lines
    assert LifeCheck().see_all(lines) == []


def test_what_the_table_does_not_allow_is_found() -> None:
    opened = verdict("a")
    for line, said in (
        (replace(opened, update=1, state=RESOLVED, reason="canary_x"), "no such transition"),
        (replace(opened, update=1, state=CONFIRMED, reason="still_true"), "no such transition"),
        (replace(opened, update=0, state=CONFIRMED), "follows update"),
        (replace(opened, update=1, state=CONFIRMED, detected_ns=0), "older"),
        (replace(opened, update=1, state=RESOLVED, reason="recovered"), "proposes restart"),
        (replace(opened, update=1, reason="still_true", action=NONE), "a renewal changes"),
        (replace(opened, update=1, reason="still_true", suspects=()), "changes what is told"),
    ):
        check = LifeCheck()
        assert check.see(opened) == ""
        assert said in check.see(line)
    assert "no such transition" in LifeCheck().see(replace(opened, state=CONFIRMED))


def test_a_closed_verdict_only_opens_again() -> None:
    for state in CLOSED:
        found = {one for one in TRANSITIONS if state in one.before}
        assert {after for one in found for after in one.after} == {OPEN}
        assert transition_of(state, RESOLVED, "recovered") is None


def test_each_reason_has_one_actor() -> None:
    for reason in Reason:
        assert len({one.actor for one in TRANSITIONS if reason in one.reasons}) <= 1
    assert actor_of("closed_by_human") is Actor.PERSON
    assert actor_of("job_ended") is Actor.JOB_END
    assert actor_of("hardware_event") is Actor.ENGINE


def test_two_words_for_one_standstill_are_one_line() -> None:
    """A frozen process whose agent dies, too: hang and silence are told of the same machine in each second."""
    life = Life()
    life.see(finding(HANG, "n3"), seconds=30)
    life.see(finding(HANG, "n3"), finding(STOP, "n3"), seconds=60)

    assert life.states() == ["open", "confirmed"]
    life.see(finding(STOP, "n3"), seconds=3)
    assert [line.fault for line in life.decide.live] == [STOP], "alone, the other word counts"


def test_a_certain_end_replaces_a_hang_that_is_still_found() -> None:
    life = Life()
    life.see(finding(HANG, "n3"), seconds=30)
    life.see(finding(HANG, "n3"), finding(STOP, "n3", certain=True), seconds=3)

    assert life.decide.live[0].fault is STOP
