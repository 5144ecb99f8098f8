"""Pages of exporters become columns: old and new names, blanks, counters, mapping files, and pages that break."""

import csv
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.serving import serving
from tocsin.collectors.agent.runner import checked
from tocsin.collectors.api import CollectorError, Reading
from tocsin.collectors.sources.prometheus import MAX_PAGE_BYTES, PrometheusCollector, PrometheusConfig
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.formats.prometheus_mapping import BUILTIN_MAPPING, PrometheusMapping, parse_mapping
from tocsin.schemas.formats.prometheus_page import PageParser, parse_page

SECOND = 10**9
UUID = "GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52"
LABELS = f'gpu="0",UUID="{UUID}",pci_bus_id="00000000:19:00.0",device="nvidia0",modelName="H100",Hostname="n012"'

# in the form of dcgm-exporter; what the values mean stands in formats.md b5
OLD = {
    "DCGM_FI_DEV_GPU_UTIL": 97, "DCGM_FI_PROF_SM_ACTIVE": 0.88, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.45,
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.96, "DCGM_FI_PROF_DRAM_ACTIVE": 0.38, "DCGM_FI_PROF_PIPE_FP32_ACTIVE": 0.06,
    "DCGM_FI_PROF_PIPE_FP16_ACTIVE": 0.02, "DCGM_FI_DEV_POWER_USAGE": 650.5, "DCGM_FI_DEV_GPU_TEMP": 61,
    "DCGM_FI_DEV_SM_CLOCK": 1755, "DCGM_FI_DEV_FB_USED": 61440, "DCGM_FI_PROF_NVLINK_TX_BYTES": 9e10,
    "DCGM_FI_PROF_NVLINK_RX_BYTES": 8e10, "DCGM_FI_PROF_PCIE_TX_BYTES": 1e9, "DCGM_FI_PROF_PCIE_RX_BYTES": 2e9,
}  # fmt: skip
NEW_NAMES = {
    "DCGM_FI_DEV_GPU_UTIL": "DCGM_FI_DEV_GPU_UTIL_RATIO",
    "DCGM_FI_PROF_SM_ACTIVE": "DCGM_FI_PROF_SM_UTIL_RATIO",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": "DCGM_FI_PROF_TENSOR_UTIL_RATIO",
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO",
    "DCGM_FI_PROF_DRAM_ACTIVE": "DCGM_FI_PROF_DRAM_UTIL_RATIO",
    "DCGM_FI_PROF_PIPE_FP32_ACTIVE": "DCGM_FI_PROF_FP32_UTIL_RATIO",
    "DCGM_FI_PROF_PIPE_FP16_ACTIVE": "DCGM_FI_PROF_FP16_UTIL_RATIO",
    "DCGM_FI_DEV_POWER_USAGE": "DCGM_FI_DEV_BOARD_POWER_WATTS",
    "DCGM_FI_DEV_GPU_TEMP": "DCGM_FI_DEV_GPU_TEMP_CELSIUS",
}
WANTED = {
    "gpu_util_ratio": 0.97, "gpu_sm_active_ratio": 0.88, "gpu_tensor_active_ratio": 0.45,
    "gpu_graphics_active_ratio": 0.96, "gpu_dram_active_ratio": 0.38, "gpu_fp_active_ratio": 0.08,
    "gpu_power_watts": 650.5, "gpu_temperature_celsius": 61.0, "gpu_sm_clock_hertz": 1.755e9,
    "gpu_memory_used_bytes": 61440 * 2**20, "nvlink_bytes_per_second": 1.7e11, "pcie_bytes_per_second": 3e9,
}  # fmt: skip


def dcgm(values: dict[str, float], labels: str = LABELS) -> str:
    lines = [f"# HELP {name} x\n# TYPE {name} gauge\n{name}{{{labels}}} {value}" for name, value in values.items()]
    return "\n".join(lines) + "\n"


class Pages:
    """A collector over pages that a test writes."""

    def __init__(self, mapping: PrometheusMapping = BUILTIN_MAPPING) -> None:
        self.page: bytes | Exception = b""
        self.second = 0
        self.collector = PrometheusCollector(PrometheusConfig("http://n012:9400/metrics", mapping), self.fetch)

    def fetch(self, url: str) -> bytes:
        assert url == "http://n012:9400/metrics"
        if isinstance(self.page, Exception):
            raise self.page
        return self.page

    def look(self, page: str | bytes | Exception, seconds: int = 5) -> Reading:
        self.page = page.encode() if isinstance(page, str) else page
        self.second += seconds
        return checked(self.collector.collect(self.second * SECOND))


@pytest.mark.parametrize("new", [False, True], ids=["old_names", "new_names"])
def test_dcgm_exporter_in_base_units_under_both_names(new: bool) -> None:
    values = {NEW_NAMES.get(name, name) if new else name: value for name, value in OLD.items()}
    reading = Pages().look(dcgm(values))
    assert reading.gpus == {UUID: pytest.approx(WANTED)}
    assert reading.host == {}


def test_every_dcgm_name_of_the_mapping_is_one_of_dcgm(shared_data: Path) -> None:
    with (shared_data / "dcgm" / "dcgm_field_ids.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    ids = {name: row["field_id"] for row in rows for name in (row["name_dcgm_4_6"], row["older_alias"]) if name}
    asked = {name for name in BUILTIN_MAPPING.names() if name.startswith("DCGM_")}
    assert asked <= ids.keys()
    for terms in BUILTIN_MAPPING.columns.values():
        for term in terms:
            if term.names[0].startswith("DCGM_"):
                assert len({ids[name] for name in term.names}) == 1, term.names  # two names of one field


@pytest.mark.parametrize(
    "blank",
    ["9223372036854775794", "9223372036854775792", "9.223372036854775807e18", "140737488355328.0", "2147483632", "NaN",
     "+Inf", "-Inf"],
)  # fmt: skip
def test_blanks_are_no_sample(blank: str) -> None:
    page = dcgm({"DCGM_FI_DEV_POWER_USAGE": 650}) + f"DCGM_FI_DEV_GPU_TEMP{{{LABELS}}} {blank}\n"
    page += f"DCGM_FI_PROF_PCIE_TX_BYTES{{{LABELS}}} {blank}\nDCGM_FI_PROF_PCIE_RX_BYTES{{{LABELS}}} 5\n"
    assert Pages().look(page).gpus == {UUID: {"gpu_power_watts": 650.0}}


def test_what_cannot_be_is_counted_and_left_out() -> None:
    pages = Pages()
    assert pages.look(dcgm({"DCGM_FI_DEV_GPU_UTIL": 400, "DCGM_FI_DEV_POWER_USAGE": -5})).gpus == {}
    assert pages.collector.skipped["out_of_range"] == 2


def test_slices_of_a_gpu_and_samples_without_uuid_are_left_out() -> None:
    page = dcgm({"DCGM_FI_DEV_POWER_USAGE": 1}, LABELS + ',GPU_I_ID="3"') + "DCGM_FI_DEV_GPU_TEMP 7\n"
    assert Pages().look(page).gpus == {}


def node(second: int) -> str:
    """Two CPUs, one of them idle; 3 MB/s on eth0, much on interfaces that count twice."""
    return f"""# HELP node_cpu_seconds_total x
node_cpu_seconds_total{{cpu="0",mode="idle"}} {second}
node_cpu_seconds_total{{cpu="0",mode="iowait"}} 0
node_cpu_seconds_total{{cpu="0",mode="user"}} 0
node_cpu_seconds_total{{cpu="1",mode="idle"}} {second * 0.25}
node_cpu_seconds_total{{cpu="1",mode="iowait"}} {second * 0.25}
node_memory_MemAvailable_bytes 2.5e+10
node_memory_MemTotal_bytes 1e+11
node_filesystem_avail_bytes{{device="/dev/sda1",mountpoint="/"}} 40
node_filesystem_size_bytes{{device="/dev/sda1",mountpoint="/"}} 100
node_filesystem_avail_bytes{{device="x",mountpoint="/boot"}} 1
node_filesystem_size_bytes{{device="x",mountpoint="/boot"}} 100
node_network_receive_bytes_total{{device="eth0"}} {second * 1e6}
node_network_transmit_bytes_total{{device="eth0"}} {second * 2e6}
node_network_receive_bytes_total{{device="lo"}} {second * 9e9}
node_network_receive_bytes_total{{device="veth12"}} {second * 9e9}
node_network_transmit_bytes_total{{device="lo"}} 0
node_infiniband_port_data_received_bytes_total{{device="mlx5_0",port="1"}} {second * 1e9}
node_infiniband_port_data_received_bytes_total{{device="mlx5_1",port="1"}} {second * 1e9}
node_infiniband_port_data_transmitted_bytes_total{{device="mlx5_0",port="1"}} {second * 5e8}
"""


def test_node_exporter_gives_the_hosts_columns() -> None:
    pages = Pages()
    first = pages.look(node(100))
    assert first.host == {"memory_used_ratio": 0.75, "disk_used_ratio": pytest.approx(0.6)}
    second = pages.look(node(105))
    assert second.host == pytest.approx(
        {
            "cpu_util_ratio": 1 - (1 + 0.5) / 2,
            "memory_used_ratio": 0.75,
            "disk_used_ratio": 0.6,
            "tcp_bytes_per_second": 3e6,
            "rdma_bytes_per_second": 2.5e9,
        }
    )
    third = pages.look(node(3))  # the host was started anew: all counters went back
    assert set(third.host) == {"memory_used_ratio", "disk_used_ratio"}


@given(st.lists(st.floats(), min_size=2, max_size=5))
def test_no_rate_is_negative_whatever_a_counter_does(values: list[float]) -> None:
    pages = Pages()
    for value in values:
        page = f'node_network_receive_bytes_total{{device="e"}} {value}\n'
        page += f'node_network_transmit_bytes_total{{device="e"}} {value}\n'
        assert all(found >= 0 for found in pages.look(page).host.values())


def test_the_last_xid_gauge_is_old_at_first_and_new_when_it_changes() -> None:
    pages = Pages()
    assert pages.look(dcgm({"DCGM_FI_DEV_XID_ERRORS": 31})).events == ()
    assert pages.look(dcgm({"DCGM_FI_DEV_XID_ERRORS": 31})).events == ()
    (event,) = pages.look(dcgm({"DCGM_FI_DEV_XID_ERRORS": 79})).events
    assert (event.name, event.severity) == ("xid", "fatal")
    assert event.payload == {"code": 79, "pci": "0000:19:00.0", "uuid": UUID, "via": "prometheus"}
    assert pages.look(dcgm({"DCGM_FI_DEV_XID_ERRORS": 0})).events == ()


def test_a_mapping_file_of_the_users_own(tmp_path: Path) -> None:
    text = """{"gpu_label": "uuid", "columns": {
      "gpu_power_watts": {"names": "my_power_milliwatts", "factor": 0.001},
      "pfc_tx_packets_per_second": [
        {"names": ["node_ethtool_tx_pause"], "kind": "counter", "labels": {"device": "eth[01]"}}],
      "gpu_temperature_celsius": {"names": ["hot"], "combine": "max"}}}"""
    pages = Pages(parse_mapping(text, "m.json"))
    page = """my_power_milliwatts{uuid="GPU-1"} 650000
hot{uuid="GPU-1",sensor="a"} 40
hot{uuid="GPU-1",sensor="b"} 50
node_ethtool_tx_pause{device="eth0"} %d
node_ethtool_tx_pause{device="eth9"} 0
"""
    reading = pages.look(page % 0)
    assert reading.gpus == {"GPU-1": {"gpu_power_watts": 650.0, "gpu_temperature_celsius": 50.0}}
    assert pages.look(page % 50).host == {"pfc_tx_packets_per_second": 10.0}


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{", "m.json"),
        ("[]", "columns"),
        ('{"columns": {"gpu_powr": {"names": ["x"]}}}', "gpu_powr"),
        ('{"columns": {"gpu_power_watts": {"names": []}}}', "gpu_power_watts: names"),
        ('{"columns": {"gpu_power_watts": {"name": ["x"]}}}', "an object with"),
        ('{"columns": {"gpu_power_watts": {"names": ["x"], "factor": "2"}}}', "factor = 2"),
        ('{"columns": {"gpu_power_watts": {"names": ["x"], "factor": NaN}}}', "factor = nan"),
        ('{"columns": {"gpu_power_watts": {"names": ["x"], "kind": "histogram"}}}', "kind gauge or counter"),
        ('{"columns": {"gpu_power_watts": {"names": ["x"], "labels": {"a": "("}}}}', "regular expression"),
        ('{"columns": {}, "colums": 1}', "colums"),
        ('{"columns": {}, "gpu_label": 1}', "gpu_label"),
        ("[" * 100_000, "m.json"),
    ],
)
def test_a_broken_mapping_names_file_and_entry(text: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        parse_mapping(text, "m.json")


def test_a_page_that_cannot_be_fetched_is_a_failure_that_names_it() -> None:
    pages = Pages()
    for error in (ConnectionRefusedError("refused"), TimeoutError("timed out"), ValueError("bad port")):
        with pytest.raises(CollectorError, match="http://n012:9400/metrics cannot be scraped"):
            pages.look(error)
    with pytest.raises(CollectorError, match="larger than 16 MiB"):
        pages.look(b"x" * (MAX_PAGE_BYTES + 1))


def test_malformed_lines_are_counted_and_the_rest_goes_on() -> None:
    pages = Pages()
    page = 'DCGM_FI_DEV_GPU_TEMP{UUID="x} 1\nDCGM_FI_DEV_GPU_TEMP\nDCGM_FI_DEV_SM_CLOCK{} 1_0\n\xff\n'
    page += f"DCGM_FI_DEV_GPU_TEMP{{{LABELS + 'x' * 20_000}}} 1\n" + dcgm({"DCGM_FI_DEV_POWER_USAGE": 5})
    assert pages.look(page).gpus == {UUID: {"gpu_power_watts": 5.0}}
    assert pages.collector.skipped["malformed"] == 4


@pytest.mark.parametrize("url", ["file:///etc/passwd", "n012:9400", "ftp://x/", "http://", ""])
def test_what_is_no_web_address_is_refused_at_start(url: str) -> None:
    with pytest.raises(ConfigError, match="http"):
        PrometheusCollector(PrometheusConfig(url))


def test_real_pages_of_another_exporter_are_read_whole(shared_data: Path) -> None:
    seen = 0
    for path in (shared_data / "xpu_timer" / "xpu_timer").rglob("*"):
        if path.is_file():
            page = parse_page(path.read_text())
            seen += len(page.samples)
            assert page.malformed == (), path
    assert seen


@given(st.text())
def test_no_page_makes_the_parser_raise(text: str) -> None:
    parse_page(text)
    parse_page("a" + text, {"a"})


LINES = [
    *(
        'a{x="1"} 3',
        'a{x="1"} 3 1700000000000',
        'a{x="1"}3',
        'a{x="1"} 3 ',
        'a{x="1"}  3',
        'a{x="1"} 1_0',
        'a{x="1"} x',
    ),
    *("a 1", "a NaN", "a 1 2 3", "a", "ab 5", 'ab{x="1"} 7', "abc 2", 'b{y="} 1"} 2', "b{y} 1", "# a 1", "", " a 1"),
]


@given(st.lists(st.sampled_from(LINES)))
def test_a_page_reads_as_its_lines_do_one_by_one_and_the_same_when_its_series_are_known(lines: list[str]) -> None:
    parser, page = PageParser({"a", "ab", "b"}), "\n".join(lines)
    first, again = parser.parse(page), parser.parse(page)
    alone = [parse_page(line, {"a", "ab", "b"}) for line in lines]

    assert repr(first) == repr(again)  # NaN is not itself
    assert repr(first.samples) == repr(tuple(sample for one in alone for sample in one.samples))
    assert len(first.malformed) == sum(len(one.malformed) for one in alone)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/metrics" else 404)
        self.end_headers()
        self.wfile.write(dcgm({"DCGM_FI_DEV_POWER_USAGE": 7}).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def exporter() -> Iterator[str]:
    with serving(HTTPServer(("127.0.0.1", 0), Handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


def test_a_real_http_page_is_scraped_and_a_missing_one_said(exporter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # a proxy of the users' environment does not count
    assert PrometheusCollector(PrometheusConfig(f"{exporter}/metrics")).collect(0).gpus[UUID] == {
        "gpu_power_watts": 7.0
    }
    with pytest.raises(CollectorError, match="404"):
        PrometheusCollector(PrometheusConfig(f"{exporter}/none")).collect(0)
