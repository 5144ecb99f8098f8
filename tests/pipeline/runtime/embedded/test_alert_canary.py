"""The canary of the alerts comes through a sound engine, and through no other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest

from tocsin.pipeline.incidents.lifecycle import Decide
from tocsin.pipeline.runtime.embedded.alert_canary import AlertCanary, CanaryReason, EngineWatch
from tocsin.pipeline.runtime.embedded.engine import EngineConfig
from tocsin.pipeline.runtime.job_pipeline import JobPipeline
from tocsin.schemas.records import NS_PER_SECOND

START_NS = 1_800_000_000 * NS_PER_SECOND


def _passes(canary: AlertCanary, seconds: range) -> list[int]:
    return [second for second in seconds if canary.on_second(START_NS + second * NS_PER_SECOND)]


def test_a_round_comes_through_again_and_again_without_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    canary = AlertCanary(EngineConfig(), 30.0)
    passed = _passes(canary, range(95))

    assert len(passed) == 3
    assert caplog.records == []
    assert {later - earlier for earlier, later in pairwise(passed)} == {30}
    assert canary.trouble is None
    assert canary.passed_ns == START_NS + passed[-1] * NS_PER_SECOND


def test_a_gap_in_the_ticks_begins_a_round_anew() -> None:
    canary = AlertCanary(EngineConfig(), 10.0)
    assert _passes(canary, range(4)) == []
    assert _passes(canary, range(1000, 1004)) == []
    assert len(_passes(canary, range(1004, 1011))) == 1
    assert canary.trouble is None


def test_an_engine_that_says_nothing_lets_no_round_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Decide, "on_findings", lambda *_args, **_fields: [])
    canary = AlertCanary(EngineConfig(), 10.0)

    assert _passes(canary, range(60)) == []
    assert canary.trouble is CanaryReason.NOT_JUDGED


def test_operators_that_raise_let_no_round_through(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: object) -> None:
        raise ValueError("no")

    monkeypatch.setattr(JobPipeline, "on_bundle", broken)
    canary = AlertCanary(EngineConfig(), 10.0)

    assert _passes(canary, range(60)) == []
    assert canary.trouble is CanaryReason.RAISED


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda counts: counts.update(records_ok=5, turns=5), None),
        (lambda counts: counts.update(), None),
        (lambda counts: counts.update(records_ok=5), CanaryReason.ENGINE_STUCK),
        (lambda counts: counts.update(records_ok=5, turns=5, operator_failed=5), CanaryReason.ENGINE_FAILS),
        (lambda counts: counts.update(records_ok=5, turns=5, operator_failed=1), None),
    ],
)
def test_the_real_engine_is_looked_at(change: Callable[[Counter[str]], None], found: CanaryReason | None) -> None:
    counts: Counter[str] = Counter()
    watch = EngineWatch(counts)
    for _ in range(3):
        change(counts)
        seen = watch.look()

    assert seen is found
