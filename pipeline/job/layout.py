"""Derive how a job's ranks are laid out on its hosts from partial knowledge, when no topology was announced."""

from __future__ import annotations

from collections.abc import Mapping

_KNOWN_RATIO = 0.5
"""Fraction of the hosts whose ranks must be known; fewer do not prove a layout in blocks."""


def block_layout(known_hosts: Mapping[int, str], host_count: int, world_size: int) -> tuple[int, dict[int, str]]:
    """Return the number of ranks per host, and the host of each block of that many consecutive ranks.

    Launchers number ranks host by host. The host of one rank is taken as the host of its whole block only where no
    block has two hosts and no host has two blocks.

    Args:
        known_hosts: rank -> host, for the ranks whose host is known.
        host_count: number of hosts that report.
        world_size: number of ranks of the job.

    Returns:
        (ranks per host, {block number: host}); (1, {}) where the known ranks do not show blocks.
    """
    none: tuple[int, dict[int, str]] = 1, {}
    if host_count < 1 or world_size <= host_count or world_size % host_count:
        return none
    size = world_size // host_count
    of_block: dict[int, str] = {}
    for rank, host in known_hosts.items():
        if of_block.setdefault(rank // size, host) != host:
            return none
    is_one_to_one = len(set(of_block.values())) == len(of_block)
    return (size, of_block) if is_one_to_one and len(of_block) >= _KNOWN_RATIO * host_count else none
