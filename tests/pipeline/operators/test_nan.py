"""Numbers that are none, in step records: as good as an event."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.pipeline.operators.diagnose.nan import NanConfig, NanTracker
from tocsin.pipeline.operators.findings import Finding
from tocsin.pipeline.operators.graph import JobGraph
from tocsin.schemas import events
from tocsin.schemas.records import (
    NS_PER_SECOND,
    Event,
    EventSource,
    JobKey,
    RankPlace,
    Severity,
    StepBatch,
    StepRecord,
    Topology,
)

JOB = JobKey("c", "j")
T0 = 1_800_000_000 * NS_PER_SECOND
NAN, INF = float("nan"), float("inf")


class Ranks:
    """Four ranks on four hosts, one step a second."""

    def __init__(self) -> None:
        self.graph = JobGraph()
        self.graph.take([Topology(JOB, f"n{r}", T0, (RankPlace(r, f"n{r}"),)) for r in range(4)])
        self.tracker = NanTracker(NanConfig())

    def step(self, step: int, losses: list[float | None], norms: list[float | None] | None = None) -> None:
        ts_ns = T0 + step * NS_PER_SECOND
        for rank, loss in enumerate(losses):
            norm = norms[rank] if norms else None
            batch = StepBatch(JOB, f"n{rank}", ts_ns, (StepRecord(ts_ns, rank, step, 1.0, loss=loss, grad_norm=norm),))
            self.graph.take([batch])
            self.tracker.take_steps(batch.rows)

    def find(self, second: float) -> Finding | None:
        return self.tracker.find(self.graph, T0 + int(second * NS_PER_SECOND))


@pytest.mark.parametrize("number", [NAN, INF, -INF])
def test_the_first_rank_is_named_by_its_step(number: float) -> None:
    ranks = Ranks()
    ranks.step(1, [2.0] * 4)
    ranks.step(2, [2.0, 2.0, number, 2.0])
    ranks.step(3, [number] * 4)
    finding = ranks.find(5)

    assert finding is not None
    assert [suspect.component.name for suspect in finding.suspects] == ["n2"]
    assert (finding.cause, finding.onset_ns) == ("nan_gradient", T0 + 2 * NS_PER_SECOND)
    assert str(number) in finding.evidence[0].text


def test_a_loss_comes_before_the_gradient_of_its_step() -> None:
    ranks = Ranks()
    ranks.step(1, [2.0] * 4, [1.0] * 4)
    ranks.step(2, [2.0, NAN, 2.0, 2.0], [NAN] * 4)
    finding = ranks.find(4)

    assert finding is not None
    assert [suspect.component.name for suspect in finding.suspects] == ["n1"]


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
    ts_ns = T0 + 2 * NS_PER_SECOND
    payload = {"step": 2, "what": "loss", "value": "nan"}
    ranks.tracker.take(Event(JOB, "n3", ts_ns, 3, EventSource.PROCESS, events.NAN, Severity.ERROR, payload))

    assert ranks.tracker.to_state() == other.tracker.to_state()


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
    at_ns = T0 + 2 * NS_PER_SECOND
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
    ranks, other = Ranks(), Ranks()
    ranks.step(1, [2.0] * 4)
    ranks.step(2, [2.0, NAN, 2.0, 2.0])
    other.tracker.load_state(json.loads(json.dumps(ranks.tracker.to_state())))
    other.graph = ranks.graph

    assert other.tracker.to_state() == ranks.tracker.to_state()
    assert other.find(14) == ranks.find(14)
