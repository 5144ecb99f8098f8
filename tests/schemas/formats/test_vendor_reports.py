"""Reports of nvidia-smi and dcgmi: every known fault is a sentence, and nothing else is one."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.schemas.errors import DecodeError
from tocsin.schemas.formats import dcgm_diag, nvidia_smi

REPORT = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log><gpu id="00000000:19:00.0"><uuid>GPU-1</uuid>
<ecc_errors><volatile><dram_uncorrectable>{dram}</dram_uncorrectable></volatile></ecc_errors>
<remapped_rows><remapped_row_pending>{pending}</remapped_row_pending>
<remapped_row_failure>{failure}</remapped_row_failure></remapped_rows>
<gpu_recovery_action>{action}</gpu_recovery_action></gpu></nvidia_smi_log>"""
SOUND = {"dram": "0", "pending": "No", "failure": "No", "action": "None"}


def test_a_sound_gpu_has_no_faults() -> None:
    assert nvidia_smi.faults_in(REPORT.format(**SOUND).encode()) == (1, [])


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"dram": "2"}, "GPU-1: 2 uncorrectable ECC errors in memory"),
        ({"pending": "Yes"}, "GPU-1: a memory row waits for a reset to be remapped"),
        ({"failure": "Yes"}, "GPU-1: a memory row could not be remapped"),
        ({"action": "Reboot"}, "GPU-1: the driver asks for Reboot"),
    ],
)
def test_each_fault_is_a_sentence(changed: dict[str, str], sentence: str) -> None:
    assert nvidia_smi.faults_in(REPORT.format(**SOUND | changed).encode()) == (1, [sentence])


def test_a_real_report_of_a_sound_h100_has_no_faults_and_each_place_that_is_read() -> None:
    text = (Path(__file__).parent / "reports/nvidia_smi_h100.xml").read_bytes()
    assert nvidia_smi.faults_in(text) == (1, [])

    for good, bad, sentence in (
        (b"<remapped_row_failure>No<", b"<remapped_row_failure>Yes<", "a memory row could not be remapped"),
        (b"<dram_uncorrectable>0<", b"<dram_uncorrectable>7<", "7 uncorrectable ECC errors in memory"),
        (b"<sram_threshold_exceeded>No<", b"<sram_threshold_exceeded>Yes<", "SRAM errors exceed the threshold"),
        (b"<gpu_recovery_action>None<", b"<gpu_recovery_action>GPU Reset<", "the driver asks for GPU Reset"),
    ):
        assert good in text
        assert sentence in nvidia_smi.faults_in(text.replace(good, bad, 1))[1][0]


def test_what_a_card_lacks_is_no_fault() -> None:
    text = REPORT.format(dram="N/A", pending="N/A", failure="[N/A]", action="N/A")
    assert nvidia_smi.faults_in(text.encode()) == (1, [])


@settings(max_examples=30)
@given(
    st.binary(max_size=60) | st.sampled_from([b"<a/>", b"Failed to initialize NVML", b"x" * (nvidia_smi.MAX_BYTES + 1)])
)
def test_other_text_of_nvidia_smi_is_refused(text: bytes) -> None:
    with pytest.raises(DecodeError, match="nvidia-smi"):
        nvidia_smi.faults_in(text)


def dcgm_report(status: str, warnings: object = None) -> str:
    result = {"gpu_ids": "3", "status": status, **({"warnings": warnings} if warnings else {})}
    sound = {"name": "Software", "results": [{"gpu_ids": "0", "status": "PASS"}, {"gpu_ids": "1", "status": "SKIP"}]}
    tests = [sound, {"name": "PCIe", "results": [result]}]
    return json.dumps({"DCGM Diagnostic": {"test_categories": [{"category": "Integration", "tests": tests}]}})


def test_dcgm_names_the_test_and_the_gpu_that_failed() -> None:
    assert dcgm_diag.failures_in(dcgm_report("PASS")) == (3, [])
    assert dcgm_diag.failures_in(dcgm_report("FAIL", "low bandwidth")) == (3, ["PCIe (GPU 3): low bandwidth"])
    many = [{"error_id": 1, "warning": "one"}, {"error_id": 2, "warning": "two"}]
    assert dcgm_diag.failures_in("Note\n" + dcgm_report("Fail", many)) == (3, ["PCIe (GPU 3): one; two"])


@settings(max_examples=30)
@given(st.text(max_size=40) | st.sampled_from(["{}", "[]", '{"a": {"status": 3}}', "{" * 100_000]))
def test_other_text_of_dcgmi_is_refused(text: str) -> None:
    with pytest.raises(DecodeError, match="dcgmi"):
        dcgm_diag.failures_in(text)
