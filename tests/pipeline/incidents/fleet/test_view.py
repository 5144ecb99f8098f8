"""The fleet view's bounds, and times that go back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tocsin.pipeline.incidents.fleet.config import FleetConfig
from tocsin.pipeline.incidents.fleet.view import FleetView
from tocsin.schemas import events
from tocsin.schemas.errors import SnapshotError
from tocsin.schemas.records import IDLE_JOB_ID, NS_PER_SECOND, Event, EventSource, JobKey, Severity
from tocsin.schemas.verdicts import Verdict

NOW_NS = 1_800_000_000 * NS_PER_SECOND


def lost(host: str, ts_ns: int = NOW_NS, name: str = events.GPU_LOST, **payload: object) -> Event:
    return Event(JobKey("c", IDLE_JOB_ID), host, ts_ns, -1, EventSource.KERNEL, name, Severity.FATAL, payload)


def reported(view: FleetView, count: int) -> list[Verdict]:
    view.on_time(NOW_NS)
    for row in range(count):
        view.hosts.heard(f"n{row}", IDLE_JOB_ID, NOW_NS)
    view.on_host_events([lost("n0")], NOW_NS)
    return view.on_time(NOW_NS + NS_PER_SECOND)


def test_what_is_remembered_is_bounded() -> None:
    config = replace(FleetConfig(), max_hosts_count=50, max_signals_count=8, max_covered_count=50)
    view = FleetView(config, "c")
    sizes = []
    for turn in range(130):
        for row in range(100):
            host = f"n{turn}-{row}"
            view.hosts.heard(host, IDLE_JOB_ID, NOW_NS)
            view.on_host_events([lost(host, NOW_NS, events.XID, code=row + 40)], NOW_NS)
        sizes.append(len(view.snapshot()["fleet"]))
    assert view.status()["hosts_known"] == 50
    assert sizes[-1] <= 1.05 * sizes[60]


def test_a_time_that_was_seen_already_makes_no_line() -> None:
    view = FleetView(FleetConfig(), "c")
    assert len(reported(view, 100)) == 1
    view.on_host_events([lost("n0")], NOW_NS)  # the journal is replayed
    assert view.on_time(NOW_NS) == []
    assert view.on_time(NOW_NS + NS_PER_SECOND) == []


def test_own_lines_are_no_input() -> None:
    view = FleetView(FleetConfig(), "c")
    lines = reported(view, 100)
    before = view.snapshot()
    view.on_verdicts(lines, NOW_NS + NS_PER_SECOND)
    assert view.snapshot() == before


def test_a_clock_that_was_set_back_lets_the_view_begin_anew() -> None:
    view = FleetView(FleetConfig(), "c")
    reported(view, 100)
    view.on_time(NOW_NS - 7200 * NS_PER_SECOND)
    assert view.live == ()
    assert view.status()["hosts_known"] == 0


def test_a_snapshot_of_something_else_is_refused() -> None:
    with pytest.raises(SnapshotError, match="fleet"):
        FleetView(FleetConfig(), "c").restore({"other": b""})
