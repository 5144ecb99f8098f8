"""Do the machines work, stand, or go on one after the other?"""

import pytest

from tocsin.pipeline.detect.peers.activity import (
    WORK,
    WorkConfig,
    WorkTracker,
    is_non_training_phase,
)
from tocsin.schemas.records import NS_PER_SECOND

WINDOW_NS = 5 * NS_PER_SECOND


def _after(*ratios: float) -> WorkTracker:
    tracker = WorkTracker(WorkConfig())
    for number, ratio in enumerate(ratios):
        span = (number * WINDOW_NS, (number + 1) * WINDOW_NS)
        tracker.take(span, dict.fromkeys(WORK, ratio), step_ns=NS_PER_SECOND, announced=False)
    return tracker


@pytest.mark.parametrize("ratios", [(0.0, 0.0, 0.0, 0.0), (0.2, 0.21, 0.19, 0.2), (0.3, 0.2, 0.1, 0.0, 0.02)])
def test_machines_that_wait_for_one_do_not_begin_again(ratios: tuple[float, ...]) -> None:
    tracker = _after(1.0, 1.0, *ratios)
    assert tracker.stalled_since_ns == 2 * WINDOW_NS
    assert not tracker.is_rising


def test_machines_that_waited_for_their_data_go_on_one_after_the_other() -> None:
    tracker = _after(1.0, 1.0, 0.01, 0.0, 0.0, 0.05, 0.09)
    assert tracker.stalled_since_ns
    assert tracker.is_rising


def test_traffic_between_machines_tells_of_work_where_gpus_do_not() -> None:
    tracker = WorkTracker(WorkConfig())
    for number in range(20):
        shares = {"rdma_bytes_per_second": 1.0 if number < 12 else 0.0, "cpu_util_ratio": 1.4, "gpu_util_ratio": 1.1}
        tracker.take((number * WINDOW_NS, (number + 1) * WINDOW_NS), shares, step_ns=0, announced=False)
    assert tracker.stalled_since_ns == 12 * WINDOW_NS


@pytest.mark.parametrize(("power", "overdue", "stands"), [(0.5, True, True), (0.5, False, False), (0.9, True, False)])
def test_gpus_that_rest_while_no_step_ends_wait_and_spin(power: float, overdue: bool, stands: bool) -> None:
    tracker = WorkTracker(WorkConfig())
    for number in range(20):
        shares = {"gpu_power_watts": power if number >= 12 else 1.0, "gpu_util_ratio": 1.1, "cpu_util_ratio": 1.3}
        late = overdue and number >= 13
        span_ns = number * WINDOW_NS, (number + 1) * WINDOW_NS
        tracker.take(span_ns, shares, step_ns=NS_PER_SECOND, announced=False, overdue=late)
    assert bool(tracker.stalled_since_ns) is stands


def test_nobody_begins_again_where_nobody_stood() -> None:
    assert not _after(1.0, 0.5, 0.9).is_rising
    assert not _after().is_rising


def _pcie() -> WorkTracker:
    """A minute of work, 90 s of a checkpoint, and work again; of the metrics of work only PCIe is sampled."""
    tracker = WorkTracker(WorkConfig())
    for number, ratio in enumerate([1.0] * 12 + [3.0] * 18 + [1.0] * 12):
        span = (number * WINDOW_NS, (number + 1) * WINDOW_NS)
        tracker.take(span, {"pcie_bytes_per_second": ratio}, step_ns=0, announced=False)
    return tracker


def test_the_end_of_a_checkpoint_is_no_slowdown_where_pcie_is_all_that_tells_of_work() -> None:
    end_ns = 42 * WINDOW_NS
    slowdown = _pcie().slowdown_since(30 * WINDOW_NS, end_ns)

    assert slowdown is not None
    assert (slowdown.is_certain, slowdown.ratio) == (False, 0.0)


def test_a_slowdown_is_told_as_it_was_seen_by_a_time() -> None:
    tracker = _after(*[1.0] * 12, *[0.7] * 12)
    early = tracker.slowdown_since(6 * WINDOW_NS, 12 * WINDOW_NS)
    late = tracker.slowdown_since(12 * WINDOW_NS, 24 * WINDOW_NS)

    assert early is not None
    assert late is not None
    assert (early.is_certain, late.is_certain) == (False, True)
    assert tracker.slowdown_since(0, 0) is None


def _with_pcie(*ratios: float) -> WorkTracker:
    tracker = WorkTracker(WorkConfig())
    for number, ratio in enumerate(ratios):
        span = (number * WINDOW_NS, (number + 1) * WINDOW_NS)
        tracker.take(span, {"pcie_bytes_per_second": ratio}, step_ns=0, announced=False)
    return tracker


def test_a_burst_over_pcie_ends_a_standstill() -> None:
    tracker = _with_pcie(*[1.0] * 12, *[0.0] * 12, 1.6)

    assert (tracker.stalled_since_ns, tracker.is_idle) == (0, False)
    assert tracker.longest_stall_ns == 12 * WINDOW_NS


def test_what_pcie_does_for_minutes_is_how_the_job_works_now() -> None:
    tracker = _with_pcie(*[1.0] * 12, *[1.6] * 80, *[0.0] * 12)

    assert tracker.stalled_since_ns == 92 * WINDOW_NS


@pytest.mark.parametrize(
    ("reported", "is_loading"),
    [
        ({"pcie_bytes_per_second": 9.0, "gpu_power_watts": 0.5}, True),
        ({"pcie_bytes_per_second": 9.0, "gpu_power_watts": 0.9}, False),
        ({"pcie_bytes_per_second": 1.2, "gpu_power_watts": 0.5}, False),
        ({"pcie_bytes_per_second": 9.0, "gpu_power_watts": 0.5, "gpu_tensor_active_ratio": 0.1}, False),
        ({"pcie_bytes_per_second": 9.0}, False),
        ({"gpu_power_watts": 0.5}, False),
    ],
)
def test_gpus_that_rest_beside_a_burst_over_pcie_wait_for_what_is_loaded(
    reported: dict[str, float], is_loading: bool
) -> None:
    """Where something else is known of their work, that says whether they do any."""
    tracker = WorkTracker(WorkConfig())
    tracker.take((0, WINDOW_NS), reported, step_ns=0, announced=False)
    assert tracker.is_loading is is_loading
    tracker.take((WINDOW_NS, 2 * WINDOW_NS), dict.fromkeys(reported, 1.0), step_ns=0, announced=False)
    assert not tracker.is_loading


SM = {"gpu_sm_active_ratio": 1.0}


@pytest.mark.parametrize(
    ("compute", "traffic", "is_other"),
    [(1.1, 0.5, True), (0.96, 0.2, True), (0.6, 0.5, False), (1.1, 0.9, False), (None, 0.2, False), (1.1, None, False)],
)
def test_who_computes_as_ever_and_moves_much_less_makes_no_slow_steps(
    compute: float | None, traffic: float | None, is_other: bool
) -> None:
    """An evaluation: no gradients go round."""
    reported = {"gpu_fp_active_ratio": compute, "rdma_bytes_per_second": traffic, "gpu_util_ratio": 1.0}
    shares = {name: value for name, value in reported.items() if value is not None}
    assert is_non_training_phase(shares) is is_other
    tracker = WorkTracker(WorkConfig())
    tracker.take((15, 20), {"gpu_fp_active_ratio": 1.0, "rdma_bytes_per_second": 1.0, **SM}, 0, announced=False)
    assert tracker.non_training_since_ns == 0
    for window in (20, 25):
        tracker.take((window, window + 5), {**shares, **SM}, 0, announced=False)
    assert tracker.non_training_since_ns == (20 if is_other else 0)
