"""What ``tocsin placement`` found, as sentences and tables, and as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tocsin.cli.placement_input import PlacedJob
from tocsin.models.placement.replacement import AdviceReason, CandidatePlacement, PlacementAdvice
from tocsin.models.placement.spares import RankedSpare
from tocsin.models.placement.spread import JobSpread
from tocsin.schemas.formats.cluster_topology import ClusterTopology
from tocsin.schemas.kinds import GroupKind
from tocsin.schemas.printable import counted, json_text, plain

MOST_ROWS = 12
"""Most lines of a table; JSON has all."""


@dataclass(frozen=True, slots=True)
class JudgedPlacement:
    """All that is known of one job's placement.

    Attributes:
        job: the job.
        advice: its spread, and other placements.
        evicted: host for which spares were ranked, "" for none.
        spares: the spares, the best first.
    """

    job: PlacedJob
    advice: PlacementAdvice
    evicted: str
    spares: tuple[RankedSpare, ...]

    @property
    def moves(self) -> list[tuple[str, str]]:
        """(host, host that takes its place) of the best placement, for the places that change."""
        best = self.advice.best
        if best is None:
            return []
        names = (*self.job.hosts, *self.job.spares)
        return [
            (self.job.hosts[at], names[new]) for at, new in enumerate(best.new_host.tolist()) if names[new] != names[at]
        ]


def as_json(found: JudgedPlacement) -> dict[str, object]:
    """Return the findings as a JSON object."""
    job, advice = found.job, found.advice
    return {
        "job": job.name,
        "hosts": len(job.hosts),
        "ranks": job.ranks,
        "level": job.level,
        "alpha": advice.now.alpha_ratio,
        "now": _spread_json(job, advice.now),
        "groups": [
            {"kind": str(kind), "name": name, "hosts": int(size), "pods_touched": int(touched)}
            for kind, groups in job.groups.items()
            for name, size, touched in zip(groups.names, groups.sizes, advice.now.kinds[kind].touched, strict=True)
        ],
        "reason": str(advice.reason),
        "candidates": [
            {
                "method": one.method,
                "unit": str(one.unit),
                **_spread_json(job, one.spread),
                "moved_hosts": one.moved,
                "objective": one.plan.objective_count,
                "bound": one.plan.bound_count,
                "gap_ratio": one.plan.gap_ratio,
            }
            for one in advice.candidates
        ],
        "moves": [{"host": host, "new_host": new} for host, new in found.moves],
        "evicted": found.evicted,
        "spares": [
            {
                "host": job.spares[one.spare_index],
                "pod": job.pods[job.spare_pod[one.spare_index]],
                **_spread_json(job, one.spread),
            }
            | {"change": one.change_count}
            for one in found.spares
        ],
        "summary": sentence_of(found),
    }


def _spread_json(job: PlacedJob, spread: JobSpread) -> dict[str, object]:
    """Return the figures of a spread, and the group that is spread most of each kind."""
    return {
        "max_pods_dp": spread.max_pods_dp,
        "max_pods_pp": spread.max_pods_pp,
        "weighted_pods": spread.weighted_pods,
        "weighted_spread": spread.weighted_spread,
        "worst_groups": {str(kind): job.groups[kind].names[of.worst_index] for kind, of in spread.kinds.items()},
    }


def sentence_of(found: JudgedPlacement) -> str:
    """Return what re-placing would gain, in one sentence or two."""
    advice, level = found.advice, found.job.level
    now = advice.now.weighted_pods
    if all(of.max_pod_count <= 1 for kind, of in advice.now.kinds.items() if kind in (GroupKind.DP, GroupKind.PP)):
        return f"No data-parallel or pipeline group touches a second {level}: nothing is spread."
    if advice.reason is AdviceReason.UNEQUAL_GROUPS:
        return "No other placement is proposed: the groups share hosts, or differ in size."
    best = advice.best
    if best is None:
        return f"No better placement was found; the weighted number of {_plural(level)} is {now:.2f}."
    moved = f"{counted(best.moved, 'place')} of {len(found.job.hosts)}"
    changed = f"{moved} {'gets' if best.moved == 1 else 'get'} another host"
    return (
        f"Re-placing lowers the weighted number of {_plural(level)} from {now:.2f} to {best.spread.weighted_pods:.2f} "
        f"(data-parallel groups {advice.now.max_pods_dp} to {best.spread.max_pods_dp}, pipeline groups "
        f"{advice.now.max_pods_pp} to {best.spread.max_pods_pp}); {changed}."
    )


def _plural(level: str) -> str:
    """Return the plural of a level's name."""
    return "leaves" if level == "leaf" else f"{level}s"


def text_of(found: JudgedPlacement) -> str:
    """Return the sentence and the tables."""
    job, advice = found.job, found.advice
    sizes = f"{counted(len(job.hosts), 'host')}, {counted(job.ranks, 'rank')}"
    lines = [sentence_of(found), "", plain(f"{job.name}: {sizes}, {_count(len(job.pods), job.level)}"), ""]
    lines += _kinds(job, advice.now)
    lines += ["", *_candidates(advice)]
    if found.moves:
        lines += ["", *_moves(found)]
    if found.evicted:
        lines += ["", *_spares(found)]
    return "\n".join(lines)


def _count(count: int, level: str) -> str:
    """Return a number of minipods or leaves."""
    return f"1 {level}" if count == 1 else f"{count} {_plural(level)}"


def _kinds(job: PlacedJob, spread: JobSpread) -> list[str]:
    """Return the table of groups by kind."""
    lines = [f"{'kind':6} groups  hosts  {_plural(job.level) + ' max':>12}  mean  spread D  the group"]
    for kind, of in spread.kinds.items():
        groups = job.groups[kind]
        name = plain(groups.names[of.worst_index]) if of.max_pod_count > 1 else "-"
        sizes = f"{len(groups.names):>6}  {int(groups.sizes.max()):>5}"
        pods = f"{of.max_pod_count:>12}  {of.mean_pods:>4.2f}  {of.max_spread:>8}"
        lines.append(f"{kind!s:6} {sizes}  {pods}  {name}")
    return lines


def _candidates(advice: PlacementAdvice) -> list[str]:
    """Return the table of placements."""
    now = advice.now
    head = f"{'placement':14} dp  pp  weighted  spread D  places changed  objective  bound    gap"
    weighted = f"{now.weighted_pods:>8.2f}  {now.weighted_spread:>8.2f}"
    first = f"{'now':14} {now.max_pods_dp:>2}  {now.max_pods_pp:>2}  {weighted}"
    return [head, first, *map(_candidate, advice.candidates)]


def _candidate(one: CandidatePlacement) -> str:
    """Return the line of a placement."""
    spread, plan = one.spread, one.plan
    name = f"{one.method}, {one.unit}"
    return (
        f"{name:14} {spread.max_pods_dp:>2}  {spread.max_pods_pp:>2}  {spread.weighted_pods:>8.2f}  "
        f"{spread.weighted_spread:>8.2f}  {one.moved:>14}  {plan.objective_count:>9.2f}  {plan.bound_count:>5.2f}  "
        f"{100 * plan.gap_ratio:>3.0f} %"
    )


def _moves(found: JudgedPlacement) -> list[str]:
    """Return the list of places that change."""
    lines = ["place of        taken by"]
    lines += [f"{plain(host):15} {plain(new)}" for host, new in found.moves[:MOST_ROWS]]
    if len(found.moves) > MOST_ROWS:
        lines.append(f"… {len(found.moves) - MOST_ROWS} more (--json has all)")
    return lines


def _spares(found: JudgedPlacement) -> list[str]:
    """Return the table of spares for an evicted host."""
    job = found.job
    if not found.spares:
        return [f"no spares were named (--spare) for {plain(found.evicted)}"]
    lines = [f"{'spare for ' + plain(found.evicted):20} {job.level:12} dp  pp  weighted  spread D  change"]
    for one in found.spares[:MOST_ROWS]:
        pod = plain(job.pods[job.spare_pod[one.spare_index]])
        spread = one.spread
        lines.append(
            f"{plain(job.spares[one.spare_index]):20} {pod:12} {spread.max_pods_dp:>2}  {spread.max_pods_pp:>2}  "
            f"{spread.weighted_pods:>8.2f}  {spread.weighted_spread:>8.2f}  {one.change_count:>+6.2f}"
        )
    if len(found.spares) > MOST_ROWS:
        lines.append(f"… {len(found.spares) - MOST_ROWS} more (--json has all)")
    return lines


def of_cluster(topology: ClusterTopology, *, as_json: bool) -> str:
    """Return a cluster's topology as a table of minipods, or as JSON."""
    if as_json:
        hosts = {host: {"leaf": place.leaf, "minipod": place.minipod} for host, place in topology.places.items()}
        return json_text({"hosts": hosts, "leaves": len(topology.leaves), "minipods": len(topology.minipods)})
    hosts_of = Counter(place.minipod for place in topology.places.values())
    leaves_of = Counter(pod for _, pod in {(p.leaf, p.minipod) for p in topology.places.values() if p.leaf})
    sizes = (
        f"{counted(len(topology.places), 'host')}, {_count(len(topology.leaves), 'leaf')}, "
        f"{_count(len(topology.minipods), 'minipod')}"
    )
    lines = [sizes, "", f"{'minipod':20} leaves  hosts"]
    lines += [
        f"{plain(pod) or '(unknown)':20} {leaves_of[pod]:>6}  {count:>5}"
        for pod, count in hosts_of.most_common(MOST_ROWS)
    ]
    if len(hosts_of) > MOST_ROWS:
        lines.append(f"… {len(hosts_of) - MOST_ROWS} more (--json has all)")
    return "\n".join(lines)
