"""What every detector must do, whatever it looks at: one check of the contract of CONTRIBUTING.md a test.

A check that a detector cannot pass by its nature is declared by its case (``exempt``), with the reason.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping, Sequence

import pytest

from tests.pipeline.detect.conformance import (
    FAULTY_HOST,
    LACKS,
    DetectorCase,
    Lack,
    accused,
    later,
    numbers_in,
    renamed,
    scores_of,
    without,
)
from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.errors import SnapshotError
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, Slice
from tocsin.schemas.verdicts import Anomaly, ComponentKind

EXEMPTIONS = frozenset(
    {
        "units",
        "learning",
        "direction",
        "always different",
        "falls silent",
        "some numbers",
        "4 hosts",
        "256 hosts",
        "4096 hosts",
    }
)
"""What may be declared."""
SILENT_HOSTS: Mapping[Lack, str] = {"some numbers": "n00", "all numbers": "n01", "rows": "n05"}
"""Machines that are well; not always the same one, as each has noise of its own."""
_CLEARLY = 1.002
"""A score that is so many times as high is higher; less may be rounding."""


def constant(slices: Sequence[Slice]) -> list[Slice]:
    """As many slices that all tell what the second one does (the first may only announce)."""
    first, second = slices[0], slices[1]
    length_ns = second.end_ns - second.start_ns
    return [first, *(later(second, place * length_ns) for place in range(len(slices) - 1))]


def first_said(reported: Sequence[Sequence[Anomaly]]) -> int:
    """Index of the first slice of which something is said."""
    return next(index for index, said in enumerate(reported) if said)


class DetectorConformance(DetectorCase):
    """The checks. Subclasses make a detector and its slices."""

    def test_what_is_declared_is_a_check_and_has_a_reason(self) -> None:
        assert self.exempt.keys() <= EXEMPTIONS
        assert all(len(reason) > 20 for reason in self.exempt.values())

    def test_it_finds_what_it_is_made_for_and_names_nobody_else(self) -> None:
        assert accused(self.reported()) == {FAULTY_HOST}

    def test_it_says_nothing_of_a_healthy_job(self) -> None:
        assert not [anomaly for said in self.reported(faulty=False) for anomaly in said]

    def test_scores_lie_where_the_documents_say_and_times_in_the_past(self) -> None:
        slices, reported = self.slices(8, faulty=True), self.reported()
        low, high = self.scores

        assert next(anomaly.score for said in reported for anomaly in said) >= 1  # the alarm line, whoever speaks
        for data, said in zip(slices, reported, strict=True):
            for anomaly in said:
                assert low <= anomaly.score <= (high if anomaly.component.kind is ComponentKind.HOST else math.inf)
                assert anomaly.start_ns <= anomaly.end_ns <= anomaly.slice_end_ns == data.end_ns

    def test_a_gross_fault_is_said_no_later(self) -> None:
        weak, strong = self._weak_and_strong((1.0, self.gross_strength))

        assert accused(strong) == {FAULTY_HOST}
        assert first_said(strong) <= first_said(weak)

    def test_a_gross_fault_scores_no_lower(self) -> None:
        self.skip_if_exempt("direction")
        weak, strong = (
            scores_of(reported, FAULTY_HOST) for reported in self._weak_and_strong((1.0, self.gross_strength))
        )

        assert max(strong.values()) >= max(weak.values()) - 1e-6

    def test_a_stronger_fault_scores_higher(self) -> None:
        """In the first slice in which both are said: of sums that grow with time, later ones have stopped growing."""
        weak, strong = (scores_of(reported, FAULTY_HOST) for reported in self._weak_and_strong(self.graded_strengths))
        both = sorted(weak.keys() & strong.keys())

        assert both
        assert strong[both[0]] > _CLEARLY * weak[both[0]]
        assert all(strong[index] >= weak[index] / _CLEARLY for index in both)

    def _weak_and_strong(self, strengths: tuple[float, float]) -> list[Sequence[Sequence[Anomaly]]]:
        reported = []
        for self.strength in strengths:
            reported.append(self.reported())
        return reported

    @pytest.mark.parametrize("lack", LACKS)
    def test_a_healthy_machine_whose_numbers_were_never_there_is_not_named_and_hides_nobody(self, lack: Lack) -> None:
        self.skip_if_exempt(lack)
        reported = self._told_without(0, lack, faulty=True)

        assert accused(reported) == {FAULTY_HOST}
        assert self._is_named_in_time(reported)

    @pytest.mark.parametrize("lack", LACKS)
    def test_a_healthy_machine_whose_numbers_stop_coming_is_not_named_and_hides_nobody(self, lack: Lack) -> None:
        self.skip_if_exempt("falls silent")
        self.skip_if_exempt(lack)
        well, ill = (self._told_without(self.fault_at - 5, lack, faulty=faulty) for faulty in (False, True))

        assert not [anomaly for said in well for anomaly in said]  # not even one of the whole job
        assert accused(ill) == {FAULTY_HOST}
        assert self._is_named_in_time(ill)

    def _told_without(self, first: int, lack: Lack, *, faulty: bool) -> list[list[Anomaly]]:
        host = SILENT_HOSTS[lack]
        slices = enumerate(self.slices(8, faulty=faulty))
        return self.play(self.lacking(data, host, lack) if index >= first else data for index, data in slices)[1]

    def _is_named_in_time(self, reported: Sequence[Sequence[Anomaly]]) -> bool:
        return min(scores_of(reported, FAULTY_HOST)) <= min(scores_of(self.reported(), FAULTY_HOST)) + self.waits_slices

    def test_nan_never_comes_out(self) -> None:
        slices = self.slices(8, faulty=True)
        slices = [self.lacking(data, "n00", "all numbers") if index % 2 else data for index, data in enumerate(slices)]
        detector, reported = self.play(slices)

        assert accused(reported) == {FAULTY_HOST}
        for said in reported:
            for anomaly in said:
                assert math.isfinite(anomaly.score)
                assert not [number for number in numbers_in(anomaly.detail) if math.isnan(number)]
        assert detector.snapshot()

    def test_a_job_whose_numbers_are_all_missing_accuses_nobody(self) -> None:
        slices = self.slices(8, faulty=True)
        for number in range(8):
            slices = [self.lacking(data, f"n{number:02d}", "all numbers") for data in slices]
        _, reported = self.play(slices)

        assert not accused(reported)

    def test_a_host_that_is_heard_of_every_other_slice_is_no_fault_and_hides_none(self) -> None:
        slices = [without(data, "n05") if index % 2 else data for index, data in enumerate(self.slices(8, faulty=True))]

        assert accused(self.play(slices)[1]) == {FAULTY_HOST}

    @pytest.mark.parametrize("kept", [1, 2])
    def test_a_job_of_which_one_or_two_hosts_are_heard_of_accuses_nobody(self, kept: int) -> None:
        slices = self.slices(8, faulty=True)
        for number in range(8):
            if number not in (3, 4)[:kept]:
                slices = [without(data, f"n{number:02d}") for data in slices]

        assert not accused(self.play(slices)[1])

    @pytest.mark.parametrize("hosts", [1, 2])
    def test_too_few_peers_abstain_by_name(self, hosts: int) -> None:
        detector, reported = self.play(self.slices(hosts, faulty=True))

        assert not accused(reported)
        assert detector.abstained[Reason.TOO_FEW_PEERS] > 0

    def test_a_snapshot_after_any_slice_changes_nothing(self) -> None:
        slices = self.slices(8, faulty=True)
        detector, reported = self.play(slices)
        restored, told_again = self.play(slices, break_at=range(0, len(slices), self.break_step))

        assert told_again == reported
        assert restored.abstained == detector.abstained
        assert restored.snapshot() == detector.snapshot()

    def test_identical_inputs_give_identical_answers(self) -> None:
        assert self.play(self.slices(8, faulty=True))[1] == self.reported()

    @pytest.mark.parametrize("share", [0.5, 0.65, 0.9])
    def test_what_comes_later_changes_nothing_that_was_said(self, share: float) -> None:
        slices = self.slices(8, faulty=True)
        count = int(share * len(slices))

        assert self.play(slices[:count])[1] == self.reported()[:count]

    def test_machines_that_are_permuted_permute_the_answer_and_nothing_else(self) -> None:
        hosts = [f"n{number:02d}" for number in range(8)]
        names = dict(zip(hosts, reversed(hosts), strict=True))
        other = self.play([renamed(data, names) for data in self.slices(8, faulty=True)])[1]

        for one, two in zip(self.reported(), other, strict=True):
            by_host = {names.get(a.component.name, a.component.name): a for a in one}
            assert by_host.keys() == {a.component.name for a in two}
            for anomaly in two:
                matching = by_host[anomaly.component.name]
                assert anomaly.score == pytest.approx(matching.score, rel=1e-3)
                assert (anomaly.metric, anomaly.start_ns) == (matching.metric, matching.start_ns)

    def test_the_unit_of_a_metric_does_not_matter_where_its_limits_have_it_too(self) -> None:
        self.skip_if_exempt("units")
        plain = self.reported()
        case = self.rescaled(0.001)
        scaled = case.play(case.slices(8, faulty=True))[1]

        assert accused(plain) == {FAULTY_HOST}
        assert [[a.component for a in said] for said in scaled] == [[a.component for a in said] for said in plain]
        assert [a.score for said in scaled for a in said] == pytest.approx(
            [a.score for said in plain for a in said], rel=1e-3
        )

    def test_it_learns_when_it_is_told_to(self) -> None:
        """The same slices before and after: only what was taught tells the machine at fault, and no other."""
        self.skip_if_exempt("learning")
        before = self.untaught()

        assert accused(before.play(self.slices(8, faulty=True))[1]) != {FAULTY_HOST}
        assert accused(self.reported()) == {FAULTY_HOST}

    def test_constant_machines_that_are_alike_say_nothing(self) -> None:
        _, reported = self.play(constant([self.alike(data) for data in self.slices(8, faulty=False)]))

        assert not [anomaly for said in reported for anomaly in said]

    def test_constant_machines_that_always_differed_a_little_say_nothing(self) -> None:
        self.skip_if_exempt("always different")
        _, reported = self.play(constant(self.slices(8, faulty=False)))

        assert not [anomaly for said in reported for anomaly in said]

    def test_identical_machines_are_never_accused_whatever_they_do_together(self) -> None:
        _, reported = self.play([self.alike(data) for data in self.slices(8, faulty=True)])

        assert not accused(reported)

    @pytest.mark.parametrize("hosts", [4, 16])
    def test_a_lone_gross_fault_is_found_within_its_continuity(self, hosts: int) -> None:
        self.skip_if_exempt(f"{hosts} hosts")
        self._found_within_its_time(hosts)

    @pytest.mark.slow  # seconds to a minute for each size
    @pytest.mark.timeout(900)
    @pytest.mark.parametrize("hosts", [256, 4096])
    def test_a_lone_gross_fault_is_found_within_its_continuity_in_large_jobs(self, hosts: int) -> None:
        self.skip_if_exempt(f"{hosts} hosts")
        self._found_within_its_time(hosts)

    def _found_within_its_time(self, hosts: int) -> None:
        self.strength = self.gross_strength
        _, reported = self.play(self.slices(hosts, faulty=True)[: self.fault_at + self.within_slices])

        assert accused(reported) == {FAULTY_HOST}, hosts
        assert first_said(reported) >= self.fault_at, hosts

    @pytest.mark.slow  # one to several minutes
    @pytest.mark.timeout(1800)
    def test_a_day_leaves_no_more_state_than_its_first_hours_and_identical_machines_never_alarm(self) -> None:
        """More than 10,000 slices. ``held`` is all that the detector holds: what it keeps beside its state, too."""
        made = [self.alike(data) for data in self.slices(4, faulty=False)]
        span_ns = made[-1].end_ns - made[0].start_ns
        turns = -(-86_400 * NS_PER_SECOND // span_ns)
        graph = JobGraph()
        detector, said, count = self.detector(graph), 0, 0
        sizes, held = [], []
        for turn in range(turns):
            for data in made:
                moved = later(data, turn * span_ns)
                graph.take(moved.records)
                said += len(detector.on_slice(moved))
                count += 1
            sizes.append(sum(map(len, detector.snapshot().values())))
            held.append(len(pickle.dumps(detector)))

        assert count >= 10_000
        assert said == 0
        assert sizes[-1] <= 1.1 * max(sizes[: turns // 5])
        assert held[-1] <= 1.1 * max(held[: turns // 5])

    def test_a_slice_without_records_is_fine(self) -> None:
        first, *rest = self.slices(8, faulty=True)
        empty = Slice(first.job, first.start_ns, first.end_ns, ())
        detector = self.detector(JobGraph())

        assert list(detector.on_slice(empty)) == []
        detector.restore(detector.snapshot())
        assert list(detector.on_slice(Slice(first.job, rest[0].start_ns, rest[0].end_ns, ()))) == []

    def test_anomalies_name_hosts_that_sent_something(self) -> None:
        for hosts in (3, 8):
            known = {record.host for data in self.slices(hosts, faulty=True) for record in data.records}
            assert accused(self.reported(hosts)) <= known

    def test_a_damaged_snapshot_is_refused(self) -> None:
        detector, _ = self.play(self.slices(3, faulty=False))
        parts = detector.snapshot()
        for name in parts:
            with pytest.raises(SnapshotError, match=name):
                self.detector(JobGraph()).restore({**parts, name: b"{"})
            with pytest.raises(SnapshotError, match=name):
                self.detector(JobGraph()).restore({other: parts[other] for other in parts if other != name})
