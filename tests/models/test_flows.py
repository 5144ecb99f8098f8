"""Where a transfer stands, by chunk counters: Mycroft's table of states, one row each."""

from __future__ import annotations

import random

import pytest

from tocsin.models.flows import Flow, find_stuck_flow

Counters = tuple[int, int, int]


def _flows(of_host: dict[int, list[Counters]], usual: Counters = (103, 103, 103), hosts: int = 6) -> list[Flow]:
    """Two ranks a host; the counters of some, the usual ones of the others."""
    found = []
    for host in range(hosts):
        reported = of_host.get(host, [usual, usual])
        found += [Flow(2 * host + place, f"n{host}", 0, *counters) for place, counters in enumerate(reported)]
    return found


def _named(flows: list[Flow]) -> tuple[str, str] | None:
    stuck = find_stuck_flow(flows)
    return None if stuck is None else (stuck.flow.host, stuck.state)


@pytest.mark.parametrize(
    ("counters", "state"),
    [((106, 104, 102), "not_delivered"), ((106, 102, 102), "not_transmitted"), ((102, 102, 102), "gpu_not_ready")],
)
def test_the_machine_with_the_least_progress_is_named_by_where_its_chunks_lie(counters: Counters, state: str) -> None:
    flows = _flows({3: [counters, (102, 102, 102)]})

    assert _named(flows) == ("n3", state)
    assert find_stuck_flow(flows).flow.rank == 6  # type: ignore[union-attr]  # it was found


def test_whoever_takes_nothing_is_named_and_not_who_sends_to_it() -> None:
    """The sender's chunks are on their way, the receiver has the least behind it."""
    assert _named(_flows({2: [(108, 106, 104), (104, 104, 104)], 3: [(102, 102, 102)] * 2})) == (
        "n3",
        "receiver_not_ready",
    )


def test_of_several_with_chunks_on_their_way_the_one_that_is_last() -> None:
    several = {2: [(108, 106, 104)] * 2, 3: [(106, 104, 102)] * 2, 4: [(108, 107, 105)] * 2}

    assert _named(_flows(several)) == ("n3", "not_delivered")


@pytest.mark.parametrize(
    "flows",
    [
        _flows({}),
        _flows({}, usual=(0, 0, 0)),
        _flows({2: [(102, 102, 102)] * 2, 3: [(102, 102, 102)] * 2}),
        _flows({2: [(106, 104, 102)] * 2, 3: [(106, 104, 102)] * 2}),
        _flows({2: [(108, 106, 104)] * 2, 4: [(108, 106, 104)] * 2, 3: [(102, 102, 102)] * 2}),
        _flows({1: [(106, 104, 102)] * 2}, hosts=2),
        [],
    ],
    ids=["all-alike", "not-begun", "two-are-last", "two-hold-chunks", "last-takes-nothing", "two-machines", "nothing"],
)
def test_nobody_is_named_where_nobody_stands_out(flows: list[Flow]) -> None:
    assert _named(flows) is None


@pytest.mark.parametrize(
    ("elsewhere", "named"),
    [
        ((), ("n3", "receiver_not_ready")),
        (("n3",), ("n3", "receiver_not_ready")),
        (("n2",), ("n2", "not_delivered")),
        (("n5",), None),
    ],
    ids=["nothing-else", "the-receiver", "the-sender", "neither"],
)
def test_of_a_sender_and_its_receiver_something_else_tells_who(
    elsewhere: tuple[str, ...], named: tuple[str, str] | None
) -> None:
    """Its chunks lie because it does not send them, or because they are not taken."""
    flows = _flows({2: [(108, 106, 104), (104, 104, 104)], 3: [(102, 102, 102)] * 2})
    stuck = find_stuck_flow(flows, elsewhere)

    assert (None if stuck is None else (stuck.flow.host, stuck.state)) == named


def test_something_else_names_nobody_where_all_chunks_have_moved_alike() -> None:
    assert find_stuck_flow(_flows({}), ("n3",)) is None


def test_channels_are_compared_each_with_its_own() -> None:
    """A channel that carries less is behind on every machine."""
    flows = [Flow(host, f"n{host}", channel, *[100 - 40 * channel] * 3) for host in range(6) for channel in range(2)]
    assert _named(flows) is None

    flows[7] = Flow(3, "n3", 1, 64, 62, 59)
    assert _named(flows) == ("n3", "not_delivered")


def test_the_order_of_flows_changes_nothing() -> None:
    flows = _flows({3: [(106, 104, 102), (102, 102, 102)]})
    shuffled = random.Random(7).sample(flows, len(flows))

    assert find_stuck_flow(shuffled) == find_stuck_flow(flows)
