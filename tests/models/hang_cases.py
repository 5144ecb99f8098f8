"""A small model of a training job that gets stuck: programs of a pp x dp x tp grid, and faults.

Every rank runs its program's operations in order; a collective ends when all members
are in it, a send when its receive is there. ``ahead`` operations may be issued before
the oldest has ended (NCCL); 1 is a program that waits for each (gloo).
"""

from __future__ import annotations

import json
import pickle
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tocsin.models.hang import GroupInfo, HangInput, OpState, RankWait

KINDS = ("cpu_stall", "stopped", "no_dump", "skip", "skip_p2p", "wrong_op", "gpu_error", "gpu_stall_timed")
"""What strikes one rank: its program stands; the process is stopped; it leaves no dump; it leaves
out one operation; it issues another operation; its device dies and no completion is seen any more;
its device stands and starts are recorded."""


@dataclass(frozen=True)
class Op:
    comm_id: str
    name: str
    msg_bytes: int
    peer: int = -1
    seq: int = 0


@dataclass
class Stuck:
    """A job that stands still."""

    groups: tuple[GroupInfo, ...]
    states: dict[int, RankWait]
    programs: dict[int, list[Op]]
    silent: frozenset[int] = frozenset()
    facts: dict[int, str] = field(default_factory=dict)

    @property
    def data(self) -> HangInput:
        return HangInput(
            self.groups,
            tuple(state for rank, state in self.states.items() if rank not in self.silent),
            silent=self.silent,
            facts=self.facts,
            world_size=len(self.states),
        )


def grid_groups(pp: int, dp: int, tp: int) -> tuple[GroupInfo, ...]:
    rank = {(p, d, t): (p * dp + d) * tp + t for p in range(pp) for d in range(dp) for t in range(tp)}
    groups = [GroupInfo("world", "world", tuple(rank.values()))]
    groups += [
        GroupInfo(f"tp{p}.{d}", "tp", tuple(rank[p, d, t] for t in range(tp)))
        for p in range(pp) for d in range(dp)
    ]  # fmt: skip
    groups += [
        GroupInfo(f"dp{p}.{t}", "dp", tuple(rank[p, d, t] for d in range(dp)))
        for p in range(pp) for t in range(tp)
    ]  # fmt: skip
    groups += [
        GroupInfo(f"pp{d}.{t}", "pp", tuple(rank[p, d, t] for p in range(pp)))
        for d in range(dp) for t in range(tp)
    ]  # fmt: skip
    return tuple(groups)


def grid_programs(pp: int, dp: int, tp: int, steps: int = 4, microbatches: int = 2) -> dict[int, list[Op]]:
    """GPipe: all forwards, all backwards, gradients over dp, the norm over the world."""
    programs: dict[int, list[Op]] = {}
    stage_width = dp * tp
    world = pp * stage_width
    for rank in range(world):
        stage, inside = divmod(rank, stage_width)
        d, t = divmod(inside, tp)
        program: list[Op] = []

        def collective(comm: str, name: str, size: int, ops: list[Op] = program) -> None:
            ops.append(Op(comm, name, size))

        def p2p(name: str, to: int, line: str = f"pp{d}.{t}", ops: list[Op] = program) -> None:
            if 0 <= to < world:  # the first stage has nobody before it, the last nobody behind
                ops.append(Op(line, name, 4096, peer=to))

        prev, following = rank - stage_width, rank + stage_width
        for _ in range(steps):
            for _ in range(microbatches):
                p2p("recv", prev)
                collective(f"tp{stage}.{d}", "all_reduce", 8192)
                collective(f"tp{stage}.{d}", "reduce_scatter_base", 8192)
                p2p("send", following)
            for _ in range(microbatches):
                p2p("recv", following)
                collective(f"tp{stage}.{d}", "all_gather_base", 4096)
                collective(f"tp{stage}.{d}", "all_reduce", 16384)
                p2p("send", prev)
            collective(f"dp{stage}.{t}", "reduce_scatter_base", 65536)
            collective(f"dp{stage}.{t}", "all_gather_base", 32768)
            collective("world", "all_reduce", 4)
        programs[rank] = program
    return {rank: numbered(program) for rank, program in programs.items()}


def numbered(program: list[Op]) -> list[Op]:
    counts: dict[tuple[str, bool], int] = defaultdict(int)
    out = []
    for op in program:
        counts[op.comm_id, op.peer >= 0] += 1
        out.append(replace(op, seq=counts[op.comm_id, op.peer >= 0]))
    return out


def run_until_stuck(
    groups: tuple[GroupInfo, ...], programs: Mapping[int, list[Op]], limits: Mapping[int, int]
) -> dict[int, int]:
    """Number of finished operations per rank when nothing moves any more."""
    members = {group.comm_id: group.ranks for group in groups}
    done = dict.fromkeys(programs, 0)

    def front(rank: int) -> Op | None:
        at = done[rank]
        return programs[rank][at] if at < min(len(programs[rank]), limits.get(rank, 1 << 30)) else None

    todo = set(programs)
    while todo:
        rank = todo.pop()
        op = front(rank)
        if op is None:
            continue
        if op.peer >= 0:
            other = front(op.peer)
            met = [rank, op.peer]
            ready = other is not None and other.comm_id == op.comm_id and other.peer == rank and other.name != op.name
        else:
            met = list(members[op.comm_id])
            fronts = [front(member) for member in met]
            ready = all(o is not None and replace(o) == op for o in fronts)
        if ready:
            for member in met:
                done[member] += 1
            todo.update(met)
    return done


def strike(kind: str, rank: int, at: int, grid: tuple[int, int, int] = (2, 4, 2), ahead: int = 1) -> Stuck:
    """Run a grid's job until the fault of one rank has stopped all."""
    groups, programs = grid_groups(*grid), grid_programs(*grid)
    at %= len(programs[rank]) - 1
    limits: dict[int, int] = {}
    if kind in {"skip", "skip_p2p"}:
        wanted = [i for i, op in enumerate(programs[rank]) if (op.peer >= 0) == (kind == "skip_p2p")]
        at = min(wanted, key=lambda i: abs(i - at))
        programs[rank] = numbered(programs[rank][:at] + programs[rank][at + 1 :])
    elif kind == "wrong_op":
        at = next(i for i in range(at, len(programs[rank])) if programs[rank][i].peer < 0)
        programs[rank][at] = replace(programs[rank][at], name="broadcast", msg_bytes=12)
    else:
        limits[rank] = at
    done = run_until_stuck(groups, programs, limits)
    seen = dict(done)
    issued = {r: min(len(programs[r]), done[r] + ahead) for r in programs}
    if kind in {"cpu_stall", "no_dump", "stopped"}:
        issued[rank] = done[rank]
    if kind == "gpu_error":
        seen[rank] = max(0, done[rank] - 5)
    timed = kind == "gpu_stall_timed"
    states = {}
    for r, program in programs.items():
        pending = [as_state(op) for op in program[seen[r] : issued[r]]]
        if timed:
            pending = [replace(op, started=(i == 0 and r != rank)) for i, op in enumerate(pending)]
        states[r] = RankWait(
            r,
            tuple(pending),
            completed_of(program[: seen[r]]),
            history=tuple(map(as_state, program[: seen[r]])),
        )
    stuck = Stuck(groups, states, programs)
    if kind == "stopped":
        stuck.facts[rank] = "stopped"
    if kind == "no_dump":
        stuck.silent = frozenset({rank})
    return stuck


def as_state(op: Op) -> OpState:
    return OpState(op.comm_id, op.seq, op.name, op.msg_bytes, peer=op.peer, is_p2p=op.peer >= 0)


def completed_of(program: list[Op]) -> dict[str, int]:
    return {op.comm_id: op.seq for op in program if op.peer < 0}


def places(seed: int, count: int, length: int) -> list[int]:
    return sorted(random.Random(seed).sample(range(8, length - 8), count))


def dump_of(stuck: Stuck, rank: int, *, active_only: bool = True) -> dict[str, Any]:
    """The state of one rank as NCCL's Flight Recorder writes it."""
    own = {group.comm_id: group for group in stuck.groups if rank in group.ranks}
    ids = {comm_id: i for i, comm_id in enumerate(own)}
    state = stuck.states[rank]
    past = [] if active_only else [(op, "completed") for op in state.history]
    shown = past + [(op, "started" if op.started else "scheduled") for op in state.pending]
    first = len(state.history) - len(past)
    last = {op.comm_id: op.seq for op in (*state.history, *state.pending)}
    done = {op.comm_id: op.seq for op in state.history}
    timed = any(op.started is not None for op in state.pending)
    return {
        "version": "2.10",
        "comm_lib_version": "2.27.3",
        "entries": [
            entry_of(op, what, rank, own[op.comm_id]) | {"record_id": first + i, "pg_id": ids[op.comm_id]}
            for i, (op, what) in enumerate(shown)
        ],
        "pg_config": {
            name: {"name": name, "desc": desc_of(group), "ranks": json.dumps(list(group.ranks))}
            for name, group in own.items()
        },
        "pg_status": {
            ids[name]: {
                "last_enqueued_collective": seq,
                "last_started_collective": done.get(name, -1) if timed else -1,
                "last_completed_collective": done.get(name, -1),
            }
            for name, seq in last.items()
        },
    }


def desc_of(group: GroupInfo) -> str:
    return "default_pg" if group.kind == "world" else group.kind


def entry_of(op: OpState, what: str, rank: int, group: GroupInfo) -> dict[str, Any]:
    name = op.op_name
    if op.is_p2p:
        arrow = "->" if name == "send" else "<-"
        name += f" {group.ranks.index(rank)}{arrow}{group.ranks.index(op.peer)}"
    return {
        "process_group": (op.comm_id, desc_of(group)), "profiling_name": f"nccl:{name}",
        "collective_seq_id": 0 if op.is_p2p else op.seq, "p2p_seq_id": op.seq if op.is_p2p else 0,
        "op_id": op.seq, "time_created_ns": 10**18, "timeout_ms": 600000, "is_p2p": op.is_p2p,
        "input_sizes": [[op.msg_bytes]], "input_dtypes": ["Byte"], "output_sizes": [[1]],
        "output_dtypes": ["Byte"], "state": what, "retired": what == "completed",
        "time_discovered_started_ns": 1 if op.started else None,
        "time_discovered_completed_ns": 2 if what == "completed" else None,
    }  # fmt: skip


def files_of(stuck: Stuck, *, active_only: bool = True) -> Iterator[tuple[str, bytes]]:
    """File name and content of every dump that the job leaves."""
    for rank in stuck.states:
        if rank not in stuck.silent:
            yield f"dump_{rank}", pickle.dumps(dump_of(stuck, rank, active_only=active_only))
