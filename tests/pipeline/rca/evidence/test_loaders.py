"""A rank that holds up the job, and a loader that says why: eight hosts, two ranks each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.pipeline.states import through_bytes
from tocsin.pipeline.lab.testing.builders import JOB, at_second, build_graph
from tocsin.pipeline.rca.evidence.loaders import LoaderConfig, LoaderTracker
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas import events
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import Event, EventSource, RankPlace, Severity
from tocsin.schemas.verdicts import Component, ComponentKind, FaultKind, Suspect

ONSET, NOW = 100, 130


def _tracker() -> LoaderTracker:
    graph = build_graph(RankPlace(rank, f"n{rank // 2}") for rank in range(16))
    return LoaderTracker(LoaderConfig(), graph)


def _says(tracker: LoaderTracker, second: float, rank: int, seconds: float, *, depth: int = 0, rows: int = 0) -> None:
    payload = {"source": "shard-17", "queue_depth": depth, "fetch_seconds": seconds, "rows": rows}
    ts_ns = at_second(second)
    tracker.take(Event(JOB, f"n{rank // 2}", ts_ns, rank, EventSource.LOADER, events.LOADER, Severity.INFO, payload))


def _hang(host: str = "n3", ranks: tuple[int, ...] = ()) -> Finding:
    suspect = Suspect(Component(ComponentKind.HOST, host), ranks)
    onset_ns = at_second(ONSET)
    return Finding(FaultKind.HANG, "unknown", (suspect,), onset_ns, 0.8, Reason.NEVER_ARRIVED, ())


def _cause(tracker: LoaderTracker, finding: Finding, now: int = NOW) -> str:
    [reported] = tracker.explain([finding], at_second(now))
    return reported.cause


def test_a_loader_that_fetches_for_long_is_why_its_rank_never_arrives() -> None:
    tracker = _tracker()
    _says(tracker, 95, 2, 0.02, depth=8, rows=512)
    _says(tracker, 105, 6, 5.0)
    other = _tracker()
    other.load_state(through_bytes(tracker.to_state()))
    [reported] = other.explain([_hang()], at_second(NOW))

    assert (reported.cause, reported.suspects[0].ranks) == ("loader_stall", (6,))
    assert (
        reported.evidence[0].text == "rank 6 on n3: its loader's queue is empty, and it fetches for 5 s from shard-17"
    )


@pytest.mark.parametrize(
    ("second", "seconds", "depth", "rows"),
    [(105, 0.5, 0, 0), (105, 9.0, 3, 0), (105, 9.0, 0, 64), (60, 9.0, 0, 0)],
    ids=["a-moment", "it-has-some", "it-got-some", "before"],
)
def test_what_explains_nothing(second: float, seconds: float, depth: int, rows: int) -> None:
    tracker = _tracker()
    _says(tracker, second, 6, seconds, depth=depth, rows=rows)

    assert _cause(tracker, _hang()) == "unknown"


def test_a_loader_that_got_rows_since_does_not_wait() -> None:
    tracker = _tracker()
    _says(tracker, 105, 6, 9.0)
    _says(tracker, 110, 6, 9.0, rows=512)

    assert _cause(tracker, _hang()) == "unknown"


@pytest.mark.parametrize(("rank", "cause"), [(3, "unknown"), (7, "loader_stall")], ids=["elsewhere", "beside-it"])
def test_who_waits_elsewhere_as_well_waits_for_the_storage_of_all(rank: int, cause: str) -> None:
    tracker = _tracker()
    _says(tracker, 105, 6, 9.0)
    _says(tracker, 106, rank, 9.0)

    assert _cause(tracker, _hang()) == cause
    assert _cause(tracker, _hang(ranks=(6,))) == "unknown"


def test_other_findings_stay_as_they_are() -> None:
    tracker = _tracker()
    _says(tracker, 105, 6, 9.0)
    others = [replace(_hang(), cause="process_frozen"), replace(_hang(), fault=FaultKind.FAIL_SLOW), _hang("n2")]

    assert tracker.explain(others, at_second(NOW)) == others
    assert _cause(tracker, _hang(), now=170) == "unknown"  # it said so long ago


def test_a_process_that_had_to_be_killed_waited_for_its_loader() -> None:
    """Storage that does not answer keeps SIGTERM from its reader, too."""
    tracker = _tracker()
    _says(tracker, 105, 6, 9.0)
    frozen = replace(_hang(), cause="process_frozen", suspects=(replace(_hang().suspects[0], ranks=(6,)),))
    ends = [(rank, 110, 6) for rank in range(16) if rank != 6] + [(6, 120, 9)]
    for rank, second, signal in ends:
        payload = {"code": -signal, "signal": signal, "stderr_tail": ""}
        at_ns = at_second(second)
        exit_ = Event(JOB, f"n{rank // 2}", at_ns, rank, EventSource.PROCESS, events.EXIT, Severity.ERROR, payload)
        tracker.graph.take([exit_])

    [reported] = tracker.explain([frozen], at_second(NOW))

    assert reported.cause == "loader_stall"
