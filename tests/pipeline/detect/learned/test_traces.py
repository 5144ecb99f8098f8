"""Entropy and the Bi-LSTM as operators of a running job: what they say, whose model says it, and what is kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache, partial

import numpy as np
import pytest

from tests.pipeline.detect.conformance import FAULTY_HOST
from tests.pipeline.detect.traces.test_detector import FAULT_AT, JOB, job_slices, nothing, slow_forward
from tocsin.models.bilstm_ocnn import ARRAYS, OcnnModel
from tocsin.models.documents import Model
from tocsin.models.entropy import EntropyConfig
from tocsin.models.op_features import COMMUNICATION, PHASES, Vocabulary, feature_count, phase_vocabulary
from tocsin.pipeline.detect.learned import traces
from tocsin.pipeline.detect.learned.operator import LearnedOperator
from tocsin.pipeline.detect.learned.traces import StreamingBilstm, StreamingEntropy
from tocsin.pipeline.detect.traces.detector import TraceDetector, TracesConfig
from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.model_announcement import BUILTIN_VERSION
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, Slice, StepBatch
from tocsin.schemas.verdicts import Anomaly

CONFIG = TracesConfig()
SECONDS = 240


def network(words: Sequence[str] = PHASES) -> OcnnModel:
    """A network that adds up how far a rank's last window is from its peers: nobody trained it."""
    vocabulary = Vocabulary(tuple(words))
    count = feature_count(vocabulary.class_count)
    lstm = {"input": (4, count), "state": (4, 1), "bias": (4,)}
    weights = {f"{way}_{part}": np.zeros(shape) for way in ("forward", "backward") for part, shape in lstm.items()}
    outside = np.array([2.0] * 4 + [0.0] + [2.0] * 4)
    for place, word in enumerate(vocabulary.classes):
        if word != COMMUNICATION:  # waiting times are far apart in healthy jobs, too
            weights["forward_input"][2, 9 * place : 9 * place + 9] = outside  # the cell: what is not as the median
    weights["forward_bias"][:] = [9.0, -9.0, 0.0, 9.0]  # takes the newest window in, keeps none, shows all
    weights |= {"V": np.array([[-4.0, 0.0]]), "w": np.array([2.0]), "mean": np.zeros(count)}
    weights["deviation"] = np.ones(count)
    assert set(weights) == set(ARRAYS)
    singles = {name: values.astype(np.float32) for name, values in weights.items()}
    return OcnnModel(vocabulary, 2, singles, 0.6, 1.0, 1.0, 0.05)


def model(words: Sequence[str] = PHASES, version: str = "n1") -> Model:
    return Model(version, None, {"phases": network(words)}, f"hash of {version}")


def entropy_of(max_sigmas: float) -> Model:
    return Model("e1", None, dataclasses.replace(EntropyConfig(), max_sigmas=max_sigmas), f"hash of {max_sigmas}")


@cache
def slices(faulty: bool = True, hosts: int = 6) -> tuple[Slice, ...]:
    return tuple(job_slices(hosts, partial(slow_forward, strength=1.0) if faulty else nothing, SECONDS))


class Job:
    """One operator, its job's graph, and what stands."""

    def __init__(self, make: type[StreamingEntropy | StreamingBilstm], given: Model | None = None) -> None:
        self.make, self.given = make, given
        self.graph = JobGraph()
        self.operator = make(CONFIG, self.graph)
        self.standing: Sequence[Anomaly] = ()
        self.said: list[Anomaly] = []
        if given is not None:
            self.operator.on_model(given)

    def play(self, told: Sequence[Slice]) -> Job:
        for data in told:
            self.graph.take(data.records)
            found = self.operator.on_slice(data)
            if found is not None:
                self.standing = found
                self.said += found
        return self

    def restarted(self) -> Job:
        """The operator from its snapshot, given its model again as an engine does."""
        parts = self.operator.snapshot()
        operator: LearnedOperator = self.make(CONFIG, self.graph)
        assert all(name.startswith(self.operator.name) for name in parts)
        operator.restore(parts)
        if self.given is not None:
            operator.on_model(self.given)
        assert isinstance(operator, self.make)
        self.operator = operator
        return self


KINDS = [(StreamingEntropy, None), (StreamingEntropy, entropy_of(5.0)), (StreamingBilstm, model())]


@pytest.mark.parametrize(("make", "given"), KINDS)
def test_it_says_what_a_backtest_says_and_who_says_it(
    make: type[StreamingEntropy | StreamingBilstm], given: Model | None
) -> None:
    job = Job(make, given).play(slices())
    graph = JobGraph()
    config = dataclasses.replace(CONFIG, detectors=(make.name,))
    if given is not None and isinstance(given.trained, EntropyConfig):
        config = dataclasses.replace(config, entropy=given.trained)
    networks = given.trained if given is not None and isinstance(given.trained, dict) else None
    detector = TraceDetector(config, graph, networks)
    offline: list[Anomaly] = []
    for data in slices():
        graph.take(data.records)
        offline += detector.on_slice(data)

    version = "" if given is None else given.version
    assert offline
    assert job.said == [dataclasses.replace(one, model_version=version) for one in offline]
    assert {one.component.name for one in job.said} == {FAULTY_HOST}
    assert {one.detail["classes"][0][0] for one in job.said} <= {"forward", "communication"}
    assert all(one.detail["text"].startswith("rank 3: ") for one in job.said)
    assert not Job(make, given).play(slices(faulty=False)).said


@pytest.mark.parametrize(("make", "given"), KINDS)
def test_a_restart_with_the_same_model_changes_nothing(
    make: type[StreamingEntropy | StreamingBilstm], given: Model | None
) -> None:
    whole, cut = Job(make, given).play(slices()), Job(make, given)
    for begin in range(0, SECONDS, 35):
        cut.play(slices()[begin : begin + 35]).restarted()

    assert cut.said == whole.said
    assert cut.operator.abstained == whole.operator.abstained
    assert cut.operator.card() == whole.operator.card()


def test_another_network_begins_anew_and_another_line_does_not() -> None:
    before, after = slices()[:FAULT_AT], slices()[FAULT_AT : FAULT_AT + 65]
    bilstm, entropy = Job(StreamingBilstm, model()).play(before), Job(StreamingEntropy).play(before)
    bilstm.operator.on_model(model(version="n2"))
    entropy.operator.on_model(entropy_of(4.0))

    assert not bilstm.play(after).said  # a minute of past scores of its own first: the fault is part of it
    assert {one.model_version for one in entropy.play(after).said} == {"e1"}
    entropy.operator.on_model(None)
    card = entropy.operator.card()
    assert (card["version"], card["line_sigmas"]) == (BUILTIN_VERSION, EntropyConfig().max_sigmas)


def test_without_networks_it_abstains_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "_shipped", lambda: ({}, ""))
    job = Job(StreamingBilstm).play(slices())

    assert not job.said
    assert set(job.operator.abstained) == {Reason.NO_MODEL}
    assert job.operator.card() == {"version": "", "content_hash": "", "families": {}}


def test_without_an_announcement_those_that_ship_judge_and_after_a_withdrawal_again() -> None:
    job = Job(StreamingBilstm)
    shipped = job.operator.card()
    job.operator.on_model(model())
    announced = job.operator.card()
    job.operator.on_model(None)

    assert shipped["version"] == BUILTIN_VERSION
    assert "phases" in shipped["families"]
    assert announced["version"] != BUILTIN_VERSION
    assert job.operator.card() == shipped


def test_a_job_that_does_not_measure_what_the_network_was_trained_on_is_an_abstention_by_name() -> None:
    def without_forward(data: Slice) -> Slice:
        records = (
            dataclasses.replace(one, rows=tuple(row._replace(forward_seconds=None) for row in one.rows))
            if isinstance(one, StepBatch)
            else one
            for one in data.records
        )
        return dataclasses.replace(data, records=tuple(records))

    told = [without_forward(data) for data in slices()]
    full, fewer = Job(StreamingBilstm, model()), Job(StreamingBilstm, model(phase_vocabulary({"communication"}).words))

    assert not full.play(told).said
    assert full.operator.abstained[Reason.SOURCES_MISSING] > 10
    assert Reason.NO_MODEL not in full.operator.abstained
    assert {one.component.name for one in fewer.play(told).said} == {FAULTY_HOST}


def empty(count: int) -> list[Slice]:
    """Seconds in which the job sends neither steps nor collectives."""
    return [Slice(JOB, n * NS_PER_SECOND, (n + 1) * NS_PER_SECOND, ()) for n in range(count)]


@pytest.mark.parametrize(("make", "given"), KINDS)
def test_a_job_that_sends_nothing_to_judge_is_an_abstention_by_name_once_a_window(
    make: type[StreamingEntropy | StreamingBilstm], given: Model | None
) -> None:
    whole, cut = Job(make, given).play(empty(60)), Job(make, given)
    for begin in range(0, 60, 7):
        cut.play(empty(60)[begin : begin + 7]).restarted()
    heard = Job(make, given).play(slices())

    assert whole.operator.abstained == {Reason.NO_HOOK: 6}
    assert cut.operator.abstained == whole.operator.abstained
    assert Reason.NO_HOOK not in heard.operator.abstained


@pytest.mark.parametrize(("make", "given"), KINDS)
def test_a_rank_alone_in_its_role_is_not_judged(
    make: type[StreamingEntropy | StreamingBilstm], given: Model | None
) -> None:
    job = Job(make, given).play(slices(hosts=2))

    assert not job.said
    assert job.operator.abstained[Reason.TOO_FEW_PEERS] > 0


def test_what_stands_is_withdrawn_when_no_window_comes_any_more() -> None:
    job = Job(StreamingEntropy).play(slices()[: FAULT_AT + 60])
    assert job.standing
    end_ns = slices()[FAULT_AT + 59].end_ns
    silent = [
        Slice(JOB, end_ns + second * NS_PER_SECOND, end_ns + (second + 1) * NS_PER_SECOND, ()) for second in range(130)
    ]

    assert job.play(silent[:100]).restarted().standing
    assert not job.play(silent[100:]).standing


@pytest.mark.parametrize(("make", "given"), [(StreamingEntropy, model()), (StreamingBilstm, entropy_of(4.0))])
def test_a_model_of_another_detector_is_refused(make: type[StreamingEntropy | StreamingBilstm], given: Model) -> None:
    with pytest.raises(ConfigError, match="a model of"):
        Job(make).operator.on_model(given)
