"""Whatever happens in whatever order: the parts and what is unattributed are the elapsed time, to the nanosecond."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline.incidents.ettr.happenings import Happening, at, happenings
from tocsin.pipeline.incidents.ettr.ledger import EttrConfig, EttrLedger
from tocsin.pipeline.stores.attempt_time_rows import attempt_time_row
from tocsin.pipeline.stores.attempt_times import PART_NAMES, AttemptTime
from tocsin.schemas.records import NS_PER_SECOND, JobKey, Slice, Topology

JOB, OTHER = JobKey("c", "job"), JobKey("c", "other")
QUIET_NS = (0, 30 * NS_PER_SECOND, 3_700 * NS_PER_SECOND)


def feed(ledger: EttrLedger, one: Happening) -> list[AttemptTime]:
    """Tell a ledger one second, as both runtimes do, and return what it says."""
    if one.change is not None:
        ledger.on_action(one.change)
    ledger.on_slice(one.data)
    ledger.on_verdicts(one.verdicts, one.data.end_ns)
    return ledger.on_time(one.data.end_ns)


def check_sums(found: Sequence[AttemptTime]) -> None:
    """Check that no part is negative, that all of them fit into the wall time, and that the rows say the same."""
    for told in found:
        assert told.wall_ns >= 0
        assert all(length_ns > 0 for length_ns in told.parts_ns.values())
        assert told.unattributed_ns >= 0
        assert sum(told.parts_ns.values()) + told.unattributed_ns == told.wall_ns
        row = attempt_time_row(told)
        seconds = sum(float(str(row[f"{name}_seconds"])) for name in PART_NAMES)
        assert abs(seconds - float(str(row["wall_seconds"]))) < 1e-9 * max(1.0, seconds)


@settings(max_examples=40, deadline=None)
@given(happenings(JOB), st.sampled_from(QUIET_NS))
def test_parts_and_what_is_unattributed_are_the_elapsed_time(drawn: list[Happening], quiet_ns: int) -> None:
    ledger, first_ns = EttrLedger(), 0
    for one in drawn:
        check_sums(feed(ledger, one))
        if one.data.records and not first_ns:
            first_ns = min(record.ts_ns for record in one.data.records)
    now_ns = drawn[-1].data.end_ns + quiet_ns
    found = ledger.accounts(now_ns)
    check_sums([*found, *ledger.on_time(now_ns)])

    assert all(before.until_ns == after.began_ns for before, after in pairwise(found))
    assert all(one.is_over for one in found[:-1])
    if found:
        last = found[-1]
        assert found[0].began_ns == first_ns
        assert last.is_over or last.until_ns == now_ns
        assert sum(one.wall_ns for one in found) == last.until_ns - first_ns
    assert bool(found) == bool(first_ns)


@settings(max_examples=15, deadline=None)
@given(happenings(JOB), st.sets(st.integers(0, 9), max_size=3))
def test_a_restart_at_any_moment_says_the_same(drawn: list[Happening], restarts: set[int]) -> None:
    ledger, other = EttrLedger(), EttrLedger()
    for place, one in enumerate(drawn):
        if place in restarts:
            kept, other = other.snapshot(), EttrLedger()
            other.restore(kept)
        assert feed(other, one) == feed(ledger, one)
    assert other.snapshot() == ledger.snapshot()


@settings(max_examples=15, deadline=None)
@given(happenings(JOB), st.integers(0, 9), st.integers(1, 3))
def test_a_second_that_is_told_again_counts_no_time_twice(drawn: list[Happening], place: int, times: int) -> None:
    """As from a journal that is replayed on top of the ledger's own file."""
    ledger = EttrLedger()
    for index, one in enumerate(drawn):
        for _ in range(1 + times if index == place else 1):
            feed(ledger, one)
        found = ledger.accounts(one.data.end_ns)
        check_sums(found)
        assert all(before.until_ns == after.began_ns for before, after in pairwise(found))


@settings(max_examples=10, deadline=None)
@given(happenings(JOB, most=6), happenings(OTHER, most=6))
def test_the_rows_of_a_job_do_not_depend_on_other_jobs(own: list[Happening], others: list[Happening]) -> None:
    alone, together = EttrLedger(), EttrLedger()
    ticks = sorted({one.data.end_ns for one in (*own, *others)})
    by_end = {one.data.end_ns: one for one in own}, {one.data.end_ns: one for one in others}
    for now_ns in ticks:
        for of_job, ledgers in zip(by_end, ((alone, together), (together,)), strict=True):
            for ledger in ledgers if now_ns in of_job else ():
                one = of_job[now_ns]
                if one.change is not None:
                    ledger.on_action(one.change)
                ledger.on_slice(one.data)
                ledger.on_verdicts(one.verdicts, one.data.end_ns)
        told = [one for one in together.on_time(now_ns) if one.job.job_id == JOB.job_id]
        assert alone.on_time(now_ns) == told


def test_a_job_of_a_month_ago_is_dropped_and_its_next_attempt_begins_anew() -> None:
    config = EttrConfig(forget_ns=3600 * NS_PER_SECOND)
    ledger = EttrLedger(config)
    ledger.on_slice(Slice(JOB, at(0), at(1), (Topology(JOB, "n", at(0.5), ()),)))
    assert ledger.on_time(at(1))
    assert ledger.last_sign_ns == at(1)
    ledger.on_time(at(1) + config.forget_ns - 1)
    assert ledger.accounts(at(3_601))
    ledger.on_time(at(1) + config.forget_ns + 60 * NS_PER_SECOND)

    assert (ledger.accounts(at(3_700)), ledger.last_sign_ns) == ([], 0)
    assert ledger.is_settled(at(3_700))
    later = replace(JOB, attempt=1)
    ledger.on_slice(Slice(later, at(7_000), at(7_001), (Topology(later, "n", at(7_000.5), ()),)))
    assert [one.began_ns for one in ledger.accounts(at(7_001))] == [at(7_000.5)]
