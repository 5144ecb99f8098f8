"""The NVML collector through a fake that behaves as documented: units, blanks, lost cards, events on change."""

import importlib
import inspect
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.collectors.agent.runner import checked
from tocsin.collectors.api import CollectorError, GpuPlace, NothingHere, Reading
from tocsin.collectors.sources._nvml_calls import number
from tocsin.collectors.sources.nvml import (
    OPEN_AGAIN_NS,
    NvmlCollector,
    NvmlConfig,
    nvml_library,
)
from tocsin.collectors.testing.fake_nvml import FakeNvml, NVMLError, ampere, fake_host, hopper
from tocsin.schemas.metrics import GPU_METRICS, possible_range

SECOND = 10**9
ALL_LINKS = 0xFFFF_FFFF


class Host:
    """A collector over a fake; ``look`` lets a second pass."""

    def __init__(self, fake: FakeNvml) -> None:
        self.fake = fake
        self.collector = NvmlCollector(NvmlConfig(library=fake))
        self.second = 0

    def look(self, seconds: int = 1) -> Reading:
        """Return the last reading with the events of all."""
        events: list[Any] = []
        for _ in range(seconds):
            self.second += 1
            reading = checked(self.collector.collect(self.second * SECOND))
            events += reading.events
        return Reading(reading.host, reading.gpus, tuple(events), reading.places)

    def values(self, seconds: int = 1) -> dict[str, float]:
        (values,) = self.look(seconds).gpus.values()
        return dict(values)

    def reported(self, seconds: int = 1) -> list[tuple[str, dict[str, Any]]]:
        ignored = {"uuid", "pci", "at_start"}
        events = self.look(seconds).events
        return [(e.name, {key: v for key, v in e.payload.items() if key not in ignored}) for e in events]


def one(gpu: Any = None) -> Host:
    return Host(FakeNvml([gpu or hopper(0)]))


def test_all_columns_of_a_hopper_in_base_units() -> None:
    assert one().values(2) == pytest.approx(
        {
            "gpu_util_ratio": 0.97,
            "gpu_sm_active_ratio": 0.88,
            "gpu_tensor_active_ratio": 0.45,
            "gpu_graphics_active_ratio": 0.96,
            "gpu_fp_active_ratio": 0.08,
            "gpu_dram_active_ratio": 0.38,
            "pcie_usage_ratio": 2000 * 2**20 / (2 * 16 * 3.938e9),
            "gpu_power_watts": 650.0,
            "gpu_temperature_celsius": 61.0,
            "gpu_sm_clock_hertz": 1.755e9,
            "gpu_memory_used_bytes": float(60 << 30),
            "nvlink_bytes_per_second": 1.8e5 * 2**20,
            "pcie_bytes_per_second": 2000 * 2**20,
        }
    )
    assert {metric.name for metric in GPU_METRICS} == set(one().values(2))


def test_a_healthy_host_of_eight_says_nothing_and_where_its_gpus_are() -> None:
    host = Host(fake_host(8))
    host.fake.gpus[3].pids = (4711,)
    reading = host.look(20)
    assert len(reading.gpus) == 8
    assert reading.events == ()
    assert reading.places[host.fake.gpus[3].uuid] == GpuPlace(3, "0000:4c:00.0", (4711,))
    assert not host.collector.skipped


def test_without_gpm_the_counters_and_the_plain_utilization_serve() -> None:
    host = one(ampere(0))
    first = host.values()
    assert "nvlink_bytes_per_second" not in first
    fields = host.fake.gpus[0].fields
    fields[138, ALL_LINKS], fields[139, ALL_LINKS], fields[197, 0], fields[198, 0] = 1000, 500, 3000, 4000
    values = host.values()
    assert values["nvlink_bytes_per_second"] == 1500 * 1024
    assert values["pcie_bytes_per_second"] == 7000
    assert (values["gpu_graphics_active_ratio"], values["gpu_dram_active_ratio"]) == (0.97, 0.4)
    assert not {"gpu_sm_active_ratio", "gpu_tensor_active_ratio", "gpu_fp_active_ratio"} & values.keys()


def test_a_counter_that_wraps_gives_no_sample_once() -> None:
    host = one(ampere(0))
    fields = host.fake.gpus[0].fields
    fields[197, 0] = fields[198, 0] = 2**32 - 2
    host.look()
    fields[197, 0] = 5
    assert "pcie_bytes_per_second" not in host.values()
    fields[197, 0] = 15
    assert host.values()["pcie_bytes_per_second"] == 10


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), min_size=1, max_size=6))
def test_no_rate_is_negative_whatever_the_counters_do(values: list[tuple[int, int]]) -> None:
    host = one(ampere(0))
    for pcie, link in values:
        fields = host.fake.gpus[0].fields
        fields[197, 0] = fields[198, 0] = pcie
        fields[138, ALL_LINKS] = fields[139, ALL_LINKS] = link
        assert all(value >= 0 for value in host.values().values())


def test_where_the_card_has_no_pcie_counter_the_short_sample_is_asked_seldom() -> None:
    gpu = ampere(0)
    del gpu.fields[197, 0]
    host = one(gpu)
    found = ["pcie_bytes_per_second" in host.values() for _ in range(10)]
    assert sum(found) == 2
    assert host.values(5)["pcie_bytes_per_second"] == 2_000_000


def test_a_pcie_counter_of_32_bits_is_not_used_because_it_wraps_between_two_samples() -> None:
    gpu = ampere(0)
    gpu.narrow_fields = {(197, 0), (198, 0)}
    host = one(gpu)
    found = []
    for second in range(5):
        gpu.fields[197, 0] = gpu.fields[198, 0] = second * 20_000_000_000
        found.append(host.values().get("pcie_bytes_per_second"))
    assert found == [None, None, None, None, 2_000_000]


def test_blanks_and_unsupported_calls_are_absent_and_never_zero() -> None:
    gpu = hopper(0)
    gpu.power_milliwatts = 0xFFFF_FFFF
    gpu.gpm = {2: math.nan, 5: 45.0}
    gpu.unsupported = {"nvmlDeviceGetTemperature", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo_v2"}
    host = one(gpu)
    assert host.values(2) == {
        "gpu_tensor_active_ratio": 0.45, "gpu_sm_clock_hertz": 1.755e9, "gpu_memory_used_bytes": float(60 << 30),
    }  # fmt: skip


def test_a_card_that_supports_nothing_gives_nothing_and_no_event() -> None:
    gpu = hopper(0)
    gpu.fields, gpu.gpm, gpu.nvlinks = {}, {}, []
    names = [name for name in dir(FakeNvml) if name.startswith("nvmlDeviceGet")]
    gpu.unsupported = {*names, "nvmlDeviceGetMemoryInfo_v2"} - {"nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"}
    host = one(gpu)
    calls = host.fake.calls
    reading = host.look()
    assert (reading.gpus, reading.events) == ({}, ())
    first, calls = host.fake.calls - calls, host.fake.calls
    host.look()
    assert host.fake.calls - calls < first / 3  # what a card cannot do is not asked every second


def test_an_older_library_without_a_function_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(FakeNvml, "nvmlDeviceGetCurrentClocksEventReasons")
    monkeypatch.delattr(FakeNvml, "nvmlGpmQueryDeviceSupport")
    host = one()
    host.fake.gpus[0].reasons_mask = 0x40
    assert host.reported(3) == [("clocks_event", {"reasons": ["hw_thermal"]})]


def test_an_impossible_percentage_is_counted_and_left_out() -> None:
    gpu = hopper(0)
    gpu.gpm[2] = 1e19
    host = one(gpu)
    assert "gpu_sm_active_ratio" not in host.values(2)
    assert host.collector.skipped["out_of_range"] == 1


# --- states --------------------------------------------------------------------------------------


def test_a_pcie_link_that_narrows_is_told_once_and_when_it_is_whole_again() -> None:
    host = one()
    host.look(6)
    host.fake.gpus[0].width = 4
    reported = host.reported(10)
    assert reported == [("pcie_link", {"gen": 5, "width": 4, "max_gen": 5, "max_width": 16})]
    host.fake.gpus[0].width = 16
    assert host.reported(10) == [("pcie_link", {"gen": 5, "width": 16, "max_gen": 5, "max_width": 16})]


def test_an_idle_card_that_saves_power_on_its_link_is_no_fault() -> None:
    host = one()
    host.look(6)
    host.fake.gpus[0].gen, host.fake.gpus[0].util_percent = 1, 0
    assert host.reported(10) == []
    host.fake.gpus[0].util_percent = 90
    assert host.reported(10) == [("pcie_link", {"gen": 1, "width": 16, "max_gen": 5, "max_width": 16})]


def test_what_is_broken_before_the_agent_comes_is_told_at_the_start() -> None:
    gpu = hopper(0)
    gpu.width, gpu.remapped_rows, gpu.ecc_uncorrected_count, gpu.fields[230, 0] = 8, (0, 2, 1, 0), 2, 1
    events = one(gpu).look().events
    assert [event.name for event in events] == ["pcie_link", "row_remap", "gpu_recovery", "ecc"]
    assert all(event.payload["at_start"] and event.payload["uuid"] == gpu.uuid for event in events)


def test_clock_events_do_not_flap() -> None:
    host = one()
    gpu = host.fake.gpus[0]
    host.look(2)
    for mask in (0x40, 0, 0x40, 0, 0x20, 0):  # one sample at a time
        gpu.reasons_mask = mask
        assert host.reported() == []
    gpu.reasons_mask = 0x40 | 0x04 | 0x01
    assert host.reported(4) == [("clocks_event", {"reasons": ["hw_thermal", "sw_power_cap"]})]
    gpu.reasons_mask = 0x04
    assert host.reported(4) == []
    assert host.reported(4) == [("clocks_event", {"reasons": ["sw_power_cap"]})]
    gpu.reasons_mask = 0x01  # idle is no event
    assert host.reported(10) == [("clocks_event", {"reasons": []})]


def test_ecc_errors_are_told_by_how_many_came() -> None:
    gpu = hopper(0)
    gpu.ecc_corrected_count = 1000  # since the driver was loaded
    host = one(gpu)
    assert host.reported(6) == []
    gpu.ecc_uncorrected_count, gpu.ecc_corrected_count = 2, 1003
    assert host.reported(6) == [
        ("ecc", {"kind": "uncorrected", "count": 2}),
        ("ecc", {"kind": "corrected", "count": 3}),
    ]
    gpu.ecc_corrected_count = 1010
    assert host.reported(20) == []  # corrected ones at most once a minute
    gpu.ecc_corrected_count = 1011
    assert host.reported(60) == [("ecc", {"kind": "corrected", "count": 8})]
    gpu.ecc_uncorrected_count = 0  # the driver was reloaded
    assert host.reported(6) == []


def test_row_remapping_recovery_and_nvlinks_change() -> None:
    host = one()
    gpu = host.fake.gpus[0]
    host.look(6)
    gpu.remapped_rows = (0, 1, 1, 0)
    gpu.fields[230, 0] = 4
    gpu.nvlinks[7] = 0
    gpu.fields[52, 0] = 12
    assert host.reported(6) == [
        ("row_remap", {"pending": True, "failure": False}),
        ("gpu_recovery", {"action": 4}),
        ("nvlink_error", {"link": 7, "state": "down"}),
        ("nvlink_error", {"kind": "replay", "count": 12}),
    ]
    gpu.fields[230, 0] = 0
    assert host.reported(6) == [("gpu_recovery", {"action": 0})]


def test_blackwell_counts_nvlink_errors_by_link() -> None:
    gpu = hopper(0)
    gpu.architecture = 10
    gpu.fields = {(214, link): 0 for link in range(18)}
    host = one(gpu)
    host.look(6)
    gpu.fields[214, 11] = 1
    assert host.reported(6) == [("nvlink_error", {"kind": "recovery_failed", "count": 1, "link": 11})]


# --- XIDs and lost GPUs --------------------------------------------------------------------------


def test_xids_come_as_events_with_their_gpu() -> None:
    host = Host(fake_host(2))
    host.look()
    host.fake.raise_xid(1, 94)
    host.fake.raise_xid(0, 13)
    found = [(e.severity, dict(e.payload)) for e in host.look().events]
    gpus = host.fake.gpus
    assert found == [
        ("error", {"code": 94, "pci": "0000:2a:00.0", "via": "nvml", "uuid": gpus[1].uuid, "gpu": 1,
                   "architecture": "hopper"}),
        ("warning", {"code": 13, "pci": "0000:19:00.0", "via": "nvml", "uuid": gpus[0].uuid, "gpu": 0,
                     "architecture": "hopper"}),
    ]  # fmt: skip
    assert host.look().events == ()


def test_a_flood_of_xids_is_taken_in_portions() -> None:
    host = one()
    host.look()
    for _ in range(100):
        host.fake.raise_xid(0, 31)
    assert [len(host.look().events) for _ in range(3)] == [64, 36, 0]


def test_a_lost_gpu_is_told_once_and_the_others_go_on() -> None:
    host = Host(fake_host(4))
    host.look(2)
    host.fake.gpus[2].lost = True
    reading = host.look()
    assert len(reading.gpus) == 3
    (event,) = reading.events
    assert (event.name, event.severity) == ("gpu_lost", "fatal")
    assert event.payload["uuid"] == host.fake.gpus[2].uuid
    assert host.look(130).events == ()  # asked again each minute, told once
    host.fake.gpus[2].lost = False
    reading = host.look(70)
    assert len(reading.gpus) == 4
    host.fake.gpus[2].lost = True
    assert [event.name for event in host.look().events] == ["gpu_lost"]


def test_an_xid_of_a_lost_gpu_still_names_it() -> None:
    host = Host(fake_host(2))
    host.look()
    host.fake.raise_xid(1, 79)
    host.fake.gpus[1].lost = True
    names = {event.name: event.payload["uuid"] for event in host.look().events}
    assert names == {"gpu_lost": host.fake.gpus[1].uuid, "xid": host.fake.gpus[1].uuid}


def test_a_gpu_that_is_lost_before_the_start_is_told() -> None:
    fake = fake_host(2)
    fake.gpus[0].lost = True
    host = Host(fake)
    reading = host.look()
    assert [(event.name, event.payload["gpu"]) for event in reading.events] == [("gpu_lost", 0)]
    assert len(reading.gpus) == 1
    everything_gone = Host(FakeNvml([hopper(0)]))
    everything_gone.fake.gpus[0].lost = True
    assert [event.name for event in everything_gone.look().events] == ["gpu_lost"]
    with pytest.raises(NothingHere, match="none of 1 GPUs answers"):
        everything_gone.look()


def test_an_odd_error_of_one_call_is_counted() -> None:
    gpu = hopper(0)
    gpu.errors = {"nvmlDeviceGetPowerUsage": 999}
    host = one(gpu)
    assert "gpu_power_watts" not in host.values(2)
    assert host.collector.skipped["nvml_error_999"] == 2


def test_a_driver_that_is_reloaded_is_opened_anew() -> None:
    host = one()
    host.look(2)
    host.fake.is_open = False
    with pytest.raises(CollectorError, match="went away"):
        host.look()
    assert len(host.values(2)) == 13


@pytest.mark.parametrize(("code", "text"), [(12, "no NVML library"), (9, "no NVIDIA driver"), (4, "may not ask")])
def test_no_driver_is_nothing_here_and_asked_again_in_a_minute(code: int, text: str) -> None:
    host = Host(FakeNvml([hopper(0)], init_error=code))
    with pytest.raises(NothingHere, match=text):
        host.look()
    host.fake.init_error = 0
    with pytest.raises(NothingHere, match=text):
        host.look()
    host.second += OPEN_AGAIN_NS // SECOND
    assert host.look().gpus


def test_other_errors_of_the_driver_are_failures() -> None:
    with pytest.raises(CollectorError, match="code 18"):
        Host(FakeNvml([], init_error=18)).look()
    with pytest.raises(NothingHere, match="knows no GPU"):
        Host(FakeNvml([])).look()


def test_no_library_of_the_driver_is_nothing_here_without_importingnvml_library() -> None:
    def absent(_name: str) -> object:
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    with pytest.raises(NothingHere, match=r"libnvidia-ml\.so\.1"):
        nvml_library(absent)
    assert nvml_library(lambda _name: None).NVMLError


def test_closing_frees_what_the_driver_holds() -> None:
    host = one()
    host.look()
    host.collector.close()
    assert host.fake.samples
    assert all(sample.freed for sample in host.fake.samples)
    assert not host.fake.is_open
    host.collector.close()


@pytest.mark.parametrize("value", [None, "N/A", 0xFFFF_FFFF, 2**64 - 1, math.inf, math.nan])
def test_blanks_are_no_number(value: object) -> None:
    assert number(value) is None


# --- what a real H100 gave (driver 580.159.04, one second a sample: five idle, four under matrix products) -------


def test_readings_of_a_real_h100_lie_in_the_ranges_of_their_metrics() -> None:
    path = Path(__file__).parent / "recorded/nvml_h100.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    ranges = {metric.name: possible_range(metric) for metric in GPU_METRICS}
    readings = [values for row in rows for values in row["gpus"].values()]

    assert set(readings[-1]) == set(ranges)
    for values in readings:
        for name, value in values.items():
            assert ranges[name][0] <= value <= ranges[name][1], name
    idle, loaded = readings[1], readings[-1]
    assert idle["gpu_util_ratio"] == idle["gpu_tensor_active_ratio"] == 0
    assert min(loaded["gpu_util_ratio"], loaded["gpu_sm_active_ratio"], loaded["gpu_tensor_active_ratio"]) > 0.9
    assert loaded["gpu_power_watts"] > 600
    assert idle["gpu_power_watts"] < 100


# --- the fake itself -----------------------------------------------------------------------------


def test_the_fake_has_pynvmls_names_numbers_and_arguments() -> None:
    real = importlib.import_module("pynvml")
    for name, value in vars(FakeNvml).items():
        if name.startswith(("NVML_", "nvmlEventType", "nvmlMemory")):
            assert getattr(real, name) == value, name
        elif name.startswith("nvml"):
            wanted = list(inspect.signature(getattr(real, name)).parameters)
            assert len(inspect.signature(value).parameters) - 1 == len(wanted), name
    assert hasattr(real, "c_nvmlGpmMetricsGet_t")
    assert real.NVMLError(real.NVML_ERROR_GPU_IS_LOST).value == 15
    assert NVMLError(15).value == 15


def test_the_real_structures_have_the_fields_that_the_collector_uses() -> None:
    real = importlib.import_module("pynvml")
    request = real.c_nvmlGpmMetricsGet_t()
    request.metrics[0].metricId = 2
    assert {"nvmlReturn", "value", "metricId"} <= {name for name, _ in real.c_nvmlGpmMetric_t._fields_}
    assert {"nvmlReturn", "valueType", "value"} <= {name for name, _ in real.c_nvmlFieldValue_t._fields_}
    assert [name for name, _ in real.c_nvmlValue_t._fields_] == [
        "dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal",
    ]  # fmt: skip
    assert real.NVML_GPM_METRIC_ANY_TENSOR_UTIL == 5
    assert (real.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, real.NVML_GPM_METRIC_PCIE_TX_PER_SEC) == (60, 20)
    assert real.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION == 230
    assert (real.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, real.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX) == (197, 138)
