"""Whose transfer stands, of a collective that all its members have entered: chunk counters in, a machine out.

After Mycroft (section 5, tables 3 and 4): every rank of a collective moves the same amount of data, and each chunk
passes three counters of its sender: copied by the GPU (1), posted to the network (2), acknowledged (3). Where a
transfer stands, the flow with the least progress is where it stands, and between which counters its chunks lie tells
what holds it: 1 > 2 or 2 > 3 its network (or its receiver), 1 = 2 = 3 its GPU.
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
    """One channel of one rank in one collective, as it stands.

    Attributes:
        rank: global rank.
        host: its machine.
        channel: the channel.
        ready_count: chunks that its GPU copied to the send buffer.
        transmitted_count: chunks that were posted to the network.
        done_count: chunks that were acknowledged.
    """

    rank: int
    host: str
    channel: int
    ready_count: int
    transmitted_count: int
    done_count: int

    @property
    def is_open(self) -> bool:
        """Whether chunks of it are on their way."""
        return max(self.ready_count, self.transmitted_count) > self.done_count


@dataclass(frozen=True, slots=True)
class StuckFlow:
    """Where a transfer stands.

    Attributes:
        flow: the flow with the least progress of that machine.
        state: what its counters say.
        peer_done_count: the most chunks that another rank's flow of this channel has behind it.
    """

    flow: Flow
    state: FlowState
    peer_done_count: int


def find_stuck_flow(flows: Sequence[Flow], elsewhere: Collection[str] = ()) -> StuckFlow | None:
    """The one machine at which the transfers of one collective stand; None: nobody stands out, or too few tell.

    Args:
        flows: all that are known of one collective, none of which has moved for a while.
        elsewhere: machines of which something else shows that they are not where the others are. Chunks that wait for
            the network look alike at a sender and at a receiver that takes none: then it is the one of these that holds
            chunks, and no other machine is named.
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
        told = [host for host in open_hosts if host in elsewhere]
        culprit = told[0] if len(told) == 1 else None
    if culprit is None or not (behind[culprit] or open_hosts):
        return None
    own = by_host[culprit]
    flow = max(own, key=lambda one: (one.is_open, most_done[one.channel] - one.done_count, -one.rank, -one.channel))
    return StuckFlow(flow, _state_of(flow, is_receiver=bool(open_hosts)), most_done[flow.channel])


def _culprit(last: Sequence[str], open_hosts: Sequence[str]) -> str | None:
    """Of the machines with the least progress and those whose chunks are on their way, the one that holds them up."""
    if len(open_hosts) == 1 and open_hosts[0] in last:
        return open_hosts[0]
    if len(last) != 1:
        return None
    # Several wait for credits of the one that takes nothing; or one alone has chunks on its way, to this one.
    return last[0] if last[0] in open_hosts or len(open_hosts) <= 1 else None


def _state_of(flow: Flow, *, is_receiver: bool) -> FlowState:
    if flow.transmitted_count > flow.done_count:
        return "not_delivered"
    if flow.ready_count > flow.transmitted_count:
        return "not_transmitted"
    return "receiver_not_ready" if is_receiver else "gpu_not_ready"


def find_backlogged(chunk_means: Mapping[str, float], least_count: float, least_ratio: float) -> list[str]:
    """Hosts whose senders have many more chunks on their way than those of the others, in ascending order.

    In a collective all flows move at the pace of the slowest one. Only at that one the chunks lie: its sender fills its
    window, all others wait for data or credits with an empty one (Mycroft: no component blocks the next one).

    Args:
        chunk_means: host -> mean of the chunks that were posted to the network and not acknowledged, of its open flows.
        least_count: of so many chunks more than the others have.
        least_ratio: and so many times what they have.
    """
    if len(chunk_means) < _LEAST_HOST_COUNT:
        return []
    usual = statistics.median(chunk_means.values())
    limit = max(usual + least_count, least_ratio * usual)
    return sorted(host for host, mean in chunk_means.items() if mean >= limit)
