"""Information from torch: process groups and Flight Recorder. Modules are found in sys.modules, never imported."""

import json
import sys
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

STALLED_NS = 500_000_000
"""Least time for which a group's counts must differ without change before it has operations in flight."""
NAMELESS_NS = 3_000_000_000
"""Least time without progress of a group before a full read finds the name of its last operation."""
FULL_READ_PERIOD_NS = 10_000_000_000
"""Least time between full reads that only look for names; a full read takes milliseconds."""

UNKNOWN_OP = "unknown"
"""Name of an operation known only from the recorder's counters, until its entries are read."""

_KINDS = (
    ("dp", ("dp", "data_parallel", "data-parallel", "fsdp", "replicate", "shard")),
    ("tp", ("tp", "tensor_model_parallel", "tensor_parallel", "tensor-parallel")),
    ("pp", ("pp", "pipeline")),
    ("ep", ("ep", "expert")),
    ("cp", ("cp", "context_parallel", "context-parallel")),
)
_ELEMENT_BYTES = {
    "Double": 8, "Long": 8, "Float": 4, "Int": 4, "ComplexFloat": 8, "ComplexDouble": 16,
    "BFloat16": 2, "Half": 2, "Short": 2,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Group:
    """One process group of this rank: id, kind and members."""

    comm_id: str
    kind: str
    ranks: tuple[int, ...]


def module(name: str) -> Any:
    """Return a module if something has imported it, else None."""
    return sys.modules.get(name)


def comm_id_of(group_name: str, ranks: Iterable[int]) -> str:
    """Return a communicator's id: the same on all its members, and different for another membership."""
    members = ",".join(map(str, ranks))
    name = group_name.replace('"', "").replace("\\", "")  # goes into JSON as it is
    return f"{name}/{zlib.crc32(members.encode()):08x}"


def kind_of(description: str, *, is_default: bool) -> str:
    """Return the kind of a group from its description; expert groups of data parallelism are ``ep``."""
    if is_default:
        return "world"
    text = description.lower()
    words = set("".join(c if c.isalpha() else " " for c in text).split())
    found = [kind for kind, marks in _KINDS if any(mark in words or (len(mark) > 2 and mark in text) for mark in marks)]
    if "ep" in found:
        return "ep"
    return found[0] if found else "other"


def current_groups() -> dict[str, Group]:
    """Return this rank's groups by torch's name for them, in order of creation; empty before init."""
    c10d = module("torch.distributed.distributed_c10d")
    world = getattr(c10d, "_world", None)
    if world is None:
        return {}
    groups = {}
    for group in list(world.pg_map):
        name = world.pg_names.get(group)
        members = world.pg_group_ranks.get(group)
        if name is not None and members:
            ranks = tuple(sorted(members))
            kind = kind_of(group.group_desc or "", is_default=group is world.default_pg)
            groups[name] = Group(comm_id_of(name, ranks), kind, ranks)
    return groups


def op_name_of(profiling_name: str) -> str:
    """Convert a profiling name to this project's operation name: ``nccl:_all_gather_base`` to ``all_gather``."""
    name = profiling_name.partition(":")[2] or profiling_name
    name = name.split(" ", maxsplit=1)[0].removeprefix("_")
    for suffix in ("_coalesced", "_base", "_into_tensor", "_tensor", "_single"):
        name = name.removesuffix(suffix)
    return {"allreduce": "all_reduce", "alltoall": "all_to_all", "allgather": "all_gather"}.get(name, name)


def full_dump(*, with_stacks: bool) -> bytes | None:
    """Return the Flight Recorder's dump with finished operations (a pickle); None without a recorder.

    Args:
        with_stacks: whether each operation has the stack that called it. Torch may then hold the interpreter's lock
            for half a second (torch 2.11 on a GPU host) to seconds, in which training cannot go on.
    """
    dump = _recorder_function("trace")
    return None if dump is None else bytes(dump(True, with_stacks, False))


def _recorder_function(what: str) -> Callable[..., bytes] | None:
    """Return torch's function ``_dump_fr_trace`` or its JSON variant, None if missing.

    NCCL has a recorder of its own.
    """
    c10d = module("torch.distributed.distributed_c10d")
    bindings = module("torch._C._distributed_c10d")
    if bindings is None or getattr(getattr(c10d, "_world", None), "default_pg", None) is None:
        return None
    library = "nccl" if c10d.get_backend() == "nccl" else "fr"
    function: Callable[..., bytes] | None = getattr(bindings, f"_dump_{library}_{what}", None)
    return function


@dataclass(slots=True)
class GroupState:
    """The state of one group by the recorder's counters.

    Attributes:
        enqueued: sequence number of the last enqueued operation.
        completed: sequence number of the last one that finished.
        since_ns: Unix time when these counts were first seen.
        op_name: name of the last finished operation.
        pending: (op_name, op_seq, msg_bytes, Unix ns of enqueueing) of the operations in flight, once stalled.
        was_read: whether a full read was done for this state.
    """

    enqueued: int
    completed: int
    since_ns: int
    op_name: str = UNKNOWN_OP
    pending: list[tuple[str, int, int, int]] = field(default_factory=list)
    was_read: bool = False


class FlightSampler:
    """Samples the recorder's counters (microseconds); reads its entries only when a group makes no progress.

    Attributes:
        states: comm_id -> state of the group.
    """

    def __init__(self) -> None:
        self.states: dict[str, GroupState] = {}
        self._comm_of_pg: dict[str, str] = {}
        self._order: dict[str, str] = {}
        self._last_full_read_ns = 0

    def learn(self, groups: dict[str, Group]) -> None:
        """Note the present groups; the recorder numbers them in their order of creation."""
        for name, group in groups.items():
            if self._order.get(name) != group.comm_id:
                self._order.pop(name, None)
                self._order[name] = group.comm_id
        for number, comm_id in enumerate(self._order.values()):
            self._comm_of_pg.setdefault(str(number), comm_id)

    def sample(self, now_ns: int | None = None) -> None:
        """Sample the counters once; meant to be called a few times a second."""
        read = _recorder_function("trace_json")
        if read is None:
            return
        now = time.time_ns() if now_ns is None else now_ns
        for pg_id, status in json.loads(read(False, True)).get("pg_status", {}).items():
            comm_id = self._comm_of_pg.get(pg_id)
            if comm_id is not None:
                self._update(
                    comm_id,
                    int(status["last_enqueued_collective"]),
                    int(status["last_completed_collective"]),
                    now,
                )
        if self._wants_entries(now):
            self._last_full_read_ns = now
            self._take_entries(json.loads(read(True, True)).get("entries", []))

    def _update(self, comm_id: str, enqueued: int, completed: int, now: int) -> None:
        """Replace a group's state if its counters changed."""
        state = self.states.get(comm_id)
        if state is None or (state.enqueued, state.completed) != (enqueued, completed):
            self.states[comm_id] = GroupState(enqueued, completed, now)

    def _wants_entries(self, now: int) -> bool:
        """Return whether a group's stall or missing name justifies a full read now."""
        for state in self.states.values():
            if state.was_read:
                continue
            still_ns = now - state.since_ns
            if state.enqueued > state.completed and still_ns >= STALLED_NS:
                return True
            due = now - self._last_full_read_ns >= FULL_READ_PERIOD_NS
            if state.completed > 0 and still_ns >= NAMELESS_NS and due:
                return True
        return False

    def _take_entries(self, entries: list[dict[str, Any]]) -> None:
        """Update names and pending operations from the recorder's entries."""
        for state in self.states.values():
            state.was_read = True
            state.pending = []
        for entry in entries:
            comm_id = self._order.get(str(entry["process_group"][0]))
            if comm_id is None:
                continue
            self._comm_of_pg[str(entry["pg_id"])] = comm_id
            state_ = self.states.get(comm_id)
            seq = int(entry["collective_seq_id"])
            if state_ is None or entry.get("is_p2p"):
                continue
            name = op_name_of(str(entry["profiling_name"]))
            if seq == state_.completed:
                state_.op_name = name
            if seq > state_.completed and not entry.get("retired"):
                state_.pending.append((name, seq, _entry_bytes(entry), int(entry["time_created_ns"])))


def _entry_bytes(entry: dict[str, Any]) -> int:
    """Return the bytes of all inputs of an entry."""
    total = 0
    for sizes, dtype in zip(entry.get("input_sizes", ()), entry.get("input_dtypes", ()), strict=False):
        count = 1
        for size in sizes:
            count *= int(size)
        total += count * _ELEMENT_BYTES.get(str(dtype), 1)
    return total
