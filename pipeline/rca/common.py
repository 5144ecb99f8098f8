"""Small pieces that all explanations share."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.job_key import is_lone
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Component, ComponentKind, Suspect


def suspects_of(graph: JobGraph, ranks: Iterable[int]) -> tuple[Suspect, ...]:
    """The hosts of these ranks with the ranks beside them; ranks where no host is known."""
    by_host: dict[str, list[int]] = {}
    lone: list[int] = []
    for rank in sorted(ranks):
        host = graph.host_of(rank)
        if host and not is_lone(host):
            by_host.setdefault(host, []).append(rank)
        else:
            lone.append(rank)
    hosts = [Suspect(Component(ComponentKind.HOST, host), tuple(by_host[host])) for host in sorted(by_host)]
    return (*hosts, *(Suspect(Component(ComponentKind.RANK, str(rank)), (rank,)) for rank in lone))


TOGETHER_NS = 60 * NS_PER_SECOND
"""Ranks of which nobody knows the host became slow within this of a machine that differs: they run on it, if it is the
only one. Steps and metrics tell the begin of one fault some ten seconds apart, half a minute where steps are long."""


def names_of(graph: JobGraph, ranks: Iterable[int]) -> str:
    """For a sentence: ``rank 3 on n03``."""
    names = []
    for rank in sorted(ranks):
        host = graph.host_of(rank) or "?"
        names.append(f"rank {rank}" if is_lone(host) else f"rank {rank} on {host}")
    return ", ".join(names)


def gpus_of(graph: JobGraph, ranks: Iterable[int]) -> str:
    """For a sentence: `` (GPU 3)``, where a machine has ranks on several GPUs; "" where that tells nothing."""
    places = [graph.places[rank] for rank in sorted(ranks) if rank in graph.places]
    numbers = [place.gpu for place in places if place.gpu >= 0 and len(graph.ranks_of_host(place.host)) > 1]
    return f" (GPU {', '.join(map(str, numbers))})" if numbers else ""


def common_component(graph: JobGraph, hosts: Collection[str]) -> Component | None:
    """The leaf switch that all of several hosts hang on, else their minipod; None where they share none."""
    if len(hosts) < 2:
        return None
    places = [place for place in graph.places.values() if place.host in hosts]
    for kind, names in (
        (ComponentKind.LEAF, {place.leaf for place in places}),
        (ComponentKind.MINIPOD, {place.minipod for place in places}),
    ):
        name = names.pop() if len(names) == 1 else ""
        if name:
            return Component(kind, name)
    return None


def is_whole(graph: JobGraph, hosts: Collection[str]) -> bool:
    """Whether these are all of the job's hosts behind the component that they share, and there are others.

    More hosts than chance would strike at once: they fell together because what they hang on fell.
    """
    common = common_component(graph, hosts)
    if common is None:
        return False
    names = {place.host: place.leaf if common.kind is ComponentKind.LEAF else place.minipod
             for place in graph.places.values()}  # fmt: skip
    behind = {host for host, name in names.items() if name == common.name}
    return behind == set(hosts) and len(behind) < len(names)


def few_hosts(graph: JobGraph, ratio: float) -> int:
    """How many hosts may be at fault together: more of them share a cause outside."""
    return max(1, int(ratio * len(graph.hosts)))


_FEWEST_HOSTS = 5
"""Three that are as ever outvote two."""


def may_fail_together(graph: JobGraph, hosts: Collection[str]) -> bool:
    """Whether these are two of five or more: so many may fail alike at once, and share nothing that the job knows."""
    return len(hosts) == 2 and len(graph.hosts) >= _FEWEST_HOSTS  # a pair
