"""An alarm stays with the detector that raised it, whatever later updates say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clickhouse_fixtures import opened_store
from tests.pipeline.stores.samples import ONSET, SECOND, verdict
from tocsin.pipeline.stores.opening import VerdictOpening, opening_of, openings_of
from tocsin.schemas.verdicts import Evidence, Verdict, VerdictState

PEERS = Evidence("peers", "gpu_power_watts", 2.0, ONSET, ONSET, "it draws less", model_version="v7")
HANG = Evidence("hang", "", 3.0, ONSET, ONSET, "its peers wait")
HUMAN = Evidence("human", "closed", 0.0, ONSET, ONSET, "closed by ann")


def lines(*evidence: tuple[Evidence, ...]) -> list[Verdict]:
    """Updates of one verdict, a minute apart, each with its evidence."""
    states = [VerdictState.OPEN, VerdictState.CONFIRMED, VerdictState.RESOLVED]
    return [
        verdict("v", update, state=states[update], detected_ns=ONSET + update * 60 * SECOND, evidence=one)
        for update, one in enumerate(evidence)
    ]


@pytest.mark.parametrize("is_restarted", [False, True], ids=["one_process", "restarted_between"])
def test_an_alarm_stays_with_the_detector_that_raised_it(tmp_path: Path, *, is_restarted: bool) -> None:
    told = lines((PEERS,), (HANG, PEERS), (HUMAN, HANG, PEERS))
    for batch in [[one] for one in told] if is_restarted else [told]:
        with opened_store("chdb", tmp_path) as store:
            for line in batch:
                store.write_verdicts([line])
            found = store.query("SELECT detector, model_version FROM tocsin.incidents FINAL", "JSONEachRow")
        assert [json.loads(row) for row in found.splitlines()] == [{"detector": "peers", "model_version": "v7"}]


def test_the_first_update_with_evidence_counts_in_whatever_order_they_come() -> None:
    told = lines((), (PEERS,), (HUMAN, PEERS))
    assert openings_of(reversed(told)) == {"v": VerdictOpening(ONSET, "peers", "v7")}
    assert opening_of(told[0]) == VerdictOpening(ONSET)


def test_what_is_known_of_a_verdict_goes_before_what_a_later_update_tells() -> None:
    assert VerdictOpening(5, "peers", "v7").joined(VerdictOpening(9, "hang")) == VerdictOpening(5, "peers", "v7")
    assert VerdictOpening(9).joined(VerdictOpening(5, "hang")) == VerdictOpening(5, "hang")
