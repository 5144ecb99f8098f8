"""Who must have seen a fault before a machine may be taken away: each clause of the rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.pipeline.job.witnesses import (
    harmed_hosts,
    may_take_away,
    merged_witnesses,
    ordered_witnesses,
)
from tocsin.schemas.verdicts import MAX_WITNESSES, Witness, WitnessKind

EVENT, WAIT, LOST, CHECK, STEPS = (
    WitnessKind.HARDWARE_EVENT,
    WitnessKind.PEERS_WAIT,
    WitnessKind.CONNECTION_LOST,
    WitnessKind.CHECK,
    WitnessKind.STEPS,
)


def seen(*reported: tuple[str, WitnessKind]) -> tuple[Witness, ...]:
    return tuple(Witness(host, kind) for host, kind in reported)


@pytest.mark.parametrize(
    ("reported", "allowed"),
    [
        ([], False),
        ([("n3", EVENT)], False),
        ([("n3", LOST)], False),
        ([("n1", WAIT)], False),
        ([("n1", EVENT), ("n2", EVENT)], False),
        ([("n1", WAIT), ("n1", STEPS)], False),
        ([("n3", EVENT), ("n3", STEPS)], False),
        ([("n3", EVENT), ("n1", WAIT)], True),
        ([("n3", EVENT), ("n1", LOST)], True),
        ([("n3", EVENT), ("n1", STEPS)], True),
        ([("n3", LOST), ("n1", WAIT)], True),
        ([("n1", WAIT), ("n2", STEPS)], True),
        ([("n1", LOST), ("n2", LOST)], True),
        ([("n3", CHECK)], True),
    ],
    ids=[
        "nobody",
        "its own event alone",
        "its own silence alone",
        "one other",
        "the events of others",
        "one agent's steps and collectives",
        "two words of its own",
        "event and one that waits",
        "event and one that lost its connection",
        "event and one whose steps are longer",
        "silent and one that waits",
        "two others",
        "two that lost their connections",
        "a check under load",
    ],
)
def test_of_many_machines(reported: list[tuple[str, WitnessKind]], *, allowed: bool) -> None:
    assert may_take_away(["n3"], seen(*reported), 8) is allowed


@pytest.mark.parametrize(
    ("reported", "allowed"),
    [
        ([("n1", WAIT)], False),
        ([("n3", LOST), ("n1", WAIT)], False),
        ([("n3", EVENT)], False),
        ([("n3", EVENT), ("n1", WAIT)], True),
        ([("n3", CHECK)], True),
    ],
)
def test_a_job_of_two_machines_needs_the_event(reported: list[tuple[str, WitnessKind]], *, allowed: bool) -> None:
    assert may_take_away(["n3"], seen(*reported), 2) is allowed


@pytest.mark.parametrize("kinds", [[EVENT], [CHECK], [EVENT, CHECK], [LOST]])
def test_a_job_of_one_machine_never(kinds: list[WitnessKind]) -> None:
    assert not may_take_away(["n3"], seen(*(("n3", kind) for kind in kinds)), 1)


@pytest.mark.parametrize(("kind", "allowed"), [(EVENT, True), (CHECK, True), (LOST, False), (WAIT, False)])
def test_a_machine_without_a_job_on_one_event(kind: WitnessKind, *, allowed: bool) -> None:
    assert may_take_away(["n3"], seen(("n3", kind)), None) is allowed


def test_program_text_needs_the_event() -> None:
    others = (("n1", LOST), ("n2", LOST))

    assert not may_take_away(["n3"], seen(*others), 8, is_by_words=True)
    assert not may_take_away(["n3"], seen(("n3", LOST), *others), 8, is_by_words=True)
    assert may_take_away(["n3"], seen(("n3", EVENT), *others), 8, is_by_words=True)


def test_each_of_several_machines_needs_its_own() -> None:
    assert not may_take_away(["n3", "n4"], seen(("n3", EVENT), ("n1", WAIT)), 8)
    assert may_take_away(["n3", "n4"], seen(("n3", EVENT), ("n4", EVENT), ("n1", WAIT)), 8)
    assert may_take_away(["n3", "n4"], seen(("n1", WAIT), ("n2", WAIT)), 8)
    assert not may_take_away(["n3", "n4"], seen(("n3", WAIT), ("n4", WAIT)), 8)
    assert not may_take_away([], seen(("n1", WAIT), ("n2", WAIT)), 8)


KINDS = st.dictionaries(st.text("abn012", min_size=1, max_size=3), st.sampled_from(WitnessKind), max_size=40)


@given(KINDS, KINDS)
def test_a_list_is_ordered_bounded_and_keeps_what_the_rule_asks(
    own: dict[str, WitnessKind], others: dict[str, WitnessKind]
) -> None:
    others = {host: kind for host, kind in others.items() if kind not in (EVENT, CHECK)}
    reported = ordered_witnesses(own, others)

    assert len(reported) <= MAX_WITNESSES
    assert len({one.host for one in reported}) == len(reported)
    assert [one.host for one in reported if one.host in own] == sorted(own)[: MAX_WITNESSES - 2]
    left = others.keys() - own.keys()
    assert min(2, len(left)) <= len(harmed_hosts(reported, own))


@given(KINDS, KINDS)
def test_joining_again_changes_nothing(first: dict[str, WitnessKind], second: dict[str, WitnessKind]) -> None:
    accused = sorted(first)[:2]
    one, other = (merged_witnesses((), seen(*reported.items()), accused) for reported in (first, second))
    both = merged_witnesses(one, other, accused)

    assert merged_witnesses(both, other, accused) == both
    assert merged_witnesses(both, (), accused) == both


def test_the_most_telling_word_of_a_host_is_kept() -> None:
    reported = merged_witnesses(seen(("n1", STEPS), ("n3", LOST)), seen(("n1", WAIT), ("n3", EVENT)), ["n3"])

    assert reported == seen(("n3", EVENT), ("n1", WAIT))
    assert merged_witnesses(reported, seen(("n1", STEPS), ("n3", LOST)), ["n3"]) == reported
