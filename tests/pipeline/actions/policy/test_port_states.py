"""Which events of network ports are alerts of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.pipeline.actions.policy.samples import A, at, event, ladder, verdict
from tocsin.pipeline.actions.policy.controller_judge import ControllerJudge
from tocsin.pipeline.actions.policy.heard_codes import concerns_policy
from tocsin.pipeline.actions.policy.port_states import PortStates
from tocsin.pipeline.actions.policy.replay import DecisionOutcome, replay
from tocsin.schemas.records import Event

Told = tuple[float, str, str]
"""When, the port, and its state."""


def port_events(told: Sequence[Told], on: str = "n1") -> list[Event]:
    """Events of ports of a host."""
    return [event("ib_port", {"port": port, "state": state}, seconds, on=on) for seconds, port, state in told]


def again(seconds: Sequence[float], port: str = "mlx5_0/1") -> list[Told]:
    """A port is told to be down, several times."""
    return [(one, port, "down") for one in seconds]


@pytest.mark.parametrize(
    ("told", "onset_seconds", "kind"),
    [
        (again([5, 15, 25, 35, 45]), 5, "notify"),
        (again([5, 15, 25, 35, 45]), 44, "notify"),
        ([*again([5]), *again([11], "mlx5_1/1")], 5, "notify"),
        ([*again([5]), *again([11], "mlx5_1/1")], 11, "notify"),
        ([*again([5, 15, 25]), *again([8, 18, 28], "mlx5_1/1"), *again([35], "mlx5_2/1")], 5, "notify"),
        ([(5, "mlx5_0/1", "down"), (7, "mlx5_0/1", "active"), (9, "mlx5_0/1", "down")], 5, "notify"),
        ([(5, "mlx5_0/1", "down"), (20, "mlx5_0/1", "active"), (40, "mlx5_0/1", "down")], 5, "evict"),
        ([(5, "mlx5_0/1", "down"), (20, "mlx5_0/1", "active"), (40, "mlx5_0/1", "down")], 40, "evict"),
        ([*again([5]), *again([50], "mlx5_1/1")], 5, "evict"),
        ([*again([5, 15, 25, 35, 45]), *again([50], "mlx5_1/1")], 5, "evict"),
        ([(5, "mlx5_0/1", "down"), (20, "mlx5_0/1", "active")], 50, "evict"),
    ],
)
def test_a_new_moment_is_a_new_alert_and_a_state_that_is_told_again_is_none(
    told: list[Told], onset_seconds: float, kind: str
) -> None:
    it = ladder()
    for one in sorted(port_events(told), key=lambda each: each.ts_ns):
        it.on_event(one)
    found = it.on_verdict(verdict("nic_dropout", seconds=onset_seconds), at(55))

    assert [one.kind.value for one in found] == [kind]


def test_a_verdict_that_stands_does_not_hide_the_next_flap() -> None:
    told = [(5, "mlx5_0/1", "down"), (20, "mlx5_0/1", "active"), (60, "mlx5_0/1", "down")]
    one = verdict("nic_dropout", seconds=5)
    updates = [replace(one, update=n, detected_ns=at(7 + 15 * n)) for n in range(6)]
    found = list(replay(updates, port_events(told), ControllerJudge(ladder())))

    assert [(each.at_ns, each.kind, each.outcome) for each in found] == [
        (at(7), A.NOTIFY, DecisionOutcome.NOTIFY),
        (at(67), A.EVICT, DecisionOutcome.ACT),
    ]


def test_a_port_that_is_told_to_be_down_for_five_minutes_is_no_flap() -> None:
    it = ladder()
    for one in port_events(again(range(5, 320, 10))):
        it.on_event(one)

    assert [one.kind for one in it.on_verdict(verdict("nic_dropout", seconds=314), at(316))] == [A.EVICT]


def test_a_flap_whose_end_was_never_told_does_not_last_until_the_next_day() -> None:
    it = ladder()
    for one in port_events(again([5, 86_400])):
        it.on_event(one)

    assert [one.kind for one in it.on_verdict(verdict("nic_dropout", seconds=86_400), at(86_402))] == [A.NOTIFY]


def test_ports_of_other_hosts_are_others() -> None:
    ports = PortStates(5.0)
    first, second = (port_events(again([seconds]), on)[0] for seconds, on in ((5, "n1"), (6, "n2")))

    assert (ports.note(first), ports.note(second)) == (at(5), at(6))


def test_a_port_that_was_down_before_anybody_looked_is_no_alert_and_is_not_up() -> None:
    ports = PortStates(5.0)
    at_start = event("ib_port", {"port": "mlx5_0/1", "state": "down", "at_start": True}, 20)

    assert ports.note(port_events(again([5]))[0]) == at(5)
    assert ports.note(at_start) is None
    assert ports.note(port_events(again([40]))[0]) == at(5)


def test_the_ladder_hears_of_a_port_that_is_up_again() -> None:
    [up] = port_events([(5, "mlx5_0/1", "active")])

    assert concerns_policy(up)


def test_a_restored_ladder_knows_the_ports() -> None:
    it, other = ladder(), ladder()
    it.on_event(port_events(again([5]))[0])
    other.restore(it.snapshot())
    other.on_event(port_events(again([100]))[0])

    assert [one.kind for one in other.on_verdict(verdict("nic_dropout", seconds=100), at(102))] == [A.NOTIFY]
