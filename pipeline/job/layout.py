"""How a job's ranks lie on its hosts, where no topology tells it and some events name both."""

from __future__ import annotations

from collections.abc import Mapping

_TOLD_RATIO = 0.5
"""Of so many hosts a rank must be known: fewer do not show that ranks lie in blocks."""


def block_layout(told: Mapping[int, str], host_count: int, world_size: int) -> tuple[int, dict[int, str]]:
    """Ranks a host, and the host of each block of so many ranks; none where what is known shows no blocks.

    Launchers number ranks host by host. Whoever runs a rank of a block runs all of it, if no block has two hosts, no
    host two blocks, and the blocks are as many as the hosts.

    Args:
        told: rank -> its host, of the ranks of which it is known.
        host_count: hosts that report.
        world_size: ranks of the job.
    """
    none: tuple[int, dict[int, str]] = 1, {}
    if host_count < 1 or world_size <= host_count or world_size % host_count:
        return none
    size = world_size // host_count
    of_block: dict[int, str] = {}
    for rank, host in told.items():
        if of_block.setdefault(rank // size, host) != host:
            return none
    is_one_to_one = len(set(of_block.values())) == len(of_block)
    return (size, of_block) if is_one_to_one and len(of_block) >= _TOLD_RATIO * host_count else none
