"""A recording without a verdict is healthy only if something in it was judged; else the reason has a name."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.pipeline.lab.backtest.kit import (
    at,
    cpu_recording,
    manifest,
    metric_table,
)
from tocsin.pipeline.lab.simulation.case import draw_case
from tocsin.pipeline.recording.replay import ReplayConfig, replay, replay_whole
from tocsin.pipeline.recording.tables import Columns, Recording, Text
from tocsin.schemas.metrics import HOST_METRICS
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND


def reason_of(recording: Recording) -> Reason | None:
    replayed = replay_whole(recording, ReplayConfig())
    assert replayed.verdicts == ()
    return replayed.reason


def steps(ranks: int, count: int, communication: float = 0.1) -> Columns:
    """A step a second of each rank, all alike."""
    order = np.repeat(np.arange(count), ranks)
    return {
        "ts_ns": at(1) + order * NS_PER_SECOND,
        "rank": np.tile(np.arange(ranks, dtype=np.int32), count),
        "step": order.astype(np.int64),
        "duration_seconds": np.full(len(order), 1.0),
        "communication_seconds": np.full(len(order), communication),
    }


def topology(hosts: int, ranks_of_host: int = 2) -> Columns:
    ranks = np.arange(hosts * ranks_of_host, dtype=np.int32)
    return {"rank": ranks, "host": Text.of([f"n{rank // ranks_of_host}" for rank in ranks.tolist()])}


def collectives(ranks: int, count: int) -> Columns:
    order = np.repeat(np.arange(count), ranks)
    start_ns = at(1) + order * NS_PER_SECOND
    return {
        "ts_ns": start_ns + NS_PER_SECOND // 2,
        "record": Text.of(["completion"] * len(order)),
        "rank": np.tile(np.arange(ranks, dtype=np.int32), count),
        "comm_id": Text.of(["w"] * len(order)),
        "op_name": Text.of(["all_reduce"] * len(order)),
        "op_seq": order.astype(np.int64),
        "msg_bytes": np.full(len(order), 1 << 20, np.int64),
        "start_ns": start_ns,
        "end_ns": start_ns + NS_PER_SECOND // 4,
    }


def group(ranks: int) -> Columns:
    names, kinds = Text.of(["w"] * ranks), Text.of(["world"] * ranks)
    return {"comm_id": names, "kind": kinds, "rank": np.arange(ranks, dtype=np.int32)}


def of_values(values: float, hosts: int = 4) -> Recording:
    table = metric_table([f"n{row}" for row in range(hosts)], {"cpu_util_ratio": np.full((300, hosts), values)})
    return Recording(manifest(300), {"topology": topology(hosts), "host_metrics": table})


def different_metrics() -> Recording:
    """Three machines, and no metric that two of them have."""
    columns = {}
    for row, name in enumerate(metric.name for metric in HOST_METRICS[:3]):
        columns[name] = np.full((300, 3), np.nan)
        columns[name][:, row] = 0.5
    return Recording(manifest(300), {"host_metrics": metric_table(["n0", "n1", "n2"], columns)})


def benign_events() -> Recording:
    table: Columns = {
        "ts_ns": np.array([at(5), at(9)]),
        "host": Text.of(["n0", "n0"]),
        "rank": np.array([0, 0], np.int32),
        "source": Text.of(["job", "job"]),
        "name": Text.of(["epoch", "epoch"]),
        "severity": Text.of(["info", "info"]),
        "payload": Text.of(["{}", "{}"]),
    }
    return Recording(manifest(60), {"topology": topology(4), "events": table})


NOT_JUDGED = {
    "no rows": (Recording(manifest(60), {}), Reason.NOTHING_RECORDED),
    "all rows after the end": (
        Recording(replace(manifest(60), start_ns=at(-900), end_ns=at(-700)), cpu_recording().tables),
        Reason.NOTHING_RECORDED,
    ),
    "no length": (replace(cpu_recording(), manifest=manifest(0)), Reason.SPAN_TOO_SHORT),
    "all NaN": (of_values(np.nan), Reason.METRIC_MISSING),
    "all infinite": (of_values(np.inf), Reason.METRIC_MISSING),
    "no metric in common": (different_metrics(), Reason.METRIC_MISSING),
    "one machine": (of_values(0.5, hosts=1), Reason.TOO_FEW_PEERS),
    "two machines": (cpu_recording(2), Reason.TOO_FEW_PEERS),
    "windows that only teach": (cpu_recording(seconds=60), Reason.SPAN_TOO_SHORT),
    "first steps": (
        Recording(manifest(60), {"topology": topology(4), "steps": steps(8, 3)}),
        Reason.WARMING_UP,
    ),
    "events that tell nothing": (benign_events(), Reason.NO_HOOK),
    "collectives of unknown groups": (
        Recording(manifest(60), {"topology": topology(4), "collectives": collectives(8, 40)}),
        Reason.NO_HOOK,
    ),
}


@pytest.mark.parametrize("name", NOT_JUDGED)
def test_where_nothing_was_compared_the_reason_has_a_name(name: str) -> None:
    recording, reason = NOT_JUDGED[name]

    assert reason_of(recording) is reason


JUDGED = {
    "metrics": cpu_recording(),
    "metrics, a window more than only teach": cpu_recording(seconds=66),
    "metrics of one machine, steps of four": Recording(
        manifest(60), {**of_values(0.5, 1).tables, "topology": topology(4), "steps": steps(8, 50)}
    ),
    "steps of one machine: its pace": Recording(manifest(60), {"topology": topology(1), "steps": steps(2, 50)}),
    "collectives of known groups": Recording(
        manifest(60), {"topology": topology(4), "groups": group(8), "collectives": collectives(8, 40)}
    ),
}


@pytest.mark.parametrize("name", JUDGED)
def test_one_detector_that_judged_is_enough(name: str) -> None:
    assert reason_of(JUDGED[name]) is None


@cache
def unreachable() -> Recording:
    return draw_case(2, 4, "machine_unreachable", duration_seconds=300.0).recording()


def test_whoever_gave_a_verdict_has_judged() -> None:
    """And the verdicts are those of a plain replay."""
    replayed = replay_whole(unreachable(), ReplayConfig())

    assert replayed.reason is None
    assert replayed.verdicts
    assert list(replayed.verdicts) == list(replay(unreachable(), ReplayConfig()))
