"""Numbers that cannot be, in metric frames: the machine that sends them is not judged by them, and nobody else is."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.pipeline.detect.conformance import FAULTY_HOST, DetectorCase, accused
from tests.pipeline.detect.test_conformance import TestMinderDetectorRaw as MinderCase
from tests.pipeline.detect.test_conformance import TestPeerDetector as PeersCase
from tests.pipeline.detect.test_conformance import TestPeerDetectorOnMetricsOfTheUsersOwn as UsersCase
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import Frame, Slice

CASES = {"peers": PeersCase, "users": UsersCase, "minder": MinderCase}
WRONG = {
    "nan": float("nan"),
    "inf": float("inf"),
    "minus_inf": float("-inf"),
    "negative": -1e9,
    "wrapped": -1.8e19,
    "unsigned": 1.8446744e19,
    "largest": 3e38,
}
BROKEN = "n05"

pytestmark = pytest.mark.parametrize("name", CASES)


def case_of(name: str) -> DetectorCase:
    return CASES[name]()


def spoiled(data: Slice, value: float, share: float, *, hosts: tuple[str, ...] = (BROKEN,)) -> Slice:
    """A slice in which so many of these hosts' numbers, always the same ones, are this."""

    def worse(matrix: bytes) -> bytes:
        values = np.frombuffer(matrix, "<f4").copy()
        values[np.random.default_rng(1).random(values.size) < share] = value
        return values.tobytes()

    records = (
        dataclasses.replace(r, host_matrix=worse(r.host_matrix), gpu_matrix=worse(r.gpu_matrix))
        if isinstance(r, Frame) and r.host in hosts
        else r
        for r in data.records
    )
    return dataclasses.replace(data, records=tuple(records))


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("share", [0.3, 1.0], ids=["some", "all"])
def test_a_machine_whose_numbers_cannot_be_is_not_accused_and_hides_nobody(name: str, wrong: str, share: float) -> None:
    case = case_of(name)
    slices = [
        spoiled(data, WRONG[wrong], share) if index >= case.fault_at else data
        for index, data in enumerate(case.slices(8, faulty=True))
    ]

    assert accused(case.play(slices)[1]) == {FAULTY_HOST}


@pytest.mark.parametrize("wrong", WRONG)
def test_machines_of_which_none_has_a_number_are_an_abstention_with_a_reason(name: str, wrong: str) -> None:
    case = case_of(name)
    every = tuple(f"n{number:02d}" for number in range(8))
    slices = [spoiled(data, WRONG[wrong], 1.0, hosts=every) for data in case.slices(8, faulty=True)]
    detector, reported = case.play(slices)

    assert not [anomaly for said in reported for anomaly in said]
    assert set(detector.abstained) & {Reason.METRIC_MISSING, Reason.TOO_FEW_PEERS}


def test_one_machine_of_which_nothing_is_known_is_counted_by_name(name: str) -> None:
    case = case_of(name)
    slices = [spoiled(data, float("nan"), 1.0) for data in case.slices(8, faulty=False)]
    detector, reported = case.play(slices)

    assert not accused(reported)
    assert detector.snapshot()
    if name != "minder":  # it leaves such a machine out and compares the others
        assert detector.abstained[Reason.METRIC_MISSING] == len(slices)


def test_frames_of_no_ticks_and_slices_of_no_length_say_nothing(name: str) -> None:
    case = case_of(name)
    data = case.slices(8, faulty=False)[0]
    records = tuple(
        dataclasses.replace(r, tick_count=0, host_matrix=b"", gpu_matrix=b"") if isinstance(r, Frame) else r
        for r in data.records
    )
    empty = [dataclasses.replace(data, records=records), dataclasses.replace(data, start_ns=data.end_ns)]

    assert not [anomaly for said in case.play(empty)[1] for anomaly in said]
