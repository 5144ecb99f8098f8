"""Losses that jump alone, and everybody's gradient norm with them: one step a second, two ranks a host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from tests.pipeline.states import through_bytes
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.lab.testing.builders import START_NS, at_second, build_graph
from tocsin.pipeline.rca.evidence.loss_spikes import LossConfig, LossSpikes
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas.records import NS_PER_SECOND, RankPlace, StepRecord

SPIKES = (60, 64, 71, 80, 83, 90)


def _graph(host_count: int) -> JobGraph:
    return build_graph(RankPlace(rank, f"n{rank // 2:02d}") for rank in range(2 * host_count))


def _reported(  # what to vary
    spikes: Mapping[int, Sequence[int]],
    *,
    host_count: int = 16,
    step_count: int = 100,
    norm_factor: float = 8.0,
    has_norms: bool = True,
) -> list[tuple[int, Finding]]:
    """(second, finding), where at these steps the losses of these ranks jump; through snapshots."""
    graph, draw = _graph(host_count), np.random.default_rng(3)
    tracker, found = LossSpikes(LossConfig(), graph), []
    for step in range(step_count):
        high = spikes.get(step, ())
        losses = 2.5 + 0.05 * draw.standard_normal(2 * host_count)
        losses[list(high)] *= 7.0
        norm = float(draw.uniform(0.8, 1.4)) * (norm_factor if high else 1.0)
        rows = [
            StepRecord(at_second(step), r, step, 1.0, loss=loss, grad_norm=norm if has_norms else None)
            for r, loss in enumerate(losses.tolist())
        ]
        draw.shuffle(rows)  # type: ignore[arg-type]  # numpy shuffles lists of anything
        tracker.take_steps(rows)
        finding = tracker.find(START_NS + (step + 1) * NS_PER_SECOND)
        if finding is not None:
            found.append((step, finding))
        other = LossSpikes(LossConfig(), graph)
        other.load_state(through_bytes(tracker.to_state()))
        tracker = other
    return found


@pytest.mark.parametrize(("host_count", "spike_count"), [(4, 5), (8, 4), (16, 3), (200, 3)])
def test_the_fewer_hosts_the_more_jumps_are_needed(host_count: int, spike_count: int) -> None:
    [(second, finding), *_] = _reported(dict.fromkeys(SPIKES, (6,)), host_count=host_count)

    assert second == SPIKES[spike_count - 1] + 2  # a step is judged when it is three seconds old
    [suspect] = finding.suspects
    assert (suspect.component.name, suspect.ranks) == ("n03", (6,))
    assert finding.onset_ns == START_NS + SPIKES[0] * NS_PER_SECOND
    assert finding.is_soft
    assert "5 steps" in _reported(dict.fromkeys(SPIKES[:5], (6,)))[-1][1].evidence[0].text


def test_ranks_of_one_host_that_jump_together_are_one_replica() -> None:
    [(_, finding), *_] = _reported(dict.fromkeys(SPIKES, (6, 7)))

    assert finding.suspects[0].ranks == (6, 7)


@pytest.mark.parametrize(
    "spikes",
    [
        {step: (number % 32,) for number, step in enumerate(range(60, 100, 3), 5)},
        {**dict.fromkeys(SPIKES, (6,)), 62: (20,)},
        dict.fromkeys(SPIKES, (6, 20)),
        dict.fromkeys(SPIKES, range(32)),
        dict.fromkeys(SPIKES[:2], (6,)),
    ],
    ids=["another-each-time", "another-once", "two-hosts", "all", "twice"],
)
def test_what_jumps_elsewhere_too_or_seldom_is_data(spikes: Mapping[int, Sequence[int]]) -> None:
    assert _reported(spikes) == []


def test_a_loss_that_no_gradient_shows_names_nobody() -> None:
    assert _reported(dict.fromkeys(SPIKES, (6,)), norm_factor=1.0) == []
    assert _reported(dict.fromkeys(SPIKES, (6,)), has_norms=False) == []


def test_three_machines_are_too_few() -> None:
    assert _reported(dict.fromkeys(range(40, 100, 3), (2,)), host_count=3) == []


def test_a_rank_whose_loss_always_is_so_has_no_jumps() -> None:
    assert _reported(dict.fromkeys(range(100), (6,))) == []


def test_it_ends_ten_minutes_after_the_last_jump_and_remembers_no_more_than_it_must() -> None:
    reported = _reported(dict.fromkeys(SPIKES, (6,)), step_count=800)

    assert reported[-1][0] == SPIKES[-1] + 600 - 1
    tracker = LossSpikes(LossConfig(), _graph(16))
    for step in range(100):  # steps that nobody asks about
        tracker.take_steps([StepRecord(START_NS, 0, step, 1.0, loss=2.0, grad_norm=1.0)])
    assert len(tracker.open) == LossConfig().open_keep_count


def test_a_job_that_was_rolled_back_is_judged_again() -> None:
    tracker = LossSpikes(LossConfig(), _graph(16))
    for step in (*range(400, 500), *range(100, 110)):
        tracker.take_steps([StepRecord(START_NS, 0, step, 1.0, loss=2.0, grad_norm=1.0)])
        tracker.find(at_second(10))

    assert tracker.judged_step == 109
