"""Find the host that holds up a collective that all members have entered, from its chunk counters.

After Mycroft (section 5, tables 3 and 4): every rank of a collective moves the same amount of data. Each chunk
passes three counters of its sender: copied by the GPU (1), posted to the network (2), acknowledged (3). In a stalled
transfer the flow with the least progress is the place of the stall. The pair of counters between which its chunks
lie tells the cause: 1 > 2 or 2 > 3 its network (or its receiver), 1 = 2 = 3 its GPU.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

FlowState = Literal["not_transmitted", "not_delivered", "receiver_not_ready", "gpu_not_ready"]
_LEAST_HOST_COUNT = 3


@dataclass(frozen=True, slots=True)
class Flow:
    """Chunk counters of one channel of one rank in one collective.

    Attributes:
        rank: global rank.
        host: host of the rank.
        channel: channel number.
        ready_count: chunks that the GPU copied to the send buffer.
        transmitted_count: chunks posted to the network.
        done_count: chunks acknowledged.
    """

    rank: int
    host: str
    channel: int
    ready_count: int
    transmitted_count: int
    done_count: int

    @property
    def is_open(self) -> bool:
        """Whether chunks are in flight: copied or posted, and not yet acknowledged."""
        return max(self.ready_count, self.transmitted_count) > self.done_count


@dataclass(frozen=True, slots=True)
class StuckFlow:
    """The flow at which a transfer is stalled.

    Attributes:
        flow: the flow with the least progress on that host.
        state: what the flow's counters say about the cause.
        peer_done_count: largest number of acknowledged chunks among all flows of this channel.
    """

    flow: Flow
    state: FlowState
    peer_done_count: int


def find_stuck_flow(flows: Sequence[Flow], elsewhere: Collection[str] = ()) -> StuckFlow | None:
    """Return the stalled flow of the one host that holds up a collective; None if no single host stands out.

    None also where fewer than three hosts are known or no chunk was ever moved.

    Args:
        flows: all known flows of one collective, none of which has moved for a while.
        elsewhere: hosts that other evidence shows to be in another operation than their peers. Chunks that wait for the
            network look the same at a sender and at a receiver that takes none. With such hosts, the answer is the only
            one of them that has chunks in flight, or None.
    """
    by_host: dict[str, list[Flow]] = {}
    most_done: dict[int, int] = {}
    for flow in flows:
        by_host.setdefault(flow.host, []).append(flow)
        most_done[flow.channel] = max(most_done.get(flow.channel, 0), flow.done_count)
    if len(by_host) < _LEAST_HOST_COUNT or not any(flow.ready_count or flow.done_count for flow in flows):
        return None
    behind = {host: max(most_done[flow.channel] - flow.done_count for flow in own) for host, own in by_host.items()}
    last = [host for host, chunks in behind.items() if chunks == max(behind.values())]
    open_hosts = [host for host, own in by_host.items() if any(flow.is_open for flow in own)]
    culprit = _culprit(last, open_hosts)
    if elsewhere and culprit not in elsewhere:
        elsewhere_open = [host for host in open_hosts if host in elsewhere]
        culprit = elsewhere_open[0] if len(elsewhere_open) == 1 else None
    if culprit is None or not (behind[culprit] or open_hosts):
        return None
    own = by_host[culprit]
    flow = max(own, key=lambda one: (one.is_open, most_done[one.channel] - one.done_count, -one.rank, -one.channel))
    return StuckFlow(flow, _state_of(flow, is_receiver=bool(open_hosts)), most_done[flow.channel])


def _culprit(last: Sequence[str], open_hosts: Sequence[str]) -> str | None:
    """Return the host that holds up a transfer, None if the evidence does not single one out.

    Args:
        last: hosts with the least progress.
        open_hosts: hosts with chunks in flight.
    """
    if len(open_hosts) == 1 and open_hosts[0] in last:
        return open_hosts[0]
    if len(last) != 1:
        return None
    # Several wait for credits of the one that takes nothing; or one alone has chunks on its way, to this one.
    return last[0] if last[0] in open_hosts or len(open_hosts) <= 1 else None


def _state_of(flow: Flow, *, is_receiver: bool) -> FlowState:
    """Return what a stalled flow's counters say; ``is_receiver``: other hosts have chunks in flight towards it."""
    if flow.transmitted_count > flow.done_count:
        return "not_delivered"
    if flow.ready_count > flow.transmitted_count:
        return "not_transmitted"
    return "receiver_not_ready" if is_receiver else "gpu_not_ready"


def find_backlogged(chunk_means: Mapping[str, float], least_count: float, least_ratio: float) -> list[str]:
    """Return hosts whose senders have far more chunks in flight than the median host, in ascending order.

    In a collective all flows move at the speed of the slowest one, and only that one has chunks in flight. Its sender
    fills its window; all others wait for data or credits (Mycroft: no component blocks the next one).

    Args:
        chunk_means: host -> mean number of chunks posted and not acknowledged, over its open flows.
        least_count: least number of chunks above the median.
        least_ratio: least ratio to the median.

    Returns:
        Hosts that pass both limits; empty with fewer than three hosts.
    """
    if len(chunk_means) < _LEAST_HOST_COUNT:
        return []
    usual = statistics.median(chunk_means.values())
    limit = max(usual + least_count, least_ratio * usual)
    return sorted(host for host, mean in chunk_means.items() if mean >= limit)
