"""The condensed catalogue says what NVIDIA's says, and accuses where its immediate action is about hardware."""

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.schemas.causes import CAUSES
from tocsin.schemas.formats._nvlink5_table import DECODE
from tocsin.schemas.formats.nvlink_errors import NvlinkInfo, decode_nvlink5
from tocsin.schemas.formats.xid import meaning_of_sxid, meaning_of_xid, nvlink_of_payload

HARDWARE = {"RESET_GPU", "RESTART_BM", "RESTART_VM", "CHECK_MECHANICALS"}
NEVER = {"RESTART_APP", "IGNORE", "WORKFLOW_XID_45", "UPDATE_SWFW", "CHECK_UVM", "CONTACT_SUPPORT", ""}
BUCKET, INVESTIGATE = "Resolution Bucket  (Immediate Action)", "Resolution Bucket  (Investigatory Action)"


def catalogue(folder: Path) -> list[dict[str, str]]:
    with (folder / "xid" / "xid_catalog__Xids.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_code_of_the_catalogue_has_its_bucket(shared_data: Path) -> None:
    rows = catalogue(shared_data)
    assert len(rows) == 172
    for row in rows:
        found = meaning_of_xid(int(row["Code"]))
        wanted = row[BUCKET].strip()
        if wanted == "XID_154":  # follows the action that it carries
            continue
        assert found.action_bucket == (wanted or "UNKNOWN"), row["Code"]
        if row["Description"].strip() != "Unused":
            assert found.name == row["Mnemonic"].split(" / ")[0].strip()


def test_the_bucket_decides_who_accuses(shared_data: Path) -> None:
    for row in catalogue(shared_data):
        code, bucket = int(row["Code"]), row[BUCKET].strip()
        found = meaning_of_xid(code)
        if bucket in HARDWARE and code != 155:  # 155: link-down events that software asked for
            assert found.accuses, code
        if bucket in NEVER and code != 94:  # 94: contained, but it is this GPU's memory
            assert not found.accuses, code
        if found.accuses:
            assert CAUSES[found.cause].blames == "machine"
        assert found.cause == "" or found.cause in CAUSES


@pytest.mark.parametrize(("column", "name"), [("A100", "a100"), ("H100", "hopper"), ("GB200", "gb200")])
def test_a_code_of_another_architecture_accuses_nobody(shared_data: Path, column: str, name: str) -> None:
    for row in catalogue(shared_data):
        found = meaning_of_xid(int(row["Code"]), architecture=name)
        if row[f"Applies to {column}"].strip() != "YES":
            assert not found.accuses, row["Code"]
        elif row[BUCKET].strip() == "RESET_GPU" and row["Code"] != "155":
            assert found.accuses, row["Code"]


def test_every_row_of_the_nvlink5_sheet_decodes_in_both_forms(shared_data: Path) -> None:
    with (shared_data / "xid" / "xid_catalog__Xid_144-150_Decode.csv").open(encoding="utf-8") as file:
        rows = list(csv.reader(file))[1:]
    assert len(rows) == 95
    for row in rows:
        status = 0 if not row[4].strip() or "/" in row[4] else int(row[4], 16)
        for mask in (row[2], row[3]):
            found = decode_nvlink5(int(row[0]), (int(mask.replace("-", "0"), 2), status))
            assert found is not None
            assert found.action_bucket == row[5], row[:5]
            assert found.is_fatal == (not row[10].startswith("Non-fatal")), row[:5]
        for mask in (row[6], row[7]):  # "Action 2", where a bit promotes the error
            if mask.strip():
                promoted = decode_nvlink5(int(row[0]), (int(mask.replace("-", "0"), 2), status))
                assert promoted is not None
                assert (promoted.action_bucket, promoted.accuses) == ("RESET_GPU", True)


def test_no_unit_is_mistaken_for_another_of_the_other_driver() -> None:
    units = {(xid, unit, old, new) for xid, unit, old, new, *_ in DECODE}
    for xid, unit, old, _new in units:
        for other_xid, other, _old, new in units:
            if xid == other_xid and unit != other and xid != 150:  # 150: both rows end in a reset
                assert old & 0x7F != new, (unit, other)


@pytest.mark.parametrize(
    ("code", "cause", "fatal", "accuses"),
    [
        (79, "gpu_card_drop", True, True),
        (48, "ecc_error", True, True),
        (63, "ecc_error", False, False),
        (64, "ecc_error", True, True),
        (92, "ecc_error", False, False),
        (94, "ecc_error", False, True),
        (95, "ecc_error", True, True),
        (74, "nvlink_error", True, True),
        (119, "gpu_execution_error", True, True),
        (54, "power_cap", False, True),
        (13, "cuda_execution_error", False, False),
        (31, "cuda_execution_error", False, False),
        (43, "cuda_execution_error", False, False),
        (45, "", False, False),
        (149, "nvlink_error", False, False),  # without registers nothing says that it was a fatal one
        (999, "", False, False),
        (-1, "", False, False),
        (171, "ecc_error", False, False),  # blank in the catalogue: XID 48 beside it accuses
    ],
)
def test_known_codes(code: int, cause: str, fatal: bool, accuses: bool) -> None:
    found = meaning_of_xid(code)
    assert (found.cause, found.is_fatal, found.accuses) == (cause, fatal, accuses)


def test_h100_and_blackwell_differ_in_nvlink() -> None:
    assert meaning_of_xid(74, architecture="hopper").accuses
    assert not meaning_of_xid(74, architecture="blackwell").accuses
    assert meaning_of_xid(136, architecture="h100").accuses
    assert not meaning_of_xid(136, architecture="gb200").accuses
    fatal = NvlinkInfo((0x00000004, 0x40))
    assert meaning_of_xid(145, nvlink=fatal, architecture="b200").accuses
    assert not meaning_of_xid(145, nvlink=fatal, architecture="h100").accuses


def test_a_link_that_the_peer_took_down_does_not_accuse_this_machine() -> None:
    found = meaning_of_xid(149, nvlink=NvlinkInfo((0x025525C6, 0), "fatal"))
    assert found.is_fatal
    assert not found.accuses
    assert "PEER" in found.meaning


def test_74_follows_its_registers() -> None:
    repeated_only = NvlinkInfo((0, 0, 0x10000, 0, 0, 0, 0), "fatal")
    assert not meaning_of_xid(74, nvlink=repeated_only).accuses
    assert meaning_of_xid(74, nvlink=NvlinkInfo((0x20,))).accuses
    assert not meaning_of_xid(74, nvlink=NvlinkInfo((0x1,))).accuses


@pytest.mark.parametrize(("action", "accuses"), [(-1, False), (0, False), (1, True), (2, True), (4, True), (99, False)])
def test_154_follows_the_driver(action: int, accuses: bool) -> None:
    assert meaning_of_xid(154, recovery_action=action).accuses is accuses


def test_an_sxid_accuses_where_its_line_says_fatal() -> None:
    assert meaning_of_sxid(24007, severity="Fatal").accuses
    assert not meaning_of_sxid(20009, severity="Non-fatal").accuses
    assert not meaning_of_sxid(26006).accuses


@given(st.integers(), st.lists(st.integers(), max_size=9), st.text(max_size=9), st.text(max_size=9), st.integers())
def test_nothing_makes_it_raise(code: int, registers: list[int], severity: str, arch: str, action: int) -> None:
    info = nvlink_of_payload({"registers": registers, "severity": severity})
    found = meaning_of_xid(code, nvlink=info, architecture=arch, recovery_action=action)
    assert found.code == code
    assert not (found.accuses and found.name == "UNKNOWN")
    meaning_of_sxid(code, severity=severity)
