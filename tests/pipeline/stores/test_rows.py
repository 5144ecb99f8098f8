"""Rows and sentences: what a human reads of a verdict. No database."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.pipeline.stores.samples import WAITING, verdict
from tocsin.pipeline.stores import rows
from tocsin.pipeline.stores.opening import opening_of
from tocsin.schemas.verdicts import ActionKind, Component, ComponentKind, Suspect, VerdictState, Witness, WitnessKind


def hosts(*names: str) -> tuple[Suspect, ...]:
    return tuple(Suspect(Component(ComponentKind.HOST, name)) for name in names)


def saw(own: str, *others: str) -> tuple[Witness, ...]:
    reported = (Witness(own, WitnessKind.HARDWARE_EVENT),)
    return (*reported, *(Witness(other, WitnessKind.PEERS_WAIT) for other in others))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {
                "suspects": hosts("n1", "n2"),
                "common": Component(ComponentKind.LEAF, "leaf3"),
                "cause": "aoc_error",
                "evidence": (),
            },
            "hosts n1, n2 behind leaf leaf3: aoc error since 23:59:50 UTC",
        ),
        (
            {"suspects": (), "cause": "shared_service", "evidence": ()},
            "nobody at fault: shared service since 23:59:50 UTC",
        ),
        (
            {"suspects": (Suspect(Component(ComponentKind.RANK, "3")),), "cause": "unknown", "evidence": ()},
            "rank 3: hangs, cause unknown since 23:59:50 UTC",
        ),
        (
            {"evidence": (replace(WAITING, text="silent since 03:00."),)},
            "host n3 (rank 3): process frozen since 23:59:50 UTC; silent since 03:00",
        ),
        (
            {"suspects": hosts(*(f"n{i}" for i in range(10))), "cause": "unknown", "evidence": ()},
            "hosts n0, n1, n2, n3, n4, n5, n6, n7 and 2 more: hangs, cause unknown since 23:59:50 UTC",
        ),
        (
            {"action": ActionKind.EVICT, "cause": "ecc_error", "evidence": (), "witnesses": saw("n3", "n1", "n2")},
            "host n3 (rank 3): ecc error since 23:59:50 UTC (seen by its own driver, n1, n2)",
        ),
        (
            {"action": ActionKind.DRAIN, "evidence": (), "witnesses": saw("n9", *(f"n1{i}" for i in range(5)))[1:]},
            "host n3 (rank 3): process frozen since 23:59:50 UTC (seen by n10, n11, n12 and 2 more)",
        ),
        (
            {"evidence": (), "costs_ratio": 0.0742},
            "host n3 (rank 3): process frozen since 23:59:50 UTC; costs the job 7.4 % now",
        ),
        (
            {"evidence": (), "costs_ratio": 0.0742, "state": VerdictState.RESOLVED, "reason": "recovered"},
            "host n3 (rank 3): process frozen since 23:59:50 UTC; cost the job 7.4 % (resolved: recovered)",
        ),
        (
            {"action": ActionKind.RESTART, "evidence": (), "witnesses": saw("n3", "n1")},
            "host n3 (rank 3): process frozen since 23:59:50 UTC",
        ),
    ],
)
def test_the_summary_reads_like_a_sentence(changes: dict[str, Any], sentence: str) -> None:
    assert rows.summary_of(verdict("words", **changes)) == sentence


def test_evidence_without_text_is_told_from_its_numbers() -> None:
    bare = replace(WAITING, text="", metric="cpu_util_ratio", suspect_value=0.1, peer_value=0.9)
    assert rows.evidence_text(bare) == "cpu_util_ratio at 3.5 times the alarm line of hang: 0.1, its peers 0.9"


def test_an_update_says_what_changed_and_who_saw_it() -> None:
    reported = verdict("a", 1, witnesses=(Witness("n1", WitnessKind.PEERS_WAIT),))
    row = rows.update_row(reported)
    assert (row["update_number"], row["state"], row["reason"]) == (1, "open", "process_stopped_peers_wait")
    assert (row["machine"], row["action"], row["witnesses"]) == ("n3", "restart", ["n1:peers_wait"])
    assert row["evidence"] == "7 peers wait in all_reduce #41 of group dp0"
    assert row["evidence_ids"] == [
        json.loads(str(rows.incident_row(reported, opening_of(reported))["evidence_json"]))[0]["id"]
    ]
