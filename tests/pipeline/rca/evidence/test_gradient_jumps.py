"""Gradient norms of ranks' own that jump alone, and healthy ones that scatter: one step a second, two ranks a host."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline.states import through_bytes
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.lab.testing.builders import START_NS, at_second, build_graph
from tocsin.pipeline.rca.evidence.loss_spikes import LossConfig, LossSpikes
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, RankPlace, StepRecord

Norms = npt.NDArray[np.float64]
"""A row a step, a column a rank."""
SPIKES = (60, 62, 63, 67, 70, 71, 75, 76, 80, 84, 85, 89)


def _graph(rank_count: int, stage_count: int = 1, rank_of_host_count: int = 2) -> JobGraph:
    return build_graph(
        RankPlace(rank, f"n{rank // rank_of_host_count:02d}", pp=rank * stage_count // rank_count, tp=0)
        for rank in range(rank_count)
    )


def _scattered(step_count: int, rank_count: int, sigma: float = 0.15, seed: int = 3) -> Norms:
    draw = np.random.default_rng(seed)
    of_all = np.exp(0.1 * draw.standard_normal((step_count, 1)))
    norms: Norms = 0.8 * of_all * np.exp(sigma * draw.standard_normal((step_count, rank_count)))
    return norms


def _reported(
    norms: Norms,
    graph: JobGraph | None = None,
    *,
    first_step: int = 0,
    is_stored: bool = False,
    loss: float | None = 2.5,
) -> list[tuple[int, Finding]]:
    """(second, finding) of these norms; ``is_stored``: through snapshots."""
    graph = graph or _graph(norms.shape[1])
    tracker, found = LossSpikes(LossConfig(), graph), []
    for step, row in enumerate(norms.tolist()):
        ts_ns = at_second(step)
        rows = [StepRecord(ts_ns, r, first_step + step, 1.0, loss=loss, grad_norm=norm) for r, norm in enumerate(row)]
        tracker.take_steps(rows)
        finding = tracker.find(ts_ns + NS_PER_SECOND)
        if finding is not None:
            found.append((step, finding))
        if is_stored:
            other = LossSpikes(LossConfig(), graph)
            other.load_state(through_bytes(tracker.to_state()))
            tracker = other
    return found


def _spiking(
    rank_count: int = 32, rank: int = 6, factor: float = 10.0, step_count: int = 100, sigma: float = 0.15
) -> Norms:
    norms = _scattered(step_count, rank_count, sigma)
    norms[list(SPIKES), rank] *= factor
    return norms


def test_where_nobody_says_who_is_in_which_stage_nobody_is_named() -> None:
    assert _reported(_spiking())
    assert not _reported(_spiking(), JobGraph())


@pytest.mark.parametrize(("rank_count", "spike_count"), [(4, 10), (8, 7), (32, 5), (400, 3)])
def test_the_fewer_peers_the_more_jumps_are_needed(rank_count: int, spike_count: int) -> None:
    [(second, finding), *_] = _reported(_spiking(rank_count, rank_count // 2, sigma=0.1), is_stored=True)

    assert second == SPIKES[spike_count - 1] + 2  # a step is judged when it is three seconds old
    [suspect] = finding.suspects
    assert (suspect.component.name, suspect.ranks) == (f"n{rank_count // 4:02d}", (rank_count // 2,))
    assert (finding.reason, finding.cause, finding.is_soft) == (Reason.GRADIENT_JUMPS_ALONE, "unknown", True)
    assert finding.onset_ns == START_NS + SPIKES[0] * NS_PER_SECOND
    assert "gradient norm jumped in" in finding.evidence[0].text
    assert "nobody else's" in finding.evidence[0].text


def test_it_needs_no_loss_and_no_jump_of_the_loss() -> None:
    assert _reported(_spiking(), loss=None)[0] == _reported(_spiking(), loss=2.5)[0]


def test_a_norm_that_stays_far_out_from_some_step_on_is_named() -> None:
    norms = _scattered(200, 32)
    norms[80:, 6] *= 10.0

    assert _reported(norms)[0][1].suspects[0].ranks == (6,)


def test_tensor_parallel_ranks_that_jump_together_are_one_machine() -> None:
    norms = _spiking()
    norms[list(SPIKES), 7] *= 10.0

    assert _reported(norms)[0][1].suspects[0].ranks == (6, 7)


def test_among_stages_each_is_compared_with_its_own() -> None:
    norms = _spiking(32, factor=8.0) * np.repeat([1.0, 6.0, 0.2, 30.0], 8)

    [(_, finding), *_] = _reported(norms, _graph(32, 4))
    assert finding.suspects[0].ranks == (6,)
    assert finding.evidence[0].peer_value == pytest.approx(0.8, rel=0.5)


def test_it_ends_ten_minutes_after_the_last_jump() -> None:
    assert _reported(_spiking(step_count=800))[-1][0] == SPIKES[-1] + 600 - 1


@pytest.mark.parametrize(("rank_count", "seed"), [(16, 1), (16, 2), (16, 3), (64, 4), (64, 5), (512, 6)])
def test_heavy_tails_are_nobody(rank_count: int, seed: int) -> None:
    norms = _scattered(2000, rank_count, 0.3, seed)
    norms *= np.where(np.random.default_rng(seed).random(norms.shape) < 0.002, 5.0, 1.0)

    assert _reported(norms) == []


@pytest.mark.parametrize("rate", [0.0002, 0.002, 0.02])
def test_spikes_of_random_ranks_that_stand_out_are_nobody(rate: float) -> None:
    norms = _scattered(2000, 16, 0.1)
    norms *= np.where(np.random.default_rng(5).random(norms.shape) < rate, 20.0, 1.0)

    assert _reported(norms) == []


def _everybody_has_it(norms: Norms) -> None:
    norms[:] = norms[:, :1]
    norms[list(SPIKES)] *= 10.0


def _all_spike(norms: Norms) -> None:
    norms[list(SPIKES)] *= 10.0


def _all_spike_and_one_recovers_later(norms: Norms) -> None:
    norms[60:400:10] *= 10.0
    norms[61:400:10, 6] *= 10.0


def _a_stage_spikes(norms: Norms) -> None:
    norms[np.ix_(SPIKES, range(8))] *= 10.0


def _another_once(norms: Norms) -> None:
    norms[list(SPIKES), 6] *= 10.0
    norms[66, 20] *= 12.0


def _now_and_then(norms: Norms) -> None:
    norms[60::25, 6] *= 10.0


def _the_first_steps_are_wild(norms: Norms) -> None:
    norms[:10] *= np.exp(2.0 * np.random.default_rng(8).standard_normal((10, norms.shape[1])))


def _warm_up(norms: Norms) -> None:
    norms *= np.geomspace(100.0, 1.0, len(norms))[:, None]


def _one_always_has_more(norms: Norms) -> None:
    norms[:, 6] *= 2.5


def _one_always_has_much_more(norms: Norms) -> None:
    norms[:, 6] *= 40.0


def _one_always_jumps(norms: Norms) -> None:
    norms[np.random.default_rng(9).random(len(norms)) < 0.07, 6] *= 10.0


def _one_scatters_more(norms: Norms) -> None:
    norms[:, 6] *= np.exp(0.8 * np.random.default_rng(9).standard_normal(len(norms)))


def _clipped(norms: Norms) -> None:
    np.minimum(norms, 1.0, out=norms)
    norms[list(SPIKES)] = 1.0


def _zeros(norms: Norms) -> None:
    norms[list(SPIKES), 6] = 0.0


def _one_falls(norms: Norms) -> None:
    norms[list(SPIKES), 6] /= 20.0


@pytest.mark.parametrize(
    "change",
    [
        _everybody_has_it,
        _all_spike,
        _all_spike_and_one_recovers_later,
        _a_stage_spikes,
        _another_once,
        _now_and_then,
        _the_first_steps_are_wild,
        _warm_up,
        _one_always_has_more,
        _one_always_has_much_more,
        _one_always_jumps,
        _one_scatters_more,
        _clipped,
        _zeros,
        _one_falls,
    ],
)
@pytest.mark.parametrize("sigma", [0.12, 0.3])
def test_what_healthy_jobs_do_is_nobody(change: Callable[[Norms], None], sigma: float) -> None:
    norms = _scattered(600, 32, sigma)
    change(norms)

    assert _reported(norms) == []


@pytest.mark.parametrize("stage_count", [1, 4])
def test_stages_with_other_levels_are_nobody(stage_count: int) -> None:
    norms = _scattered(500, 32, 0.2) * np.repeat([1.0, 6.0, 0.2, 30.0], 8)

    assert _reported(norms, _graph(32, stage_count)) == []  # also where nobody says who is in which stage


def test_a_host_that_is_a_whole_stage_is_not_named_for_ranks_that_take_turns() -> None:
    norms = _scattered(500, 32, 0.2)
    norms[np.arange(60, 500, 3), np.arange(147) % 8] *= 20.0

    assert _reported(norms, _graph(32, 4, 8)) == []


def test_with_fewer_than_three_peers_nobody_can_say() -> None:
    assert _reported(_spiking(3, 1)) == []
    assert _reported(_spiking(12, 1), _graph(12, 4)) == []


@settings(max_examples=10, deadline=None)
@given(st.permutations(range(16)), st.floats(1e-3, 1e3))
def test_relabelled_ranks_and_other_units_change_nothing_else(order: list[int], scale: float) -> None:
    norms = _spiking(16)
    [(second, finding), *_] = _reported(norms)
    [(other_second, other), *_] = _reported(norms[:, order] * scale)

    assert (other_second, other.suspects[0].ranks) == (second, (order.index(6),))
    assert other.onset_ns == finding.onset_ns


def test_what_it_remembers_is_bounded() -> None:
    norms = _scattered(700, 8)
    norms[50::2, 6] *= 10.0
    tracker = LossSpikes(LossConfig(), _graph(8))
    for step, row in enumerate(norms.tolist()):
        tracker.take_steps([StepRecord(START_NS, r, step, 1.0, grad_norm=norm) for r, norm in enumerate(row)])
        tracker.find(at_second(10))

    assert len(tracker.norms.past) == LossConfig().norms.kept_count
    norms[:, ::2] *= 10.0  # of several hosts
    for step, row in enumerate(norms.tolist(), 700):
        tracker.take_steps([StepRecord(START_NS, r, step, 1.0, grad_norm=norm) for r, norm in enumerate(row)])
        tracker.find(at_second(10))
    assert sum(len(spike.ranks) for spike in tracker.norms.past) <= LossConfig().norms.kept_count
    assert tracker.own.past.ranks.size == 8
    assert len(tracker.usual) == LossConfig().usual_count
