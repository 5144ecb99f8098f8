"""RDMA ports: the real tree of an H100 host, and trees that break."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.collectors.agent.runner import checked
from tocsin.collectors.api import HostEvent, NothingHere, Reading
from tocsin.collectors.sources.procfs import Roots
from tocsin.collectors.sources.rates import Rates
from tocsin.collectors.sources.rdma import RdmaCollector, RdmaConfig
from tocsin.schemas.errors import FieldError
from tocsin.schemas.formats.infiniband import parse_counter, parse_rate_gbps, parse_state

SECOND = 10**9


def port(sys: Path, device: str = "mlx5_0", /, **files: object) -> Path:
    """Write a port; ``counters__x`` stands for ``counters/x``."""
    folder = sys / "class" / "infiniband" / device / "ports" / "1"
    defaults = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)"}
    for name, text in {**defaults, **files}.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return folder


def collector(sys: Path) -> RdmaCollector:
    return RdmaCollector(RdmaConfig(Roots("/proc", str(sys))))


def look(found: RdmaCollector, second: float) -> Reading:
    return checked(found.collect(round(second * SECOND)))


def five_looks(found: RdmaCollector) -> Reading:
    """What a port's firmware has to be asked for is read with every fifth sample."""
    readings = [look(found, second) for second in range(2, 7)]
    return Reading(events=tuple(event for reading in readings for event in reading.events))


def only(reading: Reading) -> HostEvent:
    (event,) = reading.events
    return event


def test_the_real_tree_gives_its_bytes_and_no_event(shared_data: Path, tmp_path: Path) -> None:
    real = shared_data / "infiniband_sysfs" / "sys-class-infiniband-h100.0"
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "infiniband").symlink_to(real)
    found = collector(tmp_path)
    assert look(found, 1) == Reading()
    second = look(found, 2)
    assert second.host == {"rdma_bytes_per_second": 0.0}  # a picture: nothing moves in it
    assert second.events == ()
    assert not found.skipped
    assert sorted(found.port_names) == sorted(f"{path.name}/1" for path in real.iterdir())


def test_counters_of_words_become_bytes_of_both_directions(tmp_path: Path) -> None:
    for device in ("mlx5_0", "mlx5_1"):
        port(tmp_path, device, counters__port_rcv_data=1000, counters__port_xmit_data=2000)
    found = collector(tmp_path)
    assert look(found, 1).host == {}
    for device in ("mlx5_0", "mlx5_1"):
        port(tmp_path, device, counters__port_rcv_data=1100, counters__port_xmit_data=2300)
    assert look(found, 3).host == {"rdma_bytes_per_second": 2 * (100 + 300) * 4 / 2}


def test_roce_counts_marks_and_notifications(tmp_path: Path) -> None:
    names = ("np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled")
    port(tmp_path, "mlx5_0", **{f"hw_counters__{name}": 0 for name in names})
    found = collector(tmp_path)
    look(found, 1)
    port(tmp_path, "mlx5_0", **{f"hw_counters__{name}": value for name, value in zip(names, (50, 30, 12), strict=True)})
    assert look(found, 2).host == {"ecn_packets_per_second": 50.0, "cnp_packets_per_second": 42.0}


def test_a_card_without_words_counts_its_bytes(tmp_path: Path) -> None:
    port(tmp_path, "efa_0", hw_counters__rx_bytes=10, hw_counters__tx_bytes=0)
    found = collector(tmp_path)
    look(found, 1)
    port(tmp_path, "efa_0", hw_counters__rx_bytes=30, hw_counters__tx_bytes=5)
    assert look(found, 2).host == {"rdma_bytes_per_second": 25.0}


def test_a_counter_that_goes_back_gives_no_sample_and_never_less_than_none(tmp_path: Path) -> None:
    port(tmp_path, counters__port_rcv_data=2**32 - 1, counters__port_xmit_data=0)
    found = collector(tmp_path)
    look(found, 1)
    port(tmp_path, counters__port_rcv_data=5, counters__port_xmit_data=0)
    assert look(found, 2).host == {}
    port(tmp_path, counters__port_rcv_data=7, counters__port_xmit_data=0)
    assert look(found, 3).host == {"rdma_bytes_per_second": 8.0}


@given(st.lists(st.integers(0, 2**64 - 1), min_size=2), st.integers(1, 10**12))
def test_no_rate_is_negative(values: list[int], step_ns: int) -> None:
    rates = Rates()
    found = [rates.per_second("x", value, index * step_ns) for index, value in enumerate(values)]
    assert all(rate is None or rate >= 0 for rate in found)
    assert all(rates.increase("y", value) >= 0 for value in values)


def test_an_unreadable_file_costs_itself_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    port(tmp_path, "mlx5_0", counters__port_rcv_data=0, counters__port_xmit_data=0)
    broken = port(tmp_path, "mlx5_1", counters__port_rcv_data=0, counters__port_xmit_data="-7")
    (broken / "counters" / "port_rcv_data").unlink()
    (broken / "counters" / "port_rcv_data").mkdir()  # reading a folder fails for root, too
    (broken / "state").write_text("rubbish")
    found = collector(tmp_path)
    look(found, 1)
    port(tmp_path, "mlx5_0", counters__port_rcv_data=100, counters__port_xmit_data=0)
    assert look(found, 2).host == {"rdma_bytes_per_second": 400.0}
    assert found.skipped == {"unreadable": 2, "malformed": 4}
    said = [(record.path, record.error) for record in caplog.records if record.message == "file skipped"]  # type: ignore[attr-defined]  # logged extras
    assert [Path(path).name for path, _ in said] == ["port_rcv_data", "port_xmit_data", "state"]
    assert "'-7'" in said[1][1]


def test_a_port_tells_its_changes_only(tmp_path: Path) -> None:
    port(tmp_path, counters__link_downed=3)
    found = collector(tmp_path)
    assert look(found, 1).events == ()
    port(tmp_path, state="1: DOWN", phys_state="2: Polling", rate="10 Gb/sec (4X SDR)", counters__link_downed=4)
    event = only(look(found, 2))
    assert (event.name, event.severity) == ("ib_port", "error")
    assert event.payload == {
        "port": "mlx5_0/1", "state": "down", "rate_gbps": 400.0, "link_downed": 4, "max_rate_gbps": 400.0,
        "phys_state": "polling", "flaps": 1, "at_start": False,
    }  # fmt: skip
    assert look(found, 3).events == ()
    port(tmp_path, counters__link_downed=4)
    assert (only(look(found, 4)).payload["state"], look(found, 5).events) == ("active", ())


def test_a_port_that_comes_back_slower_says_what_it_had(tmp_path: Path) -> None:
    port(tmp_path)
    found = collector(tmp_path)
    look(found, 1)
    port(tmp_path, rate="100 Gb/sec (4X EDR)")
    payload = only(five_looks(found)).payload
    assert (payload["rate_gbps"], payload["max_rate_gbps"]) == (100.0, 400.0)


def test_a_flap_between_two_looks_is_seen(tmp_path: Path) -> None:
    port(tmp_path, counters__link_downed=0)
    found = collector(tmp_path)
    look(found, 1)
    port(tmp_path, counters__link_downed=2)
    payload = only(five_looks(found)).payload
    assert (payload["state"], payload["flaps"]) == ("active", 2)


def test_a_port_that_is_down_at_start_is_told_once_as_such(tmp_path: Path) -> None:
    port(tmp_path, state="1: DOWN", phys_state="3: Disabled")
    found = collector(tmp_path)
    event = only(look(found, 1))
    assert (event.payload["at_start"], event.severity) == (True, "warning")
    assert look(found, 2).events == ()


def test_a_device_that_leaves_is_gone_and_one_that_comes_is_seen(tmp_path: Path) -> None:
    folder = port(tmp_path, counters__port_rcv_data=0, counters__port_xmit_data=0)
    found = collector(tmp_path)
    look(found, 1)
    folder.rename(tmp_path / "away")
    assert only(look(found, 2)).payload["state"] == "gone"
    assert look(found, 3).events == ()
    (tmp_path / "away").rename(folder)
    assert only(look(found, 4)).payload["state"] == "active"
    port(tmp_path, "mlx5_9", state="2: INIT")
    assert only(look(found, 20)).payload["port"] == "mlx5_9/1"


def test_no_device_is_nothing_here(tmp_path: Path) -> None:
    with pytest.raises(NothingHere, match="class/infiniband"):
        look(collector(tmp_path), 1)
    (tmp_path / "class" / "infiniband").mkdir(parents=True)
    with pytest.raises(NothingHere, match="lists no port"):
        look(collector(tmp_path), 1)


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "9" * 30, "\0", "\u0661"])
def test_broken_counters_name_file_and_value(text: str) -> None:
    with pytest.raises(FieldError, match=r"a/b = .*: must be"):
        parse_counter("a/b", text)


@given(st.text(max_size=30))
def test_no_text_makes_a_parser_raise_anything_else(text: str) -> None:
    for parse in (parse_counter, parse_state, parse_rate_gbps):
        try:
            parse("x", text)
        except FieldError:
            continue
