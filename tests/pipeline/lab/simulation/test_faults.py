"""Each kind shows what it says, at the host that it says."""

import numpy as np
import pytest

from tocsin.pipeline.lab.simulation.case import Case, draw_case
from tocsin.pipeline.lab.simulation.faults import FAULTS
from tocsin.pipeline.lab.simulation.plan import (
    Corruption,
    DataWait,
    Gap,
    Happening,
    PlannedSlowdown,
    PlannedSlowLink,
    Shift,
    Stop,
    Truth,
)
from tocsin.pipeline.recording.tables import Recording, Text

SECONDS = 600.0
SEEDS = range(4)


def cases(kind: str) -> list[tuple[Case, Truth]]:
    drawn = [draw_case(seed, 6, kind, duration_seconds=SECONDS) for seed in SEEDS]
    return [(case, case.plan.truths[0]) for case in drawn]


def rows_after(case: Case, recording: Recording, truth: Truth, gpu: int | None) -> int:
    """Rows of the faulty host from 5 s after the onset (of one GPU)."""
    table = recording.tables["host_metrics"]
    host = table["host"]
    assert isinstance(host, Text)
    ts = np.asarray(table["ts_ns"])
    own = (host.codes == truth.host_index) & (ts > case.shape.start_ns + (truth.onset_seconds + 5) * 1e9)
    if gpu is not None:
        own &= np.asarray(table["gpu"]) == gpu
    return int(own.sum())


def own_parts(case: Case, kind: type) -> list[object]:
    """Parts of this type that begin at the fault's onset."""
    onset = case.plan.truths[0].onset_seconds
    return [
        part
        for part in case.plan.of(kind)
        if (part.envelope.onset_seconds if hasattr(part, "envelope") else getattr(part, "at_seconds", onset)) == onset
    ]


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_begins_well_within_the_case_and_nowhere_else(kind: str) -> None:
    for case, truth in cases(kind):
        assert 0.2 * SECONDS < truth.onset_seconds < 0.7 * SECONDS
        assert len(case.plan.truths) == 1
        own = (*own_parts(case, PlannedSlowdown), *own_parts(case, PlannedSlowLink), *own_parts(case, DataWait))
        stops = case.plan.of(Stop)
        corruptions = case.plan.of(Corruption)
        assert own or stops or corruptions
        assert bool(stops) == (truth.kind in {"fail_stop", "hang"})


def test_an_unreachable_machine_is_silent() -> None:
    for case, truth in cases("machine_unreachable"):
        assert rows_after(case, case.recording(), truth, None) == 0


def test_a_dropped_card_is_silent_and_the_host_is_not() -> None:
    for case, truth in cases("gpu_card_drop"):
        gaps = [gap for gap in case.plan.of(Gap) if gap.gpu >= 0]
        for gap in gaps:
            recording = case.recording()
            assert rows_after(case, recording, truth, gap.gpu) == 0
            assert rows_after(case, recording, truth, -1) > 0


def test_nan_shows_in_the_steps_of_one_rank_first() -> None:
    for case, truth in cases("nan_gradient"):
        steps = case.recording().tables["steps"]
        loss, rank = np.asarray(steps["loss"]), np.asarray(steps["rank"])
        bad = np.flatnonzero(~np.isfinite(loss))
        if case.shape.step_ranks_count == case.shape.gpus_per_host_count:
            assert rank[bad[0]] // case.shape.gpus_per_host_count == truth.host_index


def test_a_power_cap_lowers_power_and_clock_of_its_host() -> None:
    for case, truth in cases("power_cap"):
        shifts = [part for part in own_parts(case, Shift) if isinstance(part, Shift)]
        assert {"gpu_power_watts", "gpu_sm_clock_hertz"} <= {part.metric for part in shifts}
        assert all(part.hosts == (truth.host_index,) for part in shifts)
        assert all(part.scale_factor <= 1.0 for part in shifts)


def test_a_pcie_downgrade_always_moves_pfc() -> None:
    for case, truth in cases("pcie_downgrade"):
        moved = [part for part in own_parts(case, Shift) if isinstance(part, Shift)]
        own = [part for part in moved if part.hosts == (truth.host_index,)]
        assert any(part.metric == "pfc_tx_packets_per_second" and part.add_value >= 100.0 for part in own)


@pytest.mark.parametrize("kind", ["ecc_error", "pcie_downgrade", "gpu_card_drop", "loader_stall"])
def test_events_tell_of_a_fault_in_a_part_of_the_cases(kind: str) -> None:
    reported = 0
    for seed in range(40):
        case = draw_case(seed, 4, kind, duration_seconds=SECONDS)
        words = {"ecc", "pcie_link", "xid", "loader"}
        reported += any(part.name in words for part in case.plan.of(Happening))

    assert 5 <= reported <= 35
