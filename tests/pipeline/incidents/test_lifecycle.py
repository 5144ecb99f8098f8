"""The life of a verdict: what opens, confirms, changes and ends it; and ids that never start anew."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.pipeline.incidents.closing import close_event
from tocsin.pipeline.incidents.decide_config import DecideConfig
from tocsin.pipeline.incidents.lifecycle import Decide
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, JobKey
from tocsin.schemas.verdicts import (
    Component,
    ComponentKind,
    Evidence,
    FaultKind,
    Suspect,
    Verdict,
    VerdictState,
    Witness,
    WitnessKind,
)

T0 = 1_800_000_000 * NS_PER_SECOND
JOB = JobKey("c", "j")
STOP, HANG, SLOW, DEGRADED = FaultKind.FAIL_STOP, FaultKind.HANG, FaultKind.FAIL_SLOW, FaultKind.DEGRADED
CONFIG = DecideConfig()
OTHERS = tuple(Witness(host, WitnessKind.PEERS_WAIT) for host in ("n1", "n2"))


def finding(fault: FaultKind = SLOW, *hosts: str, cause: str = "unknown", onset: float = 1, **named: Any) -> Finding:
    """An explanation that two others of eight machines saw, too; times are seconds."""
    reported: dict[str, Any] = {"witnesses": OTHERS, "machine_count": 8, **named}
    onset_ns = T0 + int(onset * NS_PER_SECOND)
    suspects = tuple(Suspect(Component(ComponentKind.HOST, host)) for host in hosts)
    evidence = (Evidence("steps", "own_seconds", 2.0, onset_ns, onset_ns, "it is so"),)
    return Finding(fault, cause, suspects, onset_ns, 0.8, Reason.SAME_RANK_SLOWEST, evidence, **reported)


class Life:
    """One job's verdicts, second by second."""

    def __init__(self) -> None:
        self.decide = Decide(CONFIG, JOB)
        self.second = 1
        self.lines: list[Verdict] = []

    def see(self, *findings: Finding, seconds: int = 1) -> list[Verdict]:
        """The same findings hold for so long."""
        new: list[Verdict] = []
        for _ in range(seconds):
            self.second += 1
            new += self.decide.on_findings(T0 + self.second * NS_PER_SECOND, findings)
        self.lines += new
        return new

    def states(self) -> list[str]:
        return [line.state.value for line in self.lines]


def seconds_of(fault: FaultKind) -> int:
    return CONFIG.confirm_ns[fault] // NS_PER_SECOND


GONE = CONFIG.gone_ns // NS_PER_SECOND


class TestConfirm:
    @pytest.mark.parametrize("fault", [STOP, HANG, SLOW, DEGRADED])
    def test_what_lasts_is_confirmed_and_what_does_not_is_cancelled(self, fault: FaultKind) -> None:
        lasting, short = Life(), Life()
        lasting.see(finding(fault, "n3"), seconds=seconds_of(fault) + 2)
        short.see(finding(fault, "n3"))
        short.see(seconds=GONE + 1)

        assert lasting.states() == ["open", "confirmed"]
        assert short.states() == ["open", "cancelled"]

    def test_what_is_tentative_is_said_and_never_confirmed(self) -> None:
        life = Life()
        life.see(finding(STOP, "n3", cause="gpu_card_drop", tentative=True), seconds=300)

        assert life.states() == ["open"]
        assert life.lines[0].action.value == "probe"

    def test_what_is_no_longer_tentative_is_confirmed(self) -> None:
        life = Life()
        life.see(finding(STOP, "n3", tentative=True), seconds=60)
        life.see(finding(STOP, "n3"), seconds=2)

        assert life.states() == ["open", "confirmed"]

    def test_what_was_confirmed_stays_so_when_it_becomes_tentative(self) -> None:
        life = Life()
        life.see(finding(STOP, "n3"), seconds=10)
        life.see(finding(STOP, "n3", tentative=True), seconds=10)

        assert life.states() == ["open", "confirmed"]
        assert life.decide.live[0].state is VerdictState.CONFIRMED

    def test_evidence_that_stopped_coming_confirms_nothing(self) -> None:
        life = Life()
        life.see(finding(SLOW, "n3", seen_ns=T0 + 2 * NS_PER_SECOND), seconds=120)

        assert life.states() == ["open"]


class TestBegin:
    def test_that_it_hurts_must_hold_as_long_as_if_it_had_not_differed_before(self) -> None:
        """Steps varied for ten seconds while a machine differed for minutes: taken back, and never confirmed."""
        life = Life()
        life.see(finding(DEGRADED, "n3"), seconds=90)
        life.see(finding(SLOW, "n3"), seconds=seconds_of(SLOW) - 2)
        life.see(seconds=GONE + 1)

        reported = [(line.state.value, line.action.value) for line in life.lines if line.fault is SLOW]
        assert [state for state, _ in reported] == ["open", "cancelled"]

        life.see(finding(DEGRADED, "n3", onset=200), seconds=90)
        life.see(finding(SLOW, "n3", onset=200), seconds=seconds_of(SLOW) + 2)
        assert life.states()[-1] == "confirmed"


class TestEnd:
    def test_what_was_confirmed_is_resolved(self) -> None:
        life = Life()
        life.see(finding(SLOW, "n3"), seconds=30)
        life.see(seconds=GONE + 1)

        assert life.states()[-1] == "resolved"
        assert life.lines[-1].action.value == "none"
        assert life.decide.live == ()

    def test_a_harmless_rest_ends_what_hurt(self) -> None:
        """It differs still, and the steps are as before: over."""
        life = Life()
        life.see(finding(SLOW, "n3"), seconds=30)
        life.see(finding(DEGRADED, "n3", is_harmless=True), seconds=GONE + 1)

        assert ("resolved", SLOW) in [(line.state.value, line.fault) for line in life.lines]

    def test_a_smaller_rest_that_may_hurt_still_holds_it(self) -> None:
        life = Life()
        life.see(finding(SLOW, "n3"), seconds=30)
        life.see(finding(DEGRADED, "n3"), seconds=60)

        assert [line.fault for line in life.decide.live] == [SLOW]
        assert "resolved" not in life.states()

    def test_what_is_left_is_another_incident(self) -> None:
        """The id of what hurt keeps its last word: resolved."""
        life = Life()
        life.see(finding(SLOW, "n3"), seconds=30)
        life.see(finding(DEGRADED, "n3", is_harmless=True), seconds=60)
        first = life.lines[0].verdict_id

        assert [line.fault for line in life.decide.live] == [DEGRADED]
        assert life.decide.live[0].verdict_id != first
        assert [line.state.value for line in life.lines if line.verdict_id == first][-1] == "resolved"

    def test_one_of_two_that_goes_on_holds_both(self) -> None:
        life = Life()
        life.see(finding(SLOW, "n3", "n5"), seconds=30)
        life.see(finding(SLOW, "n5"), seconds=60)

        assert [len(line.suspects) for line in life.decide.live] == [2]
        assert life.states()[-1] == "confirmed"

    def test_one_of_two_that_were_not_confirmed_yet_is_another_story(self) -> None:
        life = Life()
        life.see(finding(SLOW, "n3", "n5"), seconds=2)
        life.see(finding(SLOW, "n5"), seconds=60)

        assert [line.suspects[0].component.name for line in life.decide.live] == ["n5"]

    @pytest.mark.parametrize("fault", [STOP, HANG, SLOW])
    def test_a_job_that_stands_holds_who_was_named(self, fault: FaultKind) -> None:
        life = Life()
        life.see(finding(fault, "n3"), seconds=30)
        life.see(finding(HANG, only_holds=True), seconds=120)

        assert set(life.states()) == {"open", "confirmed"}
        assert [line.suspects[0].component.name for line in life.decide.live] == ["n3"]

    def test_a_job_that_stands_opens_nothing_by_itself_and_holds_nothing_harmless(self) -> None:
        life = Life()
        assert life.see(finding(HANG, only_holds=True), seconds=60) == []
        life.see(finding(DEGRADED, "n3"))
        life.see(finding(HANG, only_holds=True), seconds=60)

        assert life.decide.live == ()

    def test_the_job_ends(self) -> None:
        life = Life()
        life.see(finding(SLOW, "n3"), finding(DEGRADED, "n4"))
        lines = life.decide.close_all(T0 + 60 * NS_PER_SECOND, Reason.JOB_ENDED)

        assert [(line.state.value, line.reason) for line in lines] == [
            ("cancelled", "job_ended"),
            ("resolved", "job_ended"),
        ]
        assert life.decide.live == ()

    @pytest.mark.parametrize(
        ("seconds", "fault", "reason", "state"),
        [
            (10, SLOW, Reason.JOB_ENDED, "cancelled"),
            (60, SLOW, Reason.JOB_ENDED, "resolved"),
            (10, SLOW, Reason.NEW_ATTEMPT, "resolved"),
            (2, HANG, Reason.JOB_ENDED, "cancelled"),
            (10, STOP, Reason.JOB_ENDED, "resolved"),
        ],
    )
    def test_who_was_said_to_be_slow_shortly_before_the_job_came_to_its_end_is_not(
        self, seconds: int, fault: FaultKind, reason: Reason, state: str
    ) -> None:
        life = Life()
        life.see(finding(fault, "n3"), seconds=seconds)
        lines = life.decide.close_all(T0 + (seconds + 1) * NS_PER_SECOND, reason)

        assert [line.state.value for line in lines] == [state]


class TestStory:
    def test_a_cause_is_kept_when_it_is_not_shown_again(self) -> None:
        life = Life()
        life.see(finding(SLOW, "n3", cause="thermal_throttle"), seconds=5)
        life.see(finding(SLOW, "n3"), seconds=100)

        assert {line.cause for line in life.lines} == {"thermal_throttle"}
        assert life.states()[:2] == ["open", "confirmed"]

    @pytest.mark.parametrize("cause", ["gpu_card_drop", "unknown"])
    def test_a_weaker_word_of_the_same_takes_nothing_back(self, cause: str) -> None:
        """An event said that the card is gone; that its machine is where the others are not says it again."""
        life = Life()
        life.see(finding(STOP, "n3", cause="gpu_card_drop"), seconds=5)
        reported = life.see(finding(HANG, "n3", cause=cause, onset=2), seconds=90)

        assert {(line.state.value, line.action.value, line.cause) for line in reported} == {
            ("confirmed", "evict", "gpu_card_drop")
        }
        assert reported[-1].fault is HANG
        assert len(reported[-1].evidence) == 2

    def test_a_hang_alone_evicts_nobody(self) -> None:
        life = Life()
        life.see(finding(HANG, "n3", cause="gpu_card_drop"), seconds=90)

        assert life.lines[-1].action.value == "restart"

    def test_a_cause_is_learned_and_confirmed_anew(self) -> None:
        life = Life()
        life.see(finding(SLOW, "n3"), seconds=30)
        life.see(finding(SLOW, "n3", cause="power_cap"), seconds=30)

        assert [line.cause for line in life.lines][-1] == "power_cap"
        assert len({line.verdict_id for line in life.lines}) == 1

    def test_degraded_grows_into_a_fault_that_hurts_under_its_id(self) -> None:
        life = Life()
        life.see(finding(DEGRADED, "n3"), seconds=5)
        life.see(finding(SLOW, "n3"), seconds=5)

        assert [line.fault for line in life.decide.live] == [SLOW]
        assert len({line.verdict_id for line in life.lines}) == 1

    def test_another_suspect_is_confirmed_by_its_own_time(self) -> None:
        life = Life()
        life.see(finding(HANG), seconds=30)
        life.see(finding(HANG, "n3"))

        assert life.states()[-1] == "open"
        life.see(finding(HANG, "n3"), seconds=seconds_of(HANG) + 1)
        assert life.states()[-1] == "confirmed"

    def test_other_suspects_were_never_confirmed(self) -> None:
        """Blame that moved is not confirmed by the time of the first one."""
        life = Life()
        life.see(finding(HANG), seconds=30)
        life.see(finding(HANG, "n3"))
        life.see(seconds=GONE + 1)

        assert life.states()[-1] == "cancelled"


class TestIds:
    def test_the_same_fault_again_goes_on_counting(self) -> None:
        """One that comes, goes and comes with the same onset: one id, and its updates only grow."""
        life = Life()
        for _ in range(3):
            life.see(finding(SLOW, "n3"), seconds=3)
            life.see(seconds=GONE + 1)
        by_id: dict[str, list[int]] = {}
        for line in life.lines:
            by_id.setdefault(line.verdict_id, []).append(line.update)

        assert list(by_id.values()) == [[0, 1, 2, 3, 4, 5]]

    def test_old_evidence_does_not_open_again_what_was_closed(self) -> None:
        life = Life()
        old = finding(SLOW, "n3", seen_ns=T0 + 2 * NS_PER_SECOND)
        life.see(old)
        life.see(seconds=GONE + 1)

        assert life.see(old, seconds=30) == []

    def test_was_confirmed_is_remembered_by_the_id(self) -> None:
        """Resolved, seen again for a moment: the second end says resolved too."""
        life = Life()
        life.see(finding(SLOW, "n3"), seconds=30)
        life.see(seconds=GONE + 1)
        life.see(finding(SLOW, "n3"))
        life.see(seconds=GONE + 1)

        assert life.states() == ["open", "confirmed", "resolved", "open", "resolved"]

    def test_an_id_that_a_live_incident_holds_is_not_given_to_another(self) -> None:
        """Nobody was named, then n2; what looks like the beginning is another story by now."""
        life = Life()
        life.see(finding(STOP))
        life.see(finding(STOP, "n2"), finding(SLOW, "n2"))
        life.see(finding(STOP))

        assert len({line.verdict_id for line in life.lines if line.update == 0}) == life_count(life)

    def test_two_signs_of_a_job_that_begin_in_one_slice_have_two_ids(self) -> None:
        life = Life()
        signs = [finding(DEGRADED, cause=cause, onset=2) for cause in ("divergence", "gradual_slowdown")]  # then
        life.see(*signs, seconds=3)

        assert [(line.cause, line.update) for line in life.lines[:2]] == [("divergence", 0), ("gradual_slowdown", 0)]
        assert len({line.verdict_id for line in life.lines}) == 2


def life_count(life: Life) -> int:
    """Verdicts that were opened."""
    return sum(line.update == 0 for line in life.lines)


choices = st.lists(
    st.tuples(
        st.sampled_from([STOP, HANG, SLOW, DEGRADED]),
        st.sampled_from([(), ("n1",), ("n2",), ("n1", "n2")]),
        st.sampled_from(["unknown", "gpu_card_drop", "power_cap"]),
        st.booleans(),
        st.sampled_from([1.0, 2.0]),
    ),
    max_size=2,
)


def _findings(drawn: list[tuple[FaultKind, tuple[str, ...], str, bool, float]]) -> list[Finding]:
    return [
        finding(fault, *hosts, cause=cause, tentative=flag, is_harmless=flag and fault is DEGRADED, onset=onset)
        for fault, hosts, cause, flag, onset in drawn
    ]


class TestAnyStory:
    @given(st.lists(st.tuples(choices, st.integers(1, 20)), min_size=1, max_size=10), st.data())
    def test_ids_never_start_anew_and_closed_ones_keep_their_word(
        self, story: list[tuple[Any, int]], data: st.DataObject
    ) -> None:
        one, other = Life(), Life()
        break_at = data.draw(st.integers(0, len(story) - 1))
        for index, (drawn, seconds) in enumerate(story):
            assert one.see(*_findings(drawn), seconds=seconds) == other.see(*_findings(drawn), seconds=seconds)
            if index == break_at:
                parts = other.decide.snapshot()
                other.decide = Decide(CONFIG, JOB)
                other.decide.restore(parts)
                assert other.decide.snapshot() == parts
        updates: dict[str, int] = {}
        for line in one.lines:
            assert line.update == updates.get(line.verdict_id, -1) + 1
            updates[line.verdict_id] = line.update
            if line.state not in (VerdictState.OPEN, VerdictState.CONFIRMED):
                assert line.action.value == "none"
            if not line.suspects:
                assert line.action.value not in ("drain", "evict")
            if line.fault is DEGRADED:
                assert line.action.value == "none"
        live = [line.verdict_id for line in one.decide.live]
        assert len(live) == len(set(live))
        one.see(seconds=max(GONE, CONFIG.flapping.most_gone_ns // NS_PER_SECOND) + 1)  # what comes again is well later
        assert one.decide.live == ()

    @given(st.lists(st.tuples(choices, st.integers(1, 20), st.booleans()), min_size=1, max_size=10))
    def test_what_learned_detectors_add_changes_the_told_confidence_alone(
        self, story: list[tuple[Any, int, bool]]
    ) -> None:
        plain, supported = Life(), Life()
        for drawn, seconds, is_supported in story:
            found = _findings(drawn)
            more = [replace(one, told_confidence=0.95) if is_supported and one.suspects else one for one in found]
            plain.see(*found, seconds=seconds)
            supported.see(*more, seconds=seconds)

        assert [replace(one, confidence=0.0) for one in supported.lines] == [
            replace(one, confidence=0.0) for one in plain.lines
        ]
        assert all(a.confidence >= b.confidence for a, b in zip(supported.lines, plain.lines, strict=True))

    @pytest.mark.parametrize("fault", [HANG, SLOW])
    def test_an_earlier_onset_takes_over_from_a_supported_verdict_as_well(self, fault: FaultKind) -> None:
        life = Life()
        first = finding(fault, "n1", onset=10)
        life.see(replace(first, told_confidence=0.95), seconds=2)
        life.see(finding(fault, "n2", onset=5), seconds=2)

        assert [[one.component.name for one in line.suspects] for line in life.lines] == [["n1"], ["n2"]]
        assert [line.confidence for line in life.lines] == [0.95, 0.8]


class TestCause:
    """Metrics tell another cause from one window to the next; a verdict does not follow each of them."""

    def test_a_cause_that_comes_and_goes_does_not_replace_the_one_named(self) -> None:
        life = Life()
        for _ in range(10):
            life.see(finding(SLOW, "n3", cause="loader_stall"), seconds=5)
            life.see(finding(SLOW, "n3", cause="cpu_contention"), seconds=5)

        assert {line.cause for line in life.lines} == {"loader_stall"}

    def test_one_that_stays_does(self) -> None:
        life = Life()
        life.see(finding(SLOW, "n3", cause="cpu_contention"), seconds=5)
        life.see(finding(SLOW, "n3", cause="loader_stall"), seconds=30)

        assert life.lines[-1].cause == "loader_stall"

    def test_what_the_hardware_says_does_at_once(self) -> None:
        reported = finding(SLOW, "n3", cause="ecc_error")
        reported = replace(
            reported, evidence=(Evidence("hardware", "ecc", 2.0, T0, T0, "it said so"), *reported.evidence)
        )
        life = Life()
        life.see(finding(SLOW, "n3", cause="cpu_contention"), seconds=5)

        assert [line.cause for line in life.see(reported)] == ["ecc_error"]

    def test_it_is_kept_in_the_state(self) -> None:
        life = Life()
        life.see(finding(SLOW, "n3", cause="cpu_contention"), seconds=5)
        life.see(finding(SLOW, "n3", cause="loader_stall"), seconds=15)
        parts = life.decide.snapshot()
        life.decide = Decide(CONFIG, JOB)
        life.decide.restore(parts)
        life.see(finding(SLOW, "n3", cause="loader_stall"), seconds=10)

        assert life.lines[-1].cause == "loader_stall"


class TestStandstillHolds:
    """While a job stands nobody can be seen to be well; but whom it waits for is not who was a little slow."""

    def test_a_slow_one_that_nobody_confirmed_is_dropped_when_another_is_named(self) -> None:
        life = Life()
        life.see(finding(SLOW, "n2"), seconds=3)
        stands = finding(HANG, only_holds=True)
        life.see(stands, seconds=20)
        assert life.states() == ["open"]

        life.see(stands, finding(HANG, "n3", onset=5), seconds=20)
        assert [line.suspects[0].component.name for line in life.decide.live] == ["n3"]

    @pytest.mark.parametrize("only_holds", [True, False])
    @pytest.mark.parametrize(("seconds", "is_held"), [(1, False), (9, True)])
    def test_a_silent_machine_that_speaks_again_is_held_if_it_was_confirmed(
        self, seconds: int, only_holds: bool, is_held: bool
    ) -> None:
        life = Life()
        silent = replace(finding(STOP, "n2"), reason=Reason.SILENT_AND_PEERS_STALLED)
        life.see(silent, seconds=seconds)
        life.see(finding(HANG, only_holds=only_holds), seconds=GONE + 1)

        named = [suspect.component.name for line in life.decide.live for suspect in line.suspects]
        assert named == (["n2"] if is_held else [])


class TestAnotherStory:
    """One machine, two incidents: what began later, or is of another kind, is told by itself."""

    def test_what_hurts_began_after_something_harmless_was_said(self) -> None:
        life = Life()
        life.see(finding(DEGRADED, "n3", onset=1), seconds=90)
        life.see(finding(SLOW, "n3", onset=80), seconds=30)

        ids = {line.fault: line.verdict_id for line in life.lines}
        assert ids[DEGRADED] != ids[SLOW]
        assert [line.fault for line in life.decide.live] == [SLOW]

    @pytest.mark.parametrize(("onset", "ids"), [(8, 1), (40, 2)])
    def test_what_grows_within_seconds_is_one_story(self, onset: float, ids: int) -> None:
        """A card gets warm, then it lowers its clocks. Much later: what hurts began then, and is told from then on."""
        life = Life()
        life.see(finding(DEGRADED, "n3", onset=1), seconds=45)
        life.see(finding(SLOW, "n3", onset=onset), seconds=30)

        assert len({line.verdict_id for line in life.lines}) == ids

    @pytest.mark.parametrize("fault", [SLOW, DEGRADED])
    def test_numbers_that_break_are_no_slowness(self, fault: FaultKind) -> None:
        life = Life()
        life.see(finding(fault, "n3", onset=1), seconds=20)
        nan = life.see(finding(FaultKind.SILENT_CORRUPTION, "n3", cause="nan_gradient", onset=1))

        assert nan[0].update == 0
        assert nan[0].verdict_id not in {line.verdict_id for line in life.lines[:-1]}

    @pytest.mark.parametrize(
        ("reason", "later_seconds", "ids"),
        [(Reason.NO_IMPACT, 9, 2), (Reason.NO_IMPACT, 1, 1), (Reason.HARDWARE_EVENT, 9, 1)],
        ids=["it-only-differed", "in-the-same-moment", "a-part-had-told"],
    )
    def test_a_machine_that_only_differed_and_stops_later_stops_for_another_reason(
        self, reason: Reason, later_seconds: int, ids: int
    ) -> None:
        """Its onset is that of the stop: whoever asks when the machine was first accused must not be told of before."""
        life = Life()
        life.see(replace(finding(DEGRADED, "n3"), reason=reason))
        life.see(finding(STOP, "n3", cause="gpu_card_drop", onset=life.second + later_seconds, certain=True))

        assert len({line.verdict_id for line in life.lines}) == ids
        assert life.lines[-1].fault is STOP


class TestSlowStill:
    """A machine was named and its metrics have faded (levels are learned); the job is as slow as since then."""

    def test_it_is_not_called_well(self) -> None:
        life = Life()
        life.see(finding(SLOW, "n3", onset=1), seconds=30)
        reported = life.see(finding(SLOW, onset=3), seconds=120)

        assert reported == []
        assert [line.suspects[0].component.name for line in life.decide.live] == ["n3"]

    def test_it_expires_where_nothing_shows_it_again(self) -> None:
        life = Life()
        life.see(finding(SLOW, "n3", onset=1), seconds=30)
        reported = life.see(finding(SLOW, onset=3), seconds=CONFIG.action_ttl_ns // NS_PER_SECOND)

        assert reported[0].state is VerdictState.EXPIRED

    @pytest.mark.parametrize(
        "job", [finding(SLOW, onset=90), finding(SLOW, onset=3, cause="shared_service")], ids=["later", "its_reason"]
    )
    def test_another_slowness_holds_nobody(self, job: Finding) -> None:
        life = Life()
        life.see(finding(SLOW, "n3", onset=1), seconds=30)
        reported = life.see(job, seconds=20)

        assert reported[0].state is VerdictState.RESOLVED

    def test_who_was_never_confirmed_is_not_held(self) -> None:
        life = Life()
        life.see(finding(SLOW, "n3", onset=1, tentative=True), seconds=10)
        reported = life.see(finding(SLOW, onset=3), seconds=20)

        assert reported[0].state is VerdictState.CANCELLED


class TestNan:
    """A program that sees a NaN ends itself; which of its processes ends first says nothing of the machine."""

    def test_the_first_exit_without_a_word_is_part_of_it(self) -> None:
        life = Life()
        nan = finding(FaultKind.SILENT_CORRUPTION, "n2", cause="nan_gradient")
        life.see(nan, seconds=20)
        life.see(nan, finding(STOP, "n3", cause="process_exit", onset=20, certain=True, is_wordless=True), seconds=20)

        assert [[suspect.component.name for suspect in line.suspects] for line in life.decide.live] == [["n2"]]

    def test_a_death_that_says_why_is_another_fault(self) -> None:
        life = Life()
        nan = finding(FaultKind.SILENT_CORRUPTION, "n2", cause="nan_gradient")
        life.see(nan, seconds=20)
        life.see(nan, finding(STOP, "n3", cause="ecc_error", onset=20, certain=True), seconds=20)

        assert [line.suspects[0].component.name for line in life.decide.live] == ["n2", "n3"]


def test_who_was_slow_because_it_had_more_to_do_is_taken_back_though_it_was_confirmed() -> None:
    life, component = Life(), Component(ComponentKind.HOST, "n3")
    life.see(finding(SLOW, "n3"), seconds=40)
    assert life.lines[-1].state is VerdictState.CONFIRMED
    more = replace(finding(SLOW, cause="data_imbalance"), reason=Reason.HIGHER_WORKLOAD, clears=(component,))
    taken_back, reported = life.see(more)

    assert (taken_back.state, taken_back.reason, taken_back.update) == (VerdictState.CANCELLED, "works_harder", 2)
    assert (reported.suspects, reported.cause) == ((), "data_imbalance")


def test_a_process_that_ended_is_not_taken_back_because_its_host_had_more_to_do() -> None:
    life, component = Life(), Component(ComponentKind.HOST, "n3")
    life.see(finding(STOP, "n3", certain=True))
    life.see(finding(STOP, "n3", certain=True), replace(finding(DEGRADED, "n3"), clears=(component,)))

    assert all(line.state is not VerdictState.CANCELLED for line in life.lines)


@pytest.mark.parametrize(("needs", "second"), [(0, 46), (100, 101)])
def test_a_drain_waits_until_long_windows_have_told(needs: int, second: int) -> None:
    """Samples of 30 s: whether a machine only has more to do is known after minutes."""
    life = Life()
    life.see(finding(SLOW, "n3", hard_ns=needs * NS_PER_SECOND), seconds=200)

    [drained] = [line for line in life.lines if line.action.value == "drain"]
    assert abs((drained.detected_ns - life.lines[0].detected_ns) / NS_PER_SECOND - second) <= 1


@pytest.mark.parametrize(("fault", "by_log"), [(HANG, True), (HANG, False), (STOP, True)])
def test_a_hang_told_by_a_log_line_alone_is_taken_back_as_the_job_starts_again(fault: FaultKind, by_log: bool) -> None:
    life, reported = Life(), finding(fault, "n3", tentative=True)
    life.see(replace(reported, reason=Reason.HARDWARE_EVENT) if by_log else reported, seconds=8)
    [line] = life.decide.close_all(T0 + 60 * NS_PER_SECOND, Reason.NEW_ATTEMPT)

    assert line.state.value == ("cancelled" if by_log and fault is HANG else "resolved")


def test_ranks_that_a_verdict_has_placed_on_a_machine_stay_there() -> None:
    life, rank = Life(), Suspect(Component(ComponentKind.RANK, "7"), (7,))
    reported = finding(SLOW, "n3")
    life.see(replace(reported, suspects=(Suspect(reported.suspects[0].component, (7,)),)), seconds=5)
    life.see(replace(reported, suspects=(rank,)), seconds=40)
    assert {suspect.component.name for line in life.lines for suspect in line.suspects} == {"n3"}
    assert len({line.verdict_id for line in life.lines}) == 1

    other = Suspect(Component(ComponentKind.RANK, "8"), (8,))
    assert [line.suspects for line in life.see(replace(reported, suspects=(other,)))] == [(other,)]


class TestFlapping:
    """Spells that are each too short to be believed."""

    @staticmethod
    def _spells(life: Life, count: int, fault: FaultKind = SLOW, gap: int = 40, host: str = "n3", **named: Any) -> None:
        given = {"cause": "thermal_throttle", "tentative": True, "is_brief": True, **named}
        for _ in range(count):
            brief = replace(finding(fault, host, onset=life.second), **given)
            life.see(brief, seconds=10)
            life.see(seconds=gap)

    def test_the_third_spell_is_believed_and_lasts_until_it_is_gone_for_longer_than_between_them(self) -> None:
        life = Life()
        self._spells(life, 2)
        assert life.states() == ["open", "cancelled"] * 2
        life.lines.clear()
        self._spells(life, 4)

        assert life.states() == ["open", "confirmed"]
        assert [line.action.value for line in life.lines] == ["probe", "probe"]
        assert {line.verdict_id for line in life.lines} == {life.lines[0].verdict_id}
        life.see(seconds=80)
        assert life.states() == ["open", "confirmed", "resolved"]

    def test_a_drain_is_proposed_for_one_long_spell_and_not_while_it_is_well(self) -> None:
        life = Life()
        self._spells(life, 3)
        life.lines.clear()
        life.see(finding(SLOW, "n3", cause="thermal_throttle"), seconds=60)
        life.see(seconds=30)
        life.see(finding(SLOW, "n3", cause="thermal_throttle"), seconds=10)

        assert [(line.action.value, line.reason) for line in life.lines[-2:]] == [
            ("drain", "same_rank_slowest_every_window"),
            ("probe", "comes_and_goes"),
        ]
        assert life.lines[-1].expires_ns == life.lines[-2].expires_ns  # that it is well prolongs nothing

    def test_uneven_data_that_move_from_host_to_host_are_one_notice(self) -> None:
        life = Life()
        for _ in range(12):
            life.see(finding(SLOW, cause="data_imbalance", onset=life.second), seconds=10)
            life.see(seconds=20)

        assert life.states() == ["open", "cancelled"] * 2 + ["open", "confirmed"]
        assert {line.action.value for line in life.lines if line.state.value != "cancelled"} == {"notify"}

    def test_what_is_rare_or_of_another_or_may_be_a_pause_is_not(self) -> None:
        rare, other, pause = Life(), Life(), Life()
        self._spells(rare, 4, gap=600)
        for host in ("n3", "n5", "n7", "n9"):
            self._spells(other, 1, host=host)
        self._spells(pause, 5, is_brief=False)

        for life in (rare, other, pause):
            assert set(life.states()) == {"open", "cancelled"}

    @pytest.mark.parametrize("cause", ["loader_stall", "unknown", "cpu_contention", "pcie_downgrade", "nvlink_error"])
    def test_who_saves_or_waits_alone_again_and_again_is_not_believed_to_be_slow(self, cause: str) -> None:
        life = Life()
        self._spells(life, 6, cause=cause)

        assert life.states() == ["open", "cancelled"] * 6

    @pytest.mark.parametrize(("util", "sure"), [(0.5, False), (0.88, True)])
    def test_a_gpu_that_rests_at_a_low_clock_throttles_not(self, util: float, sure: bool) -> None:
        life = Life()
        shown = Evidence("peers", "gpu_util_ratio", 1.4, T0, T0, "", suspect_value=util, peer_value=0.95)
        self._spells(life, 4, evidence=(shown,))

        assert ("confirmed" in life.states()) is sure

    def test_what_hurts_nobody_and_comes_again_is_one_line_from_the_third_on(self) -> None:
        life = Life()
        self._spells(life, 8, DEGRADED)

        assert life.states() == ["open", "cancelled"] * 2 + ["open"]
        assert {line.action.value for line in life.lines} == {"none"}

    def test_who_is_freed_of_it_is_well_at_once(self) -> None:
        life = Life()
        self._spells(life, 4)
        freed = Component(ComponentKind.HOST, "n3")
        [line] = life.see(replace(finding(SLOW, cause="data_imbalance"), clears=(freed,)))[:1]

        assert line.state.value == "cancelled"

    def test_spells_go_through_a_snapshot(self) -> None:
        life, other = Life(), Life()
        self._spells(life, 2)
        other.decide.restore(life.decide.snapshot())
        other.second = life.second
        self._spells(other, 1)

        assert other.states() == ["open", "confirmed"]


class TestOneMachine:
    """Where a job runs on one machine its ranks tell incidents apart."""

    def _of(self, fault: FaultKind, *ranks: int, machine_count: int = 1, **named: Any) -> Finding:
        found = finding(fault, "box", machine_count=machine_count, **named)
        return replace(found, suspects=(replace(found.suspects[0], ranks=ranks),))

    def test_another_rank_s_fault_is_another_incident(self) -> None:
        life = Life()
        life.see(self._of(SLOW, 1), seconds=10)
        life.see(self._of(SLOW, 1), self._of(FaultKind.HANG, 3, onset=10), seconds=10)
        assert [(line.fault, line.suspects[0].ranks) for line in life.decide.live] == [
            (SLOW, (1,)),
            (FaultKind.HANG, (3,)),
        ]

    @pytest.mark.parametrize("ranks", [(1,), (), (1, 3)])
    def test_the_same_rank_s_is_the_same(self, ranks: tuple[int, ...]) -> None:
        life = Life()
        life.see(self._of(SLOW, 1), seconds=10)
        life.see(self._of(FaultKind.HANG, *ranks, onset=10), seconds=3)
        assert len(life.decide.live) == 1

    def test_on_several_machines_the_machine_is_one(self) -> None:
        life = Life()
        life.see(self._of(SLOW, 1, machine_count=4), seconds=10)
        life.see(self._of(FaultKind.HANG, 3, machine_count=4, onset=10), seconds=3)
        assert len(life.decide.live) == 1


class TestClosedByHuman:
    """What a person closed."""

    @staticmethod
    def close(life: Life, number: int = 0) -> list[Verdict]:
        now_ns = T0 + life.second * NS_PER_SECOND
        reported = close_event(JOB, life.lines[number].verdict_id, "seen", "uid:7", now_ns)
        new = life.decide.close_by_human(reported, now_ns)
        life.lines += new
        return new

    def test_it_is_resolved_and_says_by_whom_and_why(self) -> None:
        life = Life()
        life.see(finding(HANG, "n3"))
        [line] = self.close(life)

        assert (line.state, line.reason) == (VerdictState.RESOLVED, Reason.CLOSED_BY_HUMAN.value)
        assert (line.action.value, line.update) == ("none", life.lines[0].update + 1)
        assert [one.text for one in line.evidence] == ["it is so", "closed by uid:7: seen"]
        assert self.close(life) == [], "it is closed once"

    @pytest.mark.parametrize("fault", [HANG, SLOW, DEGRADED])
    def test_what_goes_on_is_quiet_for_ten_minutes_and_then_another_incident(self, fault: FaultKind) -> None:
        life, reported = Life(), finding(fault, "n3")
        life.see(reported, seconds=3)
        self.close(life)
        assert life.see(reported, seconds=CONFIG.closed_quiet_ns // NS_PER_SECOND - 1) == []
        again = life.see(reported, seconds=2)

        assert [line.state.value for line in again] == ["open"]
        assert again[0].verdict_id != life.lines[0].verdict_id

    @pytest.mark.parametrize(
        ("closed", "later"),
        [
            (finding(HANG, "n3"), finding(HANG, "n3", onset=1 + 2e-7)),
            (finding(SLOW, "n3", onset=2), finding(SLOW, "n3", onset=1)),
            (finding(HANG, "n3"), finding(HANG, "n3", "n4")),
            (finding(HANG, "n3"), finding(HANG)),
            (finding(HANG), finding(HANG, onset=2)),
        ],
        ids=["onset_rounded", "onset_known_better", "suspects_grow", "suspects_go", "nobody_named"],
    )
    @pytest.mark.parametrize("is_restarted", [False, True])
    def test_it_stays_quiet_where_its_details_change(
        self, closed: Finding, later: Finding, *, is_restarted: bool
    ) -> None:
        life = Life()
        life.see(closed, seconds=8)
        self.close(life)
        if is_restarted:
            after = Decide(CONFIG, JOB)
            after.restore(life.decide.snapshot())
            life.decide = after

        assert life.see(later, seconds=CONFIG.closed_quiet_ns // NS_PER_SECOND - 1) == []
        assert [line.state.value for line in life.see(later, seconds=2)] == ["open"]

    def test_the_first_name_of_a_closed_incident_is_told_at_once(self) -> None:
        life = Life()
        life.see(finding(HANG), seconds=3)
        self.close(life)

        assert [line.state.value for line in life.see(finding(HANG, "n3"))] == ["open"]

    def test_the_end_of_a_process_is_never_told_again(self) -> None:
        life, reported = Life(), finding(STOP, "n3")
        life.see(reported, seconds=3)
        self.close(life)

        assert life.see(reported, seconds=2000) == []
        assert life.see(finding(STOP, "n3", onset=4), seconds=10) == [], "its time is known better now"
        ranks = tuple(replace(one, ranks=(2, 3)) for one in reported.suspects)
        assert life.see(replace(reported, suspects=ranks), seconds=10) == [], "its ranks are known now"
        other = finding(STOP, "n3", "n4")
        assert [line.state.value for line in life.see(other)] == ["open"], "nobody has seen n4 named"

    @pytest.mark.parametrize("other", [finding(HANG, "n4"), finding(STOP, "n3"), finding(HANG, "n3", onset=40)])
    def test_another_story_is_told_at_once(self, other: Finding) -> None:
        life = Life()
        life.see(finding(HANG, "n3"), seconds=3)
        self.close(life)

        assert [line.state.value for line in life.see(other)] == ["open"]

    def test_a_restart_forgets_nothing(self) -> None:
        life, reported = Life(), finding(HANG, "n3")
        life.see(reported, seconds=3)
        self.close(life)
        after = Decide(CONFIG, JOB)
        after.restore(life.decide.snapshot())
        life.decide = after

        assert life.see(reported, seconds=100) == []


class TestWhatPassedOn:
    """Slowness that passed on to other machines takes back what step times alone have said."""

    @pytest.mark.parametrize("seconds", [2, 30], ids=["open", "confirmed"])
    def test_a_machine_accused_by_its_steps_is_taken_back(self, seconds: int) -> None:
        life = Life()
        life.see(finding(SLOW, "n3"), seconds=seconds)
        moved = replace(
            finding(SLOW, cause="data_imbalance"),
            reason=Reason.SLOWEST_RANK_CHANGES,
            passed_on=(Component(ComponentKind.HOST, "n3"),),
        )
        lines = life.see(moved)
        assert (lines[0].state, lines[0].reason) == (VerdictState.CANCELLED, "slowest_rank_changes")
        assert (lines[1].state, lines[1].suspects) == (VerdictState.OPEN, ())

    @pytest.mark.parametrize(
        ("suspects", "passed_on", "detector"),
        [(["n3"], ["n3"], "peers"), (["n3"], ["n4"], "steps"), (["n3", "n4"], ["n3"], "steps")],
        ids=["its-metrics-speak", "another-one", "one-of-two"],
    )
    def test_others_stand(self, suspects: list[str], passed_on: list[str], detector: str) -> None:
        life = Life()
        own = finding(SLOW, *suspects)
        extra = replace(own.evidence[0], detector=detector, metric="gpu_sm_clock_hertz")
        life.see(replace(own, evidence=(*own.evidence, extra)))
        hosts = tuple(Component(ComponentKind.HOST, host) for host in passed_on)
        moved = replace(finding(SLOW, cause="data_imbalance"), reason=Reason.SLOWEST_RANK_CHANGES, passed_on=hosts)
        assert life.see(moved) == []
