"""Numbers that are none, in step records: as good as an event."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.pipeline.lab.testing.builders import JOB, START_NS, at_second, build_graph
from tocsin.pipeline.rca.evidence.nan import NanConfig, NanTracker
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas import events
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, Event, EventSource, RankPlace, Severity, StepBatch, StepRecord

NAN, INF = float("nan"), float("inf")


class Ranks:
    """Four ranks on four hosts, one step a second."""

    def __init__(self, *hosts: str) -> None:
        self.hosts = hosts or ("n0", "n1", "n2", "n3")
        self.graph = build_graph(RankPlace(r, host) for r, host in enumerate(self.hosts))
        self.tracker = NanTracker(NanConfig(), self.graph)
        self.now_ns = 0

    def step(self, step: int, losses: list[float | None], norms: list[float | None] | None = None) -> None:
        ts_ns = self.now_ns = max(self.now_ns + NS_PER_SECOND, at_second(step))
        for rank, loss in enumerate(losses):
            norm = norms[rank] if norms else None
            batch = StepBatch(
                JOB, self.hosts[rank], ts_ns, (StepRecord(ts_ns, rank, step, 1.0, loss=loss, grad_norm=norm),)
            )
            self.graph.take([batch])
            self.tracker.take_steps(batch.rows)

    def find(self, second: float) -> Finding | None:
        return self.tracker.find(at_second(second))


@pytest.mark.parametrize("number", [NAN, INF, -INF])
def test_the_first_rank_is_named_by_its_step(number: float) -> None:
    ranks = Ranks()
    ranks.step(1, [2.0] * 4)
    ranks.step(2, [2.0, 2.0, number, 2.0])
    ranks.step(3, [number] * 4)
    finding = ranks.find(5)

    assert finding is not None
    assert [suspect.component.name for suspect in finding.suspects] == ["n2"]
    assert (finding.cause, finding.onset_ns) == ("nan_gradient", at_second(2))
    assert str(number) in finding.evidence[0].text


def test_a_loss_comes_before_the_gradient_of_its_step() -> None:
    ranks = Ranks()
    ranks.step(1, [2.0] * 4, [1.0] * 4)
    ranks.step(2, [2.0, NAN, 2.0, 2.0], [NAN] * 4)
    finding = ranks.find(4)

    assert finding is not None
    assert [suspect.component.name for suspect in finding.suspects] == ["n1"]


def test_where_nobody_was_seen_with_numbers_before_the_first_report_names_nobody() -> None:
    """An engine that starts in the midst of it hears of each rank's NaN when that rank speaks first."""
    ranks = Ranks()
    ranks.step(100, [NAN, None, None, None])
    ranks.step(101, [NAN] * 4)
    ranks.step(102, [NAN] * 4)
    finding = ranks.find(120)

    assert finding is not None
    assert (finding.suspects, finding.reason) == ((), Reason.NAN_EVERYWHERE)


def test_who_joins_late_without_numbers_clears_nobody_and_who_had_some_does() -> None:
    ranks = Ranks()
    ranks.step(1, [2.0, None, None, None])
    ranks.step(2, [NAN, None, None, None])
    ranks.step(3, [NAN, NAN, None, None])
    late = ranks.find(20)
    ranks = Ranks()
    ranks.step(1, [2.0, 2.0, None, None])
    ranks.step(2, [NAN, None, None, None])
    ranks.step(3, [NAN, NAN, None, None])
    seen = ranks.find(20)

    assert late is not None
    assert seen is not None
    assert (late.suspects, [one.component.name for one in seen.suspects]) == ((), ["n0"])


def test_all_in_the_same_step_accuse_nobody() -> None:
    ranks = Ranks()
    ranks.step(1, [2.0] * 4)
    ranks.step(2, [NAN] * 4)
    finding = ranks.find(4)

    assert finding is not None
    assert finding.suspects == ()


def test_only_one_rank_tells_its_loss() -> None:
    ranks = Ranks()
    ranks.step(1, [2.0, None, None, None])
    ranks.step(2, [NAN, None, None, None])
    finding = ranks.find(4)

    assert finding is not None
    assert finding.suspects == ()


@given(st.lists(st.lists(st.none() | st.floats(-1e30, 1e30), min_size=4, max_size=4), min_size=1, max_size=5))
def test_numbers_say_nothing(losses: list[list[float | None]]) -> None:
    ranks = Ranks()
    for step, row in enumerate(losses):
        ranks.step(step, row, row)

    assert ranks.tracker.first == {}
    assert ranks.find(60) is None


def test_an_event_and_a_record_of_the_same_are_one_report() -> None:
    ranks, other = Ranks(), Ranks()
    for each in (ranks, other):
        each.step(1, [2.0] * 4)
        each.step(2, [2.0, 2.0, 2.0, NAN])
    ts_ns = at_second(2)
    payload = {"step": 2, "what": "loss", "value": "nan"}
    ranks.tracker.take(Event(JOB, "n3", ts_ns, 3, EventSource.PROCESS, events.NAN, Severity.ERROR, payload))

    assert ranks.tracker.first[3][:5] == other.tracker.first[3][:5]
    assert ranks.find(5) == other.find(5)


@pytest.mark.parametrize(
    ("payload", "named"),
    [
        ({"step": 2, "where": "local_grad_norm"}, ["n2"]),
        ({"step": 2, "what": "local_loss"}, ["n2"]),
        ({"step": 2, "where": "grad_norm"}, []),
        ({"step": 2}, []),
    ],
    ids=str,
)
def test_a_number_of_the_rank_s_own_is_its_own_where_nobody_else_tells_any(
    payload: dict[str, object], named: list[str]
) -> None:
    ranks = Ranks()
    ranks.step(1, [None] * 4)
    at_ns = at_second(2)
    ranks.tracker.take(Event(JOB, "n2", at_ns, 2, EventSource.PROCESS, events.NAN, Severity.ERROR, payload))
    finding = ranks.find(4)

    assert finding is not None
    assert [suspect.component.name for suspect in finding.suspects] == named


def test_an_episode_is_forgotten() -> None:
    ranks = Ranks()
    ranks.step(1, [NAN, 2.0, 2.0, 2.0])

    assert ranks.find(20) is not None
    assert ranks.find(20 + NanConfig().forget_ns / NS_PER_SECOND) is None
    assert not math.isnan(ranks.tracker.newest_ns)


def test_state_there_and_back() -> None:
    ranks = Ranks()
    for step in (8, 9, 10, 1, 2):  # one episode of before, and one that goes on
        ranks.step(step, [2.0, NAN if step in (9, 2) else 2.0, 2.0, 2.0])
    other = NanTracker(NanConfig(), ranks.graph)
    other.load_state(json.loads(json.dumps(ranks.tracker.to_state())))

    assert [one.step for one in other.past] == [9]
    assert other == ranks.tracker
    second = (ranks.now_ns - START_NS) / NS_PER_SECOND + 11
    assert ranks.find(second) is not None
    assert other.find(at_second(second)) == ranks.find(second)


def _after(older: Ranks, began_step: int, *hosts: str) -> Ranks:
    """The next attempt, on these machines, from that step on."""
    ranks = Ranks(*hosts)
    ranks.now_ns = older.now_ns + 60 * NS_PER_SECOND
    ranks.tracker.follow(older.tracker)
    ranks.step(began_step, [2.0] * 4)
    return ranks


def _lost(ranks: Ranks, step: int, rank: int) -> Finding:
    """One rank's number, the others' a step later; what is said then."""
    ranks.step(step - 1, [2.0] * 4)
    ranks.step(step, [NAN if each == rank else 2.0 for each in range(4)])
    ranks.step(step + 1, [NAN] * 4)
    finding = ranks.find((ranks.now_ns - START_NS) / NS_PER_SECOND + 1)
    assert finding is not None
    return finding


def _names(finding: Finding) -> list[str]:
    return [suspect.component.name for suspect in finding.suspects]


SPARE = ("n0", "spare", "n2", "n3")
FIRST, SAME, SOON = Reason.NAN_FIRST_BY_STEP, Reason.NAN_SAME_STEP_AGAIN, Reason.NAN_SOON_ELSEWHERE


@pytest.mark.parametrize(
    ("hosts", "step", "rank", "named", "reason"),
    [
        (SPARE, 900, 1, [], SAME),  # another machine has this rank now
        ((), 900, 1, [], SAME),  # and be it the same one: the data is, too
        ((), 900, 3, [], SAME),  # ranks were dealt anew
        (SPARE, 902, 1, [], SAME),
        (SPARE, 850, 1, [], SOON),
        (SPARE, 990, 1, [], SOON),
        ((), 850, 1, ["n1"], FIRST),  # the same machine, with data that was good before
        (SPARE, 802, 1, [], SOON),  # the checkpoint
        ((), 802, 1, ["n1"], FIRST),  # the machine, as soon as it works
        (SPARE, 1500, 1, ["spare"], FIRST),  # its own
    ],
    ids=str,
)
def test_after_a_new_attempt(hosts: tuple[str, ...], step: int, rank: int, named: list[str], reason: Reason) -> None:
    older = Ranks()
    assert _names(_lost(older, 900, 1)) == ["n1"]
    finding = _lost(_after(older, 700 if step < 800 else 800, *hosts), step, rank)

    assert (_names(finding), finding.reason) == (named, reason)
    if not named:
        assert "before, on n1, numbers were lost at step 900" in finding.evidence[-1].text


def test_right_after_it_went_far_back() -> None:
    older = Ranks()
    _lost(older, 900, 1)
    finding = _lost(_after(older, 100, *SPARE), 102, 1)

    assert (_names(finding), finding.reason) == ([], SOON)


def test_earlier_attempts_are_remembered_through_one_without_a_nan() -> None:
    oldest = Ranks()
    _lost(oldest, 900, 1)
    finding = _lost(_after(_after(oldest, 800), 850, *SPARE), 900, 1)

    assert (_names(finding), finding.reason) == ([], SAME)


def test_rolled_back_without_a_new_attempt() -> None:
    ranks = Ranks()
    assert _names(_lost(ranks, 900, 1)) == ["n1"]
    ranks.step(850, [2.0] * 4)
    assert ranks.find((ranks.now_ns - START_NS) / NS_PER_SECOND + 1) is None
    finding = _lost(ranks, 900, 1)

    assert (_names(finding), finding.reason) == ([], SAME)


def test_the_same_machine_that_goes_on_is_named_again_after_long_silence() -> None:
    """Steps of ten minutes: it never went back."""
    ranks = Ranks()
    _lost(ranks, 900, 1)
    ranks.now_ns += 2 * NanConfig().forget_ns
    finding = _lost(ranks, 903, 1)

    assert (_names(finding), finding.reason) == (["n1"], FIRST)


def test_late_reports_of_before_it_went_back_are_of_before() -> None:
    ranks = Ranks()
    _lost(ranks, 900, 1)
    lost_ns = ranks.now_ns
    ranks.step(850, [2.0] * 4)
    ranks.tracker.take_steps([StepRecord(lost_ns, 3, 901, 1.0, loss=NAN)])

    assert ranks.tracker.first == {}


def test_all_in_the_same_step_stay_everywhere_the_second_time() -> None:
    older = Ranks()
    older.step(900, [NAN] * 4)
    ranks = _after(older, 800)
    ranks.step(900, [NAN] * 4)
    finding = ranks.find((ranks.now_ns - START_NS) / NS_PER_SECOND + 1)

    assert finding is not None
    assert (_names(finding), finding.reason) == ([], Reason.NAN_EVERYWHERE)


def test_no_more_is_kept_than_configured() -> None:
    ranks = Ranks()
    for turn in range(20):
        _lost(ranks, 5000 - 20 * turn, 1)

    assert len(ranks.tracker.past) == NanConfig().kept_count


def _loses(ranks: Ranks, rank: int, step: int, second: float) -> None:
    ts_ns = at_second(second)
    payload = {"step": step, "what": "loss", "value": "nan"}
    event = Event(JOB, ranks.hosts[rank], ts_ns, rank, EventSource.PROCESS, events.NAN, Severity.ERROR, payload)
    ranks.graph.take([event])
    ranks.tracker.take(event)


@pytest.mark.parametrize(("heard_from_step", "expected"), [(1, ["n2"]), (18, ["n2"]), (19, []), (20, [])])
def test_where_nobody_tells_losses_a_report_is_the_first_only_if_steps_were_heard_before_it(
    heard_from_step: int, expected: list[str]
) -> None:
    """Who begins to listen in the midst of a NaN hears of the ranks in the order in which they happen to speak."""
    ranks = Ranks()
    for step in range(heard_from_step, 24):
        ranks.step(step, [None] * 4)
    _loses(ranks, 2, 20, 20.2)
    for rank in (0, 1, 3):
        _loses(ranks, rank, 21, 21.5)
    finding = ranks.find(35)

    assert finding is not None
    assert [suspect.component.name for suspect in finding.suspects] == expected


def test_on_one_machine_the_first_rank_is_named() -> None:
    ranks = Ranks("box", "box", "box", "box")
    ranks.step(1, [2.0] * 4)
    ranks.step(2, [2.0, 2.0, NAN, 2.0])
    ranks.step(3, [NAN] * 4)
    finding = ranks.find(5)

    assert finding is not None
    assert [(suspect.component.name, suspect.ranks) for suspect in finding.suspects] == [("box", (2,))]


def test_on_one_machine_nobody_is_named_where_all_lose_them_at_once() -> None:
    ranks = Ranks("box", "box", "box", "box")
    ranks.step(1, [2.0] * 4)
    ranks.step(2, [NAN] * 4)
    finding = ranks.find(14)

    assert finding is not None
    assert finding.suspects == ()
