"""``tocsin policy plan``: plans of actions that concern many machines."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from tocsin.schemas.errors import ConfigError
from tocsin.schemas.printable import json_text


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the plans to the parser."""
    plans = parser.add_subparsers(dest="plan", metavar="PLAN", required=True)
    groups = plans.add_parser("replay-groups", help="dual-phase replay: who replays with whom, and who is in both")
    groups.add_argument("--pp", type=int, required=True, metavar="N", help="pipeline stages of the job")
    groups.add_argument("--dp", type=int, required=True, metavar="N", help="data-parallel size of the job")
    groups.add_argument("--replicas", type=int, metavar="N", help="data-parallel size of a replay (default: largest)")
    groups.add_argument("--faulty", type=int, nargs=2, metavar="GROUP", help="faulty groups of the two phases")
    standby = plans.add_parser("standby", help="how many machines to keep warm")
    standby.add_argument("--machines", type=int, required=True, metavar="N", help="machines of the job")
    standby.add_argument(
        "--failure-rate", type=float, required=True, metavar="SHARE", help="share of machines that fails in a day"
    )
    standby.add_argument("--quantile", type=float, default=0.99, help="probability that they suffice (default: 0.99)")
    evict = plans.add_parser("over-evict", help="the smallest parallel group that holds all outliers, and its cost")
    _add_layout(evict)
    evict.add_argument(
        "--outliers", action="append", required=True, metavar="M,M", help="machines; given several times: rounds"
    )
    evict.add_argument("--most", type=int, default=16, metavar="N", help="largest group that may go (default: 16)")
    _add_layout(plans.add_parser("backup", help="the peer of each rank that keeps the second copy of its checkpoint"))
    for plan in plans.choices.values():
        plan.add_argument("--json", action="store_true", help="one JSON object")


def _add_layout(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a job's layout."""
    parser.add_argument(
        "--layout",
        required=True,
        metavar="tp=2,pp=4,dp=4",
        help="parallel dimensions, the one that changes fastest first",
    )
    parser.add_argument("--gpus-per-machine", type=int, default=8, metavar="N", help="ranks of a machine (default: 8)")


def plan_lines(args: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of a plan.

    Raises:
        ConfigError: an argument does not fit.
    """
    of_plan = {"replay-groups": _replay, "standby": _standby, "over-evict": _over_evict, "backup": _backup}
    found = of_plan[args.plan](args)
    if args.json:
        yield json_text(found)
        return
    for name, value in found.items():
        yield f"{name}: {'-' if value is None else value}"


def _replay(args: argparse.Namespace) -> dict[str, object]:
    """Return the groups of a dual-phase replay."""
    from tocsin.pipeline.actions.policy.plans.replay_groups import plan_replay

    plan = plan_replay(args.pp, args.dp, args.replicas)
    found: dict[str, object] = {
        "machines": plan.machine_count,
        "group_size": plan.group_size,
        "group_count": plan.group_count,
        "replicas": plan.replica_count,
        "first_phase": [list(plan.horizontal(index)) for index in range(plan.group_count)],
        "second_phase": [list(plan.vertical(index)) for index in range(plan.group_count)],
    }
    if args.faulty is not None:
        found["suspects"] = list(plan.suspects(*args.faulty))
    return found


def _standby(args: argparse.Namespace) -> dict[str, object]:
    """Return the number of standbys."""
    from tocsin.pipeline.actions.policy.plans.standby import standby_count

    return {"standbys": standby_count(args.machines, args.failure_rate, args.quantile)}


def _over_evict(args: argparse.Namespace) -> dict[str, object]:
    """Return the group that goes, or that checks are the way."""
    from tocsin.pipeline.actions.policy.plans.layout import parse_layout
    from tocsin.pipeline.actions.policy.plans.over_evict import over_evict, vote_of_rounds

    layout = parse_layout(args.layout, args.gpus_per_machine)
    rounds = [_machines(text) for text in args.outliers]
    plan = over_evict(layout, rounds[0], args.most) if len(rounds) == 1 else vote_of_rounds(layout, rounds, args.most)
    if plan is None:
        return {"group": None, "machines": [], "outliers": [], "healthy": 0, "instead": "stop-time checks"}
    return {
        "group": plan.dimension,
        "machines": list(plan.machines),
        "outliers": list(plan.outliers),
        "healthy": plan.healthy_count,
        "instead": None,
    }


def _backup(args: argparse.Namespace) -> dict[str, object]:
    """Return the peers of all ranks."""
    from tocsin.pipeline.actions.policy.plans.backup import plan_backup
    from tocsin.pipeline.actions.policy.plans.layout import parse_layout

    plan = plan_backup(parse_layout(args.layout, args.gpus_per_machine))
    return {"shares_no_group": plan.shares_no_group, "peers": list(plan.peers)}


def _machines(text: str) -> list[int]:
    """Return the machines of a text such as ``12,13``; an empty one is a round without outliers.

    Raises:
        ConfigError: it holds something else.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() for part in parts):
        raise ConfigError("--outliers", text, "numbers of machines with commas between them, from 0")
    return [int(part) for part in parts]
