"""Parts of wall time never overlap, are never negative, and sum to at most the wall time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tocsin.pipeline.incidents.ettr.timeline import AttemptTimeline, Claim
from tocsin.pipeline.stores.attempt_times import TimePart
from tocsin.schemas.records import NS_PER_SECOND

STEP_PARTS = (TimePart.PRODUCTIVE, TimePart.RECOMPUTED)
OTHER_PARTS = tuple(part for part in TimePart if part not in STEP_PARTS)
HALF_NS = NS_PER_SECOND // 2
END_NS = 100 * HALF_NS

moments = st.integers(-10, 110).map(lambda half: half * HALF_NS)


@st.composite
def spans(draw: st.DrawFn, parts: tuple[TimePart, ...]) -> Claim:
    begin, end = draw(moments), draw(moments)
    return draw(st.sampled_from(parts)), begin, end


@given(st.lists(spans(OTHER_PARTS), max_size=12))
def test_each_instant_belongs_to_the_strongest_part_that_has_it(claims: list[Claim]) -> None:
    timeline = AttemptTimeline(0)
    for one in claims:
        timeline.claim(*one)
    wanted: dict[TimePart, int] = {}
    for ts_ns in range(0, END_NS, HALF_NS):
        having = [part for part, begin, end in claims if begin <= ts_ns < end]
        if having:
            strongest = min(having, key=tuple(TimePart).index)
            wanted[strongest] = wanted.get(strongest, 0) + HALF_NS
    assert timeline.parts(END_NS) == wanted


@given(st.lists(spans(STEP_PARTS) | spans(OTHER_PARTS), max_size=40), st.data())
def test_parts_sum_to_at_most_the_wall_time_and_settling_changes_no_sum(ops: list[Claim], data: st.DataObject) -> None:
    whole, settled = AttemptTimeline(0), AttemptTimeline(0)
    for part, begin, end in ops:
        for one in (whole, settled):
            one.add_step(part, begin, end) if part in STEP_PARTS else one.claim(part, begin, end)
    before = whole.parts(END_NS)
    assert min(before.values(), default=1) > 0
    assert sum(before.values()) <= END_NS
    settled.settle(data.draw(st.integers(0, 100)) * HALF_NS)
    assert settled.parts(END_NS) == before
    assert AttemptTimeline.from_state(settled.to_state()).parts(END_NS) == before


def test_a_long_job_is_kept_in_bounded_memory_and_loses_no_step() -> None:
    timeline = AttemptTimeline(0)
    for step in range(5_000):  # each tenth step is followed by an announced pause of two seconds
        begin_ns = step * NS_PER_SECOND + step // 10 * 2 * NS_PER_SECOND
        timeline.add_step(TimePart.PRODUCTIVE, begin_ns, begin_ns + NS_PER_SECOND)
        if step % 10 == 9:
            timeline.claim(TimePart.IDLE, begin_ns + NS_PER_SECOND, begin_ns + 3 * NS_PER_SECOND)
        timeline.bound()
    assert len(repr(timeline.to_state())) < 20_000
    assert timeline.parts(6_000 * NS_PER_SECOND) == {
        TimePart.PRODUCTIVE: 5_000 * NS_PER_SECOND,
        TimePart.IDLE: 1_000 * NS_PER_SECOND,
    }


def test_a_gap_between_two_steps_that_is_shorter_than_a_slice_stays_unattributed() -> None:
    timeline = AttemptTimeline(0)
    timeline.add_step(TimePart.PRODUCTIVE, 0, NS_PER_SECOND)
    timeline.add_step(TimePart.PRODUCTIVE, NS_PER_SECOND + HALF_NS, 3 * NS_PER_SECOND)
    timeline.claim(TimePart.DETECTION, 0, 3 * NS_PER_SECOND)
    assert timeline.parts(3 * NS_PER_SECOND) == {TimePart.PRODUCTIVE: 5 * HALF_NS}


@given(st.lists(spans(STEP_PARTS) | spans(OTHER_PARTS) | moments, max_size=40), st.data())
def test_what_is_summed_up_for_good_stays_and_leaves_no_time_for_what_comes_later(
    ops: list[Claim | int], data: st.DataObject
) -> None:
    timeline, until_ns, more = AttemptTimeline(0), data.draw(moments), list[Claim]()
    for one in ops:
        if isinstance(one, int):
            before, was_settled_ns = timeline.parts(one, more), timeline.settled_ns
            timeline.settle(one, more)
            assert timeline.parts(one, more) == before
            assert timeline.settled_ns == max(was_settled_ns, one)
        elif one[0] in STEP_PARTS:
            timeline.add_step(*one)
        elif data.draw(st.booleans()):
            more.append(one)
        else:
            timeline.claim(*one)
        until_ns = max(until_ns, timeline.settled_ns)
        found, settled = timeline.parts(until_ns, more), timeline.parts(timeline.settled_ns, more)
        assert all(found.get(part, 0) >= length_ns > 0 for part, length_ns in settled.items())
        assert sum(settled.values()) <= timeline.settled_ns
        assert sum(found.values()) - sum(settled.values()) <= until_ns - timeline.settled_ns


@given(
    st.lists(st.tuples(st.sampled_from(STEP_PARTS), st.integers(0, 6), st.integers(1, 6)), max_size=12),
    st.lists(moments, max_size=3),
)
def test_steps_have_their_length_and_pauses_between_them_nothing(
    steps: list[tuple[TimePart, int, int]], settled_ns: list[int]
) -> None:
    timeline, now_ns, wanted = AttemptTimeline(0), 0, dict[TimePart, int]()
    for part, pause, length in steps:
        begin_ns, now_ns = now_ns + pause * HALF_NS, now_ns + (pause + length) * HALF_NS
        timeline.add_step(part, begin_ns, now_ns)
        wanted[part] = wanted.get(part, 0) + now_ns - begin_ns
    for one in settled_ns:
        timeline.settle(min(one, now_ns))
    assert timeline.parts(now_ns) == wanted
