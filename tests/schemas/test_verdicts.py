"""The line of verdicts.jsonl is a contract: outside programs read it to the letter."""

from __future__ import annotations

import dataclasses
import json

from hypothesis import given

from tests import strategies
from tocsin.schemas.records import JobKey
from tocsin.schemas.verdicts import (
    ActionKind,
    Component,
    ComponentKind,
    Evidence,
    FaultKind,
    Suspect,
    Verdict,
    VerdictState,
    Witness,
    WitnessKind,
    evidence_ids,
    verdict_id_of,
)

JOB = JobKey("c1", "job778", 0)
HOST = Suspect(Component(ComponentKind.HOST, "n012"))
VERDICT = Verdict(
    verdict_id="0123456789abcdef",
    job=JOB,
    fault=FaultKind.FAIL_SLOW,
    cause="pcie_downgrade",
    suspects=(HOST,),
    onset_ns=0,
    detected_ns=0,
    confidence=0.97,
    action=ActionKind.EVICT,
    reason="same_host_slowest_every_window",
    evidence=(Evidence("similarity", "pfc_tx_packets_per_second", 3.1, 0, 0),),
    state=VerdictState.OPEN,
    update=0,
    expires_ns=60,
)

CONTRACT_LINE = (
    '{"id": "0123456789abcdef", "job_id": "job778", "fault": "fail_slow", "cause": "pcie_downgrade", '
    '"suspects": [{"kind": "host", "name": "n012"}], "onset_ns": 0, "detected_ns": 0, '
    '"confidence": 0.97, "action": "evict", "reason": "same_host_slowest_every_window", '
    '"evidence": [{"detector": "similarity", "metric": "pfc_tx_packets_per_second", "score": 3.1, '
    '"start_ns": 0, "end_ns": 0}], "state": "open", "update": 0}'
)
"""The example of the recording format, with an id and times of its own."""


def test_the_line_is_that_of_the_recording_format() -> None:
    assert json.dumps(VERDICT.to_line()) == CONTRACT_LINE


@given(strategies.verdicts)
def test_every_line_has_the_contracts_keys_in_order_and_is_json(verdict: Verdict) -> None:
    line = verdict.to_line()

    assert list(line)[:13] == list(json.loads(CONTRACT_LINE))
    optional = {"common": verdict.common, "witnesses": verdict.witnesses}
    told = [name for name, value in optional.items() if value]
    assert list(line)[13:] == told + ["costs_ratio"] * (verdict.costs_ratio is not None)
    assert json.loads(json.dumps(line, allow_nan=False)) == line


def test_the_words_are_those_of_the_recording_format() -> None:
    assert " ".join(FaultKind) == "fail_stop hang fail_slow silent_corruption degraded"
    assert " ".join(ActionKind) == "none notify probe restart drain evict replay rollback reset_gpu reboot"
    assert "|".join(WitnessKind) == "hardware_event|peers_wait|connection_lost|check|steps"
    assert " ".join(VerdictState) == "open confirmed cancelled expired resolved"


def test_witnesses_are_listed_and_a_missing_key_is_nobody() -> None:
    verdict = dataclasses.replace(VERDICT, witnesses=(Witness("n07", WitnessKind.PEERS_WAIT),))

    assert verdict.to_line()["witnesses"] == [{"host": "n07", "kind": "peers_wait"}]
    assert "witnesses" not in VERDICT.to_line()


def test_the_cost_of_a_slowness_is_told_in_four_digits_and_a_missing_key_is_unknown() -> None:
    assert dataclasses.replace(VERDICT, costs_ratio=0.07404).to_line()["costs_ratio"] == 0.074
    assert "costs_ratio" not in VERDICT.to_line()


def test_ranks_stand_beside_the_host_where_singled_out() -> None:
    verdict = dataclasses.replace(VERDICT, suspects=(Suspect(HOST.component, (3, 5)),))

    assert verdict.to_line()["suspects"] == [{"kind": "host", "name": "n012", "ranks": [3, 5]}]


def test_several_hosts_behind_one_leaf() -> None:
    verdict = dataclasses.replace(VERDICT, common=Component(ComponentKind.LEAF, "leaf3"))

    assert list(verdict.to_line())[-1] == "common"
    assert verdict.to_line()["common"] == {"kind": "leaf", "name": "leaf3"}


def test_the_id_is_pinned() -> None:
    assert verdict_id_of(JOB, (HOST,), FaultKind.FAIL_SLOW, 7) == "a5199099b8828ebf"


def test_the_id_hangs_on_what_opened_the_verdict_and_on_nothing_else() -> None:
    other = Suspect(Component(ComponentKind.HOST, "n013"), (3,))
    one = verdict_id_of(JOB, (HOST, other), FaultKind.HANG, 7)

    assert verdict_id_of(JOB, (other, HOST), FaultKind.HANG, 7) == one
    different = {
        verdict_id_of(JobKey("c2", "job778", 0), (HOST, other), FaultKind.HANG, 7),
        verdict_id_of(JobKey("c1", "job779", 0), (HOST, other), FaultKind.HANG, 7),
        verdict_id_of(JobKey("c1", "job778", 1), (HOST, other), FaultKind.HANG, 7),
        verdict_id_of(JOB, (HOST,), FaultKind.HANG, 7),
        verdict_id_of(JOB, (HOST, Suspect(other.component)), FaultKind.HANG, 7),
        verdict_id_of(JOB, (HOST, other), FaultKind.FAIL_STOP, 7),
        verdict_id_of(JOB, (HOST, other), FaultKind.HANG, 8),
    }
    assert len(different | {one}) == 8


def test_the_ids_of_evidence_stay_while_it_goes_on_and_differ_by_what_it_is() -> None:
    one = Evidence("steps", "own_seconds", 2.0, 5, 9, "slow")
    verdict = Verdict(
        "v",
        JobKey("c", "j"),
        FaultKind.FAIL_SLOW,
        "unknown",
        (Suspect(Component(ComponentKind.HOST, "n3")),),
        *(5, 9, 0.5, ActionKind.NONE, "r", (one, dataclasses.replace(one, metric="data_seconds"), one)),
        *(VerdictState.OPEN, 0, 10),
    )
    ids = evidence_ids(verdict)
    later = dataclasses.replace(verdict, evidence=(dataclasses.replace(one, score=9.0, end_ns=99, text="slower"),))
    assert len(set(ids)) == 3
    assert all(len(bytes.fromhex(found)) == 8 for found in ids)
    assert evidence_ids(dataclasses.replace(later, update=7, verdict_id="w")) == ids[:1]
    assert evidence_ids(dataclasses.replace(later, suspects=())) != ids[:1]
    assert all("id" not in reported for reported in verdict.to_line()["evidence"]), "the line is a contract"
