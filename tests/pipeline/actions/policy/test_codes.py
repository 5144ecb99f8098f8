"""Codes of NVIDIA's tables in evidence: what each asks for, and whether a verdict rests on it."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.pipeline.actions.policy.samples import seen, verdict
from tocsin.pipeline.actions.policy.codes import CODE_ACTIONS, HARDWARE_RANK, code_of, codes_in, is_words_only, xid_code
from tocsin.schemas.formats.dcgm_errors import DCGM_ACTIONS
from tocsin.schemas.verdicts import Evidence


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("n1: XID 13: Graphics Engine Exception (RESTART_APP)", [("XID 13", "RESTART_APP")]),
        ("NVRM: Xid (PCI:0000:c1:00): 79, pid=1234, GPU has fallen", [("XID 79", "RESTART_BM")]),
        ("xid_31 MMU fault", [("XID 31", "RESTART_APP")]),
        ("xid=999", [("XID 999", "UNKNOWN")]),
        ("XID 13 then XID 95", [("XID 13", "RESTART_APP"), ("XID 95", "RESET_GPU")]),
        ("XID 149: link (RESET_GPU)", [("XID 149", "RESET_GPU")]),
        ("XID 149: link (IGNORE)", [("XID 149", "IGNORE")]),
        ("XID 149: NETIR_LINK_EVT Fatal XC0", [("XID 149", "RESET_GPU")]),
        ("XID 149: NETIR_LINK_EVT Nonfatal XC0", [("XID 149", "UNKNOWN")]),
        ("XID 13: it lies (RESET_GPU)", [("XID 13", "RESTART_APP")]),
        ("SXid 28006, Non-fatal, Link 46", [("SXID 28006", "UNKNOWN")]),
        ("SXid 24007, Fatal, Link 46", [("SXID 24007", "RESET_GPU")]),
        ("DCGM_FR_NVLINK_DOWN on GPU 3", [("DCGM_FR_NVLINK_DOWN", "RESTART_VM")]),
        ("DCGM_FR_OF_TOMORROW", [("DCGM_FR_OF_TOMORROW", "UNKNOWN")]),
        ("taxid 13, xid", []),
    ],
)
def test_the_codes_of_a_text(text: str, wanted: list[tuple[str, str]]) -> None:
    assert [(one.name, one.action) for one in codes_in(text)] == wanted


def test_every_action_of_the_tables_is_known(shared_data: Path) -> None:
    with (shared_data / "xid" / "xid_catalog__Xids.csv").open(newline="") as file:
        rows = [row for row in csv.reader(file) if len(row) > 8 and row[0] == "XID"]

    assert len(rows) > 150
    for row in rows:
        action = xid_code(int(row[1])).action
        assert action in CODE_ACTIONS
        if row[8] in {"RESTART_APP", "IGNORE", "CONTACT_SUPPORT", ""}:
            assert CODE_ACTIONS[action] < HARDWARE_RANK, row[1]
        if row[8] in {"RESET_GPU", "RESTART_BM", "RESTART_VM"}:
            assert action == row[8]
    assert set(DCGM_ACTIONS.values()) <= CODE_ACTIONS.keys()


@pytest.mark.parametrize("code", range(200))
def test_only_codes_of_the_hardware_may_take_a_machine(code: int) -> None:
    hardware = {46, 48, 54, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 151, 155, 156, 158}

    assert (CODE_ACTIONS[xid_code(code).action] >= HARDWARE_RANK) is (code in hardware)


def test_other_evidence_of_the_hardware_stands_beside_a_code() -> None:
    code = seen("xid", "XID 13")

    assert code_of(verdict(evidence=(code, seen("gpu_lost", "n1: fell off the bus")))) is None
    assert code_of(verdict(evidence=(code, seen("steps", detector="waits")))) is not None
    assert code_of(verdict(evidence=(seen("steps", detector="waits"),))) is None


def test_a_code_that_a_program_wrote_is_words() -> None:
    one = verdict(evidence=(Evidence("stop", "exit", 2.0, 0, 0, "rank 3: Xid 79"),), witnesses=())

    assert code_of(one) is None
    assert is_words_only(one)


def test_a_verdict_without_evidence_is_not_one_of_words() -> None:
    assert not is_words_only(verdict(evidence=()))
