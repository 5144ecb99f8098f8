"""Placement of a job of 10,000 hosts: reading the topology, its spread, the greedy plan and the optimisation.

Two clusters of 40 minipods: an easy one, where whole pipeline groups fit, and a tight one, whose minipods are full and
of uneven sizes so that some groups have to be cut. The job's hosts stand in random order.
"""

from __future__ import annotations

import time

import numpy as np

from tocsin.models.placement.groups import IntArray, block_coordinates, groups_of_coordinates
from tocsin.models.placement.mip import solve
from tocsin.models.placement.problem import PlacementProblem, greedy
from tocsin.models.placement.replacement import advise
from tocsin.models.placement.spread import job_spread
from tocsin.schemas.formats.cluster_topology import read_topology

HOSTS = 10_000
PODS = 40
STAGES = 8
LIMIT_SECONDS = 40.0


def uneven_sizes(rng: np.random.Generator) -> IntArray:
    """Hosts of the minipods, 10,000 in all."""
    cuts = np.sort(rng.choice(np.arange(1, HOSTS), PODS - 1, replace=False))
    return np.diff(np.concatenate([[0], cuts, [HOSTS]])).astype(np.int64)


def topology_of(sizes: IntArray) -> str:
    """``scontrol show topology`` of the minipods, leaves of up to 32 hosts."""
    lines, host = [], 0
    for pod, size in enumerate(sizes.tolist()):
        leaves = [(at, min(32, size - at)) for at in range(0, size, 32)]
        for at, count in leaves:
            first = host + at
            lines.append(f"SwitchName=p{pod}l{at // 32} Level=0 Nodes=n[{first:05d}-{first + count - 1:05d}]")
        lines.append(f"SwitchName=pod{pod} Level=1 Switches=p{pod}l[0-{len(leaves) - 1}]")
        host += size
    return "\n".join(lines)


def timed(name: str, start: float, said: str) -> float:
    """Print a line, and return the time of now."""
    now = time.perf_counter()
    print(f"  {name:34} {now - start:7.2f} s  {said}", flush=True)
    return now


def one(name: str, sizes: IntArray, used: int, rng: np.random.Generator) -> None:
    """Measure and re-place a job on ``used`` of the hosts; the others are spares."""
    print(f"{name}: {used} hosts of {HOSTS}, {PODS} minipods of {sizes.min()} to {sizes.max()}, {STAGES} stages")
    start = begin = time.perf_counter()
    topology = read_topology(topology_of(sizes), "topology")
    names = {pod: at for at, pod in enumerate(topology.minipods)}
    pods = np.array([names[place.minipod] for place in topology.places.values()], np.int64)
    rng.shuffle(pods)
    start = timed("reading the topology", start, f"{len(topology.places)} hosts, {len(topology.leaves)} leaves")
    groups = groups_of_coordinates(block_coordinates(used, 8, 8, STAGES))
    now = job_spread(groups, pods[:used], 0.3)
    start = timed("groups and their spread", start, f"weighted minipods {now.weighted_pods:.2f}")
    for stages, alpha in ((STAGES, 0.3), (used // STAGES, 0.7)):
        problem = PlacementProblem(used // stages, stages, np.bincount(pods).astype(np.int64), alpha, 1 - alpha)
        quick = greedy(problem)
        start = timed(f"greedy, groups of {stages}", start, f"objective {problem.objective(quick):.2f}")
        plan = solve(problem, LIMIT_SECONDS / 2)
        proof = "optimal" if plan.is_solved else f"gap {100 * plan.gap_ratio:.1f} %"
        start = timed(
            f"mip, groups of {stages}",
            start,
            f"objective {plan.objective_count:.2f}, bound {plan.bound_count:.2f}, {proof}",
        )
    advice = advise(groups, pods[:used], pods[used:], 0.3, LIMIT_SECONDS / 2)
    best = advice.best
    assert best is not None
    said = f"weighted minipods {best.spread.weighted_pods:.2f} by {best.method}, {best.moved} places change"
    timed("the whole advice", start, said)
    print(f"  in all {time.perf_counter() - begin:.1f} s")


def main() -> None:
    """Print the times of both clusters."""
    rng = np.random.default_rng(33)
    one("easy", np.full(PODS, HOSTS // PODS, np.int64), 8_192, rng)
    one("tight", uneven_sizes(rng), HOSTS, rng)
