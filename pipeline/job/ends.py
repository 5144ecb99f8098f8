"""Ends of a job's processes: in order, killed last, or not known."""

from __future__ import annotations

from collections.abc import Mapping
from signal import SIGKILL

from tocsin.pipeline.job.facts import HostFacts, RankFacts, left_in_order
from tocsin.schemas.records import NS_PER_SECOND

_MUTE_AFTER_NS = 8 * NS_PER_SECOND
"""A host that is silent for so long has fallen silent: it speaks at least once a metric slice (5 s)."""


def killed_last(ranks: Mapping[int, RankFacts], world_size: int) -> frozenset[int]:
    """Return the ranks whose processes lived until all others had left, and then had to be killed.

    A launcher ends what is left of a job with SIGTERM first, so a process that only SIGKILL ends did not run.
    The result is empty unless at least half of the ranks left in another way.

    Args:
        ranks: rank -> its facts.
        world_size: ranks of the job.
    """
    left = {rank: facts.exit for rank, facts in ranks.items() if facts.exit is not None}
    others = [end.ts_ns for end in left.values() if end.signal != SIGKILL]
    if 2 * len(others) < world_size or len(others) == len(left):
        return frozenset()
    last_ns = max(others)
    return frozenset(rank for rank, end in left.items() if end.signal == SIGKILL and end.ts_ns > last_ns)


def have_ended(ranks: Mapping[int, RankFacts], hosts: Mapping[str, HostFacts]) -> bool:
    """Return whether the job is over: most ranks left in order, and the hosts of the others are silent.

    Args:
        ranks: rank -> its facts, at least one.
        hosts: host -> its facts, at least one.
    """
    newest_ns = max(facts.last_seen_ns for facts in hosts.values())
    left = [facts for facts in ranks.values() if left_in_order(facts)]
    rest = [facts for facts in ranks.values() if not left_in_order(facts)]
    mute = [facts for facts in rest if facts.exit is None and is_mute(hosts.get(facts.host), newest_ns)]
    return len(left) > len(rest) and len(mute) == len(rest)


def all_left(ranks: Mapping[int, RankFacts]) -> bool:
    """Return whether the process of each rank is known to be over, however it ended."""
    return all(facts.exit is not None or facts.bye_ns for facts in ranks.values())


def is_mute(facts: HostFacts | None, newest_ns: int) -> bool:
    """Return whether a host had fallen silent while others still spoke; the end of its ranks cannot be heard.

    Args:
        facts: the host's facts, None = it never spoke.
        newest_ns: when any host was last heard.
    """
    return facts is None or newest_ns - facts.last_seen_ns >= _MUTE_AFTER_NS
