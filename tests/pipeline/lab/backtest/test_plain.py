"""The plain detector judges whole recordings: the suite's checks that have a meaning for it (docs/conformance.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.pipeline.lab.backtest.kit import manifest, metric_table
from tocsin.pipeline.lab.backtest.plain_runner import ALARM_LINE, PlainRunner
from tocsin.pipeline.lab.simulation.baseline import BaselineConfig, streak_scores
from tocsin.pipeline.recording.tables import Recording
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND

SECONDS, ONSET_SECONDS, FAULTY = 600, 300, 3
METRICS = ("cpu_util_ratio", "mem_used_ratio")
Values = NDArray[np.float64]


def values(hosts: int = 8, *, added: float = 0.4) -> Values:
    """(metrics, seconds, hosts): around .5; of the faulty machine the CPU is so much higher from the onset on."""
    made = 0.5 + 0.01 * np.random.default_rng(3).standard_normal((len(METRICS), SECONDS, hosts))
    made[0, ONSET_SECONDS:, min(FAULTY, hosts - 1)] += added
    return made


def names(hosts: int) -> list[str]:
    return [f"n{number:02d}" for number in range(hosts)]


def recording(given: Values, hosts: list[str] | None = None) -> Recording:
    hosts = hosts or names(given.shape[2])
    table = metric_table(hosts, dict(zip(METRICS, given, strict=True)))
    return Recording(manifest(given.shape[1]), {"host_metrics": table})


def said(given: Recording) -> dict[str, int]:
    """Whom it names, and when."""
    return {line["id"]: line["detected_ns"] for line in PlainRunner().judge(given).lines}


def score(given: Recording) -> float:
    found, hosts = streak_scores(given, BaselineConfig(z_threshold=ALARM_LINE))
    return float(found[:, hosts.index("n03")].max())


@pytest.mark.parametrize("hosts", [4, 16, 256])
def test_a_lone_gross_fault_is_found_within_its_continuity_and_nobody_else(hosts: int) -> None:
    reported = said(recording(values(hosts)))

    assert reported.keys() == {"n03"}
    assert 20 <= (reported["n03"] - manifest(SECONDS).start_ns) / NS_PER_SECOND - ONSET_SECONDS <= 40


def test_what_comes_later_changes_nothing_that_was_said() -> None:
    whole, begin = values(), values()[:, :400]

    assert said(recording(whole)) == said(recording(begin)) != {}


def test_machines_that_are_permuted_permute_the_answer_and_nothing_else() -> None:
    other = recording(values(), names(8)[::-1])

    assert said(other) == {"n04": said(recording(values()))["n03"]}


def test_the_same_recording_gives_the_same_answer() -> None:
    assert PlainRunner().judge(recording(values())) == PlainRunner().judge(recording(values()))


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_units_do_not_matter(factor: float) -> None:
    """``floor_ratio`` is a share of the largest value."""
    plain, scaled = (streak_scores(recording(values() * by), BaselineConfig())[0] for by in (1.0, factor))

    assert scaled == pytest.approx(plain, rel=1e-3)


def test_a_stronger_fault_scores_higher() -> None:
    scores = [score(recording(values(added=added))) for added in (0.0, 0.1, 0.2, 0.4)]

    assert scores == sorted(scores)
    assert scores[0] < ALARM_LINE < scores[-1]


def _no_numbers(given: Values) -> None:
    given[:, :, 5] = np.nan


def _numbers_that_stop(given: Values) -> None:
    given[:, ONSET_SECONDS - 5 :, 5] = np.nan


def _infinite(given: Values) -> None:
    given[:, 290:310, 5] = np.inf


def _every_other_ten_seconds(given: Values) -> None:
    given[:, np.arange(SECONDS) // 10 % 2 == 1, 5] = np.nan


def _some_numbers(given: Values) -> None:
    given[0, :, 5] = np.nan


@pytest.mark.parametrize("spoil", [_no_numbers, _numbers_that_stop, _infinite, _every_other_ten_seconds, _some_numbers])
def test_a_healthy_machine_that_lacks_numbers_is_not_named_and_hides_nobody(spoil: Callable[[Values], None]) -> None:
    well, ill = values(added=0.0), values()
    spoil(well)
    spoil(ill)

    assert said(recording(well)) == {}
    assert said(recording(ill)).keys() == {"n03"}


@pytest.mark.parametrize(
    ("heard_of", "reason"), [(0, Reason.METRIC_MISSING), (1, Reason.TOO_FEW_PEERS), (2, Reason.TOO_FEW_PEERS)]
)
def test_of_eight_hosts_one_or_two_tell_numbers(heard_of: int, reason: Reason) -> None:
    given = values()
    given[:, :, [host for host in range(8) if host not in (3, 4)[:heard_of]]] = np.nan
    opinion = PlainRunner().judge(recording(given))

    assert (opinion.reason, opinion.lines) == (reason, ())


def test_infinite_numbers_only_are_no_numbers() -> None:
    opinion = PlainRunner().judge(recording(np.full_like(values(), np.inf)))

    assert (opinion.reason, opinion.lines) == (Reason.METRIC_MISSING, ())


@pytest.mark.parametrize("constant", ["alike", "always different"])
def test_constant_machines_say_nothing(constant: str) -> None:
    given = np.full((len(METRICS), SECONDS, 8), 0.5)
    if constant == "always different":
        given += np.linspace(-0.1, 0.1, 8)

    assert said(recording(given)) == {}


def test_identical_machines_are_never_accused_whatever_they_do_together() -> None:
    given = values()
    given[:] = given[:, :, [FAULTY]]

    assert said(recording(given)) == {}


def test_a_recording_without_a_metric_table_is_not_judged() -> None:
    assert PlainRunner().judge(replace(recording(values()), tables={})).reason is Reason.METRIC_MISSING
