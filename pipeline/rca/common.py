"""Helpers shared by root-cause rules: suspects, names for sentences, and components that hosts have in common."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.job_key import is_lone
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Component, ComponentKind, Suspect


def suspects_of(graph: JobGraph, ranks: Iterable[int]) -> tuple[Suspect, ...]:
    """Return one suspect per host that runs any of these ranks, and one per rank whose host is unknown.

    Hosts come first, by name; each host suspect lists its given ranks, ascending.
    """
    by_host: dict[str, list[int]] = {}
    hostless: list[int] = []
    for rank in sorted(ranks):
        host = graph.host_of(rank)
        if host and not is_lone(host):
            by_host.setdefault(host, []).append(rank)
        else:
            hostless.append(rank)
    hosts = [Suspect(Component(ComponentKind.HOST, host), tuple(by_host[host])) for host in sorted(by_host)]
    return (*hosts, *(Suspect(Component(ComponentKind.RANK, str(rank)), (rank,)) for rank in hostless))


TOGETHER_NS = 60 * NS_PER_SECOND
"""Greatest distance, in nanoseconds, between the onset of slow ranks without a known host and that of a deviating
machine. Within it, the ranks are taken to run on that machine if it is the only one. Onsets of one fault, as steps and
as metrics show it, lie some ten seconds apart; half a minute where steps are long."""


def names_of(graph: JobGraph, ranks: Iterable[int]) -> str:
    """Return ranks and their hosts as text, such as ``rank 3 on n03, rank 5 on n04``."""
    names = []
    for rank in sorted(ranks):
        host = graph.host_of(rank) or "?"
        names.append(f"rank {rank}" if is_lone(host) else f"rank {rank} on {host}")
    return ", ".join(names)


def gpus_of(graph: JobGraph, ranks: Iterable[int]) -> str:
    """Return the GPU numbers of ranks as text, such as `` (GPU 3)``.

    Only GPUs of hosts with more than one rank are listed; the text is empty where none is.
    """
    places = [graph.places[rank] for rank in sorted(ranks) if rank in graph.places]
    numbers = [place.gpu for place in places if place.gpu >= 0 and len(graph.ranks_of_host(place.host)) > 1]
    return f" (GPU {', '.join(map(str, numbers))})" if numbers else ""


def common_component(graph: JobGraph, hosts: Collection[str]) -> Component | None:
    """Return the leaf switch that all these hosts hang on, else their minipod, else None.

    None also for fewer than two hosts.
    """
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
    """Return whether these are all hosts behind the leaf or minipod that they share, and the job has other hosts.

    More hosts than chance would hit at once then failed together, so the shared component is the likely cause.
    """
    common = common_component(graph, hosts)
    if common is None:
        return False
    names = {place.host: place.leaf if common.kind is ComponentKind.LEAF else place.minipod
             for place in graph.places.values()}  # fmt: skip
    behind = {host for host, name in names.items() if name == common.name}
    return behind == set(hosts) and len(behind) < len(names)


def few_hosts(graph: JobGraph, ratio: float) -> int:
    """Return how many hosts may be at fault at once: this share of the job's hosts, at least 1.

    More hosts than that point to a cause outside the machines.
    """
    return max(1, int(ratio * len(graph.hosts)))


_FEWEST_HOSTS = 5
"""Fewest hosts of a job in which two may be suspected at once: three healthy ones outvote two."""


def may_fail_together(graph: JobGraph, hosts: Collection[str]) -> bool:
    """Return whether these are exactly two hosts of a job with at least five.

    Two hosts may fail alike at once without sharing any component that the job knows of.
    """
    return len(hosts) == 2 and len(graph.hosts) >= _FEWEST_HOSTS  # a pair
