"""Which leaf switch is congested with all that hangs on it: 24 hosts behind four leaves of one minipod."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.pipeline.states import through_bytes
from tocsin.pipeline.detect.peers.leaf_congestion import SwitchesConfig, SwitchTracker
from tocsin.schemas.records import NS_PER_SECOND, JobKey, Slice
from tocsin.schemas.verdicts import Anomaly

T0 = 1_800_000_000 * NS_PER_SECOND
HOSTS = [f"n{row:02d}" for row in range(24)]
PLACES = {host: (f"leaf{row // 6}", "pod") for row, host in enumerate(HOSTS)}
BEHIND, ONSET_WINDOW = slice(6, 12), 20
Packets = NDArray[np.float32]


def _windows(count: int = 40, level: float = 2000.0, onset: int = ONSET_WINDOW) -> Packets:
    """Pause frames of all hosts, shape (windows, hosts): leaf1 is congested from the onset on."""
    packets = np.random.default_rng(7).uniform(0.0, 2.0, (count, len(HOSTS))).astype(np.float32)
    packets[onset:, BEHIND] += np.random.default_rng(8).uniform(0.7, 1.3, (count - onset, 6)) * level
    return packets


def _reported(
    packets: Packets, places: dict[str, tuple[str, str]] | None = None, window_seconds: int = 5
) -> list[list[Anomaly]]:
    """What is said after each window; through snapshots."""
    tracker, found = SwitchTracker(SwitchesConfig()), []
    for window, row in enumerate(packets):
        start_ns = T0 + window_seconds * window * NS_PER_SECOND
        data = Slice(JobKey("c", "j"), start_ns, start_ns + window_seconds * NS_PER_SECOND, ())
        found.append(tracker.take(data, HOSTS, row, PLACES if places is None else places))
        other = SwitchTracker(SwitchesConfig())
        other.load_state(through_bytes(tracker.to_state()))
        tracker = other
    return found


def _names(packets: Packets, places: dict[str, tuple[str, str]] | None = None) -> set[str]:
    return {anomaly.component.name for reported in _reported(packets, places) for anomaly in reported}


def test_the_leaf_is_told_from_its_third_window_on_and_until_half_a_minute_after_it() -> None:
    packets = _windows()
    packets[30:, BEHIND] = 1.0
    reported = _reported(packets)

    assert [window for window, found in enumerate(reported) if found] == list(range(22, 36))
    [anomaly] = reported[25]
    assert anomaly.component.name == "leaf1"
    assert anomaly.detail["hosts"] == HOSTS[6:12]
    assert (anomaly.start_ns - T0) / NS_PER_SECOND == 5 * ONSET_WINDOW
    assert (anomaly.end_ns - T0) / NS_PER_SECOND == 5 * 26


def test_steps_that_are_longer_than_a_window_leave_some_windows_out() -> None:
    packets = _windows()
    packets[ONSET_WINDOW + 1 :: 2, BEHIND] = 1.0

    assert _names(packets) == {"leaf1"}


def test_windows_of_25_seconds_need_two() -> None:
    reported = _reported(_windows(count=12, onset=5), window_seconds=25)

    assert [window for window, found in enumerate(reported) if found] == list(range(6, 12))


def test_a_congestion_of_the_first_minute_may_be_what_is_usual() -> None:
    assert _names(_windows(onset=8)) == set()


def test_a_switch_that_is_congested_again_and_again_is_as_ever() -> None:
    packets = _windows(count=80, onset=0)
    for begin in range(0, 80, 10):
        packets[begin : begin + 8, BEHIND] = 1.0  # in two of ten windows

    assert _names(packets) == set()


@pytest.mark.parametrize(
    ("others", "level"),
    [(slice(12, 18), 2000.0), (slice(12, 18), 400.0), (slice(12, 24), 900.0)],
    ids=["the-next-leaf-too", "the-next-leaf-a-fifth", "all-but-one"],
)
def test_who_is_congested_with_others_is_in_a_congested_network(others: slice, level: float) -> None:
    packets = _windows()
    packets[ONSET_WINDOW:, others] += level

    assert _names(packets) == set()


def test_one_congested_port_and_its_neighbours_are_no_switch() -> None:
    packets = _windows(level=300.0)
    packets[ONSET_WINDOW:, 7] += 4000.0

    assert _names(packets) == set()


def test_one_other_port_may_burst() -> None:
    packets = _windows()
    packets[ONSET_WINDOW:, 20] += 3000.0

    assert _names(packets) == {"leaf1"}


@pytest.mark.parametrize(
    "places",
    [
        {},
        {host: (f"leaf{row // 6}", f"pod{row // 6}") for row, host in enumerate(HOSTS)},
        {host: (f"leaf{row // 2}", "pod") for row, host in enumerate(HOSTS)},
    ],
    ids=["nobody-said-where", "alone-in-its-minipod", "two-behind-each"],
)
def test_where_the_switch_cannot_be_told_apart_none_is_named(places: dict[str, tuple[str, str]]) -> None:
    assert _names(_windows(), places) == set()


def test_hosts_that_say_nothing_do_not_count() -> None:
    packets = _windows()
    packets[:, [8, 9, 20]] = np.nan

    assert _names(packets) == {"leaf1"}


def test_what_is_remembered_of_switches_that_were_congested_once_ends() -> None:
    tracker = SwitchTracker(SwitchesConfig())
    packets = _windows(count=60)
    packets[24:, BEHIND] = 1.0
    for window, row in enumerate(packets):
        start_ns = T0 + 5 * window * NS_PER_SECOND
        tracker.take(Slice(JobKey("c", "j"), start_ns, start_ns + 5 * NS_PER_SECOND, ()), HOSTS, row, PLACES)

    assert tracker.to_state()["spells"] == {}


POD_PLACES = {host: (f"leaf{row // 3}", f"pod{row // 6}") for row, host in enumerate(HOSTS)}
"""Eight leaves of three hosts, two on each of four minipods: ``BEHIND`` are those of pod1."""


def _components(packets: Packets, places: dict[str, tuple[str, str]]) -> set[tuple[str, str]]:
    reported = _reported(packets, places)
    return {(one.component.kind.value, one.component.name) for found in reported for one in found}


def test_a_minipod_whose_leaves_are_alike_is_told_and_none_of_its_leaves() -> None:
    [anomaly] = _reported(_windows(), POD_PLACES)[25]

    assert _components(_windows(), POD_PLACES) == {("minipod", "pod1")}
    assert anomaly.detail["hosts"] == HOSTS[6:12]


def test_one_leaf_of_a_minipod_is_not_the_minipod() -> None:
    packets = _windows()
    packets[:, 9:12] = 1.0

    assert _components(packets, POD_PLACES) == {("leaf", "leaf2")}


def test_a_minipod_of_one_leaf_or_beside_a_congested_one_is_not_told() -> None:
    one_leaf = {host: (f"leaf{row // 6}", f"pod{row // 6}") for row, host in enumerate(HOSTS)}
    two = _windows()
    two[ONSET_WINDOW:, 12:18] = two[ONSET_WINDOW:, BEHIND]

    assert _components(_windows(), one_leaf) == set()
    assert _components(two, POD_PLACES) == set()


def test_of_two_minipods_either_may_be_as_it_should_be() -> None:
    halves = {host: (f"leaf{row // 6}", f"pod{row // 12}") for row, host in enumerate(HOSTS)}
    packets = _windows()
    packets[ONSET_WINDOW:, :6] = packets[ONSET_WINDOW:, BEHIND]

    assert _components(packets, halves) == set()
