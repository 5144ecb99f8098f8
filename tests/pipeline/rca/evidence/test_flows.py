"""Transfers that stand: when they do, and for whom it is said."""

from __future__ import annotations

import pytest

from tests.pipeline.states import through_bytes
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.lab.testing.builders import JOB, START_NS, announce_places, at_second, build_graph, rank_places
from tocsin.pipeline.lab.testing.progress import FakeProgress
from tocsin.pipeline.rca import Diagnose, DiagnoseConfig
from tocsin.pipeline.rca.evidence.flows import FlowRules, FlowTracker
from tocsin.pipeline.rca.rules.standstill import elsewhere
from tocsin.schemas import events
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import (
    CollectiveBatch,
    CollectiveRecord,
    CommGroup,
    Event,
    EventSource,
    GroupKind,
    Groups,
    JobRecord,
    Severity,
    Slice,
    StepRecord,
)
from tocsin.schemas.verdicts import Anomaly, Component, ComponentKind

HOSTS = 6


class Job:
    """One rank a host, one collective that all have entered; rank 3 posts chunks that nobody acknowledges."""

    def __init__(self) -> None:
        self.graph = build_graph(rank_places(HOSTS))
        self.tracker = FlowTracker(FlowRules(), self.graph)

    def say(self, second: float, *, moved: int = 0, seq: int = 9, known: bool = True) -> None:
        """All ranks' counters; ``moved`` chunks since the first time."""
        self.tracker.take_collectives(self.states(second, moved=moved, seq=seq, known=known))

    def states(self, second: float, *, moved: int = 0, seq: int = 9, known: bool = True) -> list[CollectiveRecord]:
        """The same as rows."""
        rows = []
        for rank in range(HOSTS):
            done = 102 + moved + (rank != 3)
            ready, posted = (done + 4, done + 2) if rank == 3 else (done, done)
            counters = (ready, posted, done) if known else (-1, -1, -1)
            state = CollectiveRecord(
                at_second(second), "state", rank, "dp_0", "AllReduce", seq, 1 << 20, at_second(1), 0, 0, 999
            )
            rows.append(state._replace(gpu_ready=counters[0], rdma_transmitted=counters[1], rdma_done=counters[2]))
        return rows

    def named(self, second: float) -> list[str]:
        """Who is named, through a snapshot."""
        other = FlowTracker(FlowRules(), self.graph)
        other.load_state(through_bytes(self.tracker.to_state()))
        finding = other.find(at_second(second))
        assert finding == self.tracker.find(at_second(second))
        return [] if finding is None else [suspect.component.name for suspect in finding.suspects]


def test_a_transfer_that_stands_for_fifteen_seconds_names_its_machine() -> None:
    job = Job()
    found = {}
    for second in range(5, 40, 5):
        job.say(second)
        found[second] = job.named(second)

    assert found == {second: ["n3"] if second >= 20 else [] for second in range(5, 40, 5)}
    assert job.tracker.find(at_second(35)).cause == "nic_dropout"  # type: ignore[union-attr]  # it was found
    assert job.named(100) == []  # nobody has told of it for a minute


def test_a_transfer_that_goes_on_however_slowly_stands_not() -> None:
    job = Job()
    for second in range(5, 100, 5):
        job.say(second, moved=second // 10)

    assert job.named(100) == []


@pytest.mark.parametrize("over", ["completion", "step", "next"])
def test_what_finished_stands_not(over: str) -> None:
    job = Job()
    for second in (5, 15, 25):
        job.say(second)
    assert job.named(25) == ["n3"]

    if over == "completion":
        done = CollectiveRecord(
            at_second(26), "completion", 3, "dp_0", "AllReduce", 9, 1 << 20, at_second(1), at_second(26)
        )
        job.tracker.take_collectives([done._replace(rank=rank) for rank in range(HOSTS)])
    elif over == "step":
        job.tracker.take_steps([StepRecord(at_second(26), rank, 7, 1.0) for rank in range(HOSTS)])
    else:
        job.say(26, seq=10)

    assert job.named(26) == []


@pytest.mark.parametrize(("reported", "named"), [(True, []), (False, ["n3"])])
def test_a_collective_that_not_all_have_entered_waits_for_who_is_missing(reported: bool, named: list[str]) -> None:
    """Whoever sends to him has chunks that are not posted. Of whom no operation was ever heard tells nothing."""
    job = Job()
    job.graph.take([Groups(JOB, "n0", START_NS, (CommGroup("dp_0", GroupKind.DP, (*range(HOSTS), 99)),))])
    if reported:
        job.tracker.take_collectives([job.states(1)[0]._replace(rank=99, record="completion", comm_id="pp_0")])
    for second in range(5, 40, 5):
        job.say(second)

    assert job.named(35) == named


def _stands_out(host: str, metric: str = "gpu_util_ratio", sigmas: float = 48.0, **detail: bool) -> Anomaly:
    reported = {"metric": metric, "direction": "high", "score": 0.6, "sigmas": sigmas}
    component = Component(ComponentKind.HOST, host)
    return Anomaly(
        JOB,
        at_second(20),
        component,
        metric,
        at_second(5),
        at_second(20),
        0.6,
        "peers",
        "",
        {"metrics": [reported], **detail},
    )


@pytest.mark.parametrize(
    ("anomalies", "hosts"),
    [
        ([_stands_out("n4", standing=True), _stands_out("n4", leaning=True)], {"n4"}),
        ([_stands_out("n4", leaning=True)], {"n4"}),
        ([_stands_out("n4")], set()),
        ([_stands_out("n4", sigmas=8.0, standing=True)], set()),
        ([_stands_out("n4", "tcp_bytes_per_second", standing=True)], set()),
        ([_stands_out("n4", standing=True), _stands_out("n5", standing=True)], set()),
    ],
    ids=["stands", "fell-first", "differed-at-work", "by-little", "no-gpu", "two"],
)
def test_whose_gpus_are_elsewhere_while_the_job_stands(anomalies: list[Anomaly], hosts: set[str]) -> None:
    assert elsewhere(anomalies) == hosts


def test_nobody_is_named_where_chunks_and_gpus_tell_of_different_machines() -> None:
    job = Job()
    for second in (5, 15, 25):
        job.say(second)

    assert job.tracker.find(at_second(25), {"n5"}) is None
    assert job.tracker.find(at_second(25), {"n3"}) == job.tracker.find(at_second(25))


def test_an_announced_pause_is_none_of_the_network() -> None:
    job = Job()
    for second in (5, 15, 25):
        job.say(second)
    begins = {"phase": "checkpoint", "edge": "begin"}
    job.graph.take([Event(JOB, "n0", at_second(4), 0, EventSource.JOB, events.PHASE, Severity.INFO, begins)])

    assert job.named(25) == []


def test_without_counters_nothing_is_said() -> None:
    job = Job()
    for second in (5, 15, 25):
        job.say(second, known=False)

    assert job.named(25) == []
    assert job.tracker.to_state() == [[rank] for rank in range(HOSTS)]


@pytest.mark.parametrize("known", [True, False])
def test_the_whole_diagnosis_names_it_where_the_waiting_names_nobody(known: bool) -> None:
    """All are in the collective: who waits for whom tells nothing."""
    job, graph = Job(), JobGraph()
    job.graph = graph
    diagnose = Diagnose(DiagnoseConfig(), graph)
    named: set[str] = set()
    reasons: set[Reason] = set()
    for second in range(1, 41):
        records: list[JobRecord] = []
        if second == 1:
            records += announce_places(rank_places(HOSTS), 0.5)
            records += [Groups(JOB, "n0", at_second(0.5), (CommGroup("dp_0", GroupKind.DP, tuple(range(HOSTS))),))]
        if second > 5 and second % 5 == 0:
            records += [
                CollectiveBatch(JOB, "n0", at_second(second - 0.5), tuple(job.states(second - 0.5, known=known)))
            ]
        data = Slice(JOB, at_second(second - 1), at_second(second), tuple(records))
        graph.take(data.records)
        for finding in diagnose.on_slice(data, [], FakeProgress(work_is_known=False)).findings:
            named |= {suspect.component.name for suspect in finding.suspects}
            reasons |= {finding.reason} if finding.suspects else set()

    assert named == ({"n3"} if known else set())
    assert reasons == ({Reason.TRANSFER_STALLED} if known else set())
