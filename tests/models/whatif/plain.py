"""A training step simulated one operation at a time, from the schedule alone: the reference of the what-if model.

It knows which microbatch of which chunk each operation carries, and looks at no time to find out what waits for what.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

Name = tuple[str, int, int]
"""Type, order among the type's operations on its stage, stage."""
Seconds = Callable[[Name, int], float]
"""Function from an operation and a data-parallel rank to seconds."""


@dataclass(frozen=True)
class Layout:
    """How a job is laid out.

    Attributes:
        dp: data-parallel ranks.
        pp: stages.
        vpp: model chunks of each stage; with more than one the schedule is interleaved.
        microbatches: of each step; with chunks, a multiple of the stages.
        overlaps: whether gradients are reduced during the backward pass.
        lacks_first_receive: whether the profiler missed the first stage's first (empty) receive.
    """

    dp: int
    pp: int
    vpp: int = 1
    microbatches: int = 4
    overlaps: bool = False
    lacks_first_receive: bool = False

    def __str__(self) -> str:
        extra = ("-overlap" if self.overlaps else "") + ("-lacks" if self.lacks_first_receive else "")
        return f"dp{self.dp}-pp{self.pp}-vpp{self.vpp}-mb{self.microbatches}{extra}"


@dataclass(frozen=True)
class Computed:
    """One computation of a stage: direction, chunk in the stage, microbatch."""

    direction: str
    chunk: int
    microbatch: int


def schedule(layout: Layout, stage: int) -> list[Computed]:
    """The computations of a stage: forward and backward in turn after a warm-up (1F1B), interleaved with chunks."""
    total = layout.microbatches * layout.vpp
    if layout.vpp == 1:
        warm_up = min(layout.pp - stage - 1, total)
    else:
        warm_up = min((layout.pp - stage - 1) * 2 + (layout.vpp - 1) * layout.pp, total)
    forward = [_unit(layout, number, "forward") for number in range(total)]
    backward = [_unit(layout, number, "backward") for number in range(total)]
    order = forward[:warm_up]
    for number in range(total - warm_up):
        order += [forward[warm_up + number], backward[number]]
    return order + backward[total - warm_up :]


def _unit(layout: Layout, number: int, direction: str) -> Computed:
    """The chunk and microbatch of the n-th computation of one direction."""
    if layout.vpp == 1:
        return Computed(direction, 0, number)
    group, inside = divmod(number, layout.pp * layout.vpp)
    chunk = inside // layout.pp
    if direction == "backward":
        chunk = layout.vpp - 1 - chunk
    return Computed(direction, chunk, group * layout.pp + inside % layout.pp)


@dataclass
class Job:
    """All operations of one step, what each waits for, and with whom each moves.

    Attributes:
        layout: the layout.
        before: operation -> those that must have ended.
        groups: operation -> the operations that move with it, itself included.
        synchronised: operations for which all data-parallel ranks must have come.
        labels: operation -> chunk in the stage, chunk in the model, microbatch; -1 where that makes no sense.
    """

    layout: Layout
    before: dict[Name, list[Name]] = field(default_factory=lambda: defaultdict(list))
    groups: dict[Name, list[Name]] = field(default_factory=dict)
    synchronised: set[Name] = field(default_factory=set)
    labels: dict[Name, tuple[int, int, int]] = field(default_factory=dict)

    def add(self, name: Name, *waits: Name, labels: tuple[int, int, int] = (-1, -1, -1)) -> Name:
        """Add an operation."""
        self.before[name] += waits
        self.labels[name] = labels
        return name

    def chain(self, names: list[Name]) -> None:
        """Let each wait for the one before it."""
        for earlier, later in pairwise(names):
            self.before[later].append(earlier)


def job_of(layout: Layout) -> Job:
    """The operations of one step."""
    job = Job(layout)
    ends: dict[tuple[str, int, int, int], dict[str, Name]] = defaultdict(dict)
    for stage in range(layout.pp):
        _add_stage(job, stage, ends)
    for pair in ends.values():
        both = [pair["send"], pair["recv"]]
        job.groups[both[0]] = job.groups[both[1]] = both
    for kind, stages in (
        ("embedding-grads-all-reduce", sorted({0, layout.pp - 1})),
        ("optimizer-clip-main-grad", list(range(layout.pp))),
    ):
        members: list[Name] = [(kind, 0, stage) for stage in stages]
        job.groups.update(dict.fromkeys(members, members))
    return job


def _add_stage(job: Job, stage: int, ends: dict[tuple[str, int, int, int], dict[str, Name]]) -> None:
    """Add the operations of one stage."""
    layout = job.layout
    order = schedule(layout, stage)
    names: dict[Computed, Name] = {}
    counts = {"forward": 0, "backward": 0}
    for unit in order:
        names[unit] = (f"{unit.direction}-compute", counts[unit.direction], stage)
        counts[unit.direction] += 1
        model_chunk = unit.chunk * layout.pp + stage
        job.add(names[unit], labels=(unit.chunk, model_chunk, unit.microbatch))
    job.chain([names[unit] for unit in order])
    for direction in counts:
        _add_transfers(job, stage, [unit for unit in order if unit.direction == direction], names, ends)
    first = next(at for at, unit in enumerate(order) if unit.direction == "backward")
    for kind in ("backward-recv", "backward-send"):
        if first >= 2 and (kind, 0, stage) in job.labels:
            job.before[kind, 0, stage].append(names[order[first - 2]])
    _add_rest(job, stage, order, names)


def _add_transfers(
    job: Job,
    stage: int,
    units: list[Computed],
    names: dict[Computed, Name],
    ends: dict[tuple[str, int, int, int], dict[str, Name]],
) -> None:
    """Add what a stage sends and receives in one direction."""
    layout, direction = job.layout, units[0].direction
    step = 1 if direction == "forward" else -1
    chunks = layout.pp * layout.vpp
    streams: dict[str, list[Name]] = {"recv": [], "send": []}
    for at, unit in enumerate(units):
        own = unit.chunk * layout.pp + stage
        for way, other in (("recv", own - step), ("send", own + step)):
            is_real = 0 <= other < chunks
            lacks = layout.lacks_first_receive and (stage, at, way, direction) == (0, 0, "recv", "forward")
            if lacks or not (is_real or layout.vpp > 1):
                continue
            name: Name = (f"{direction}-{way}", len(streams[way]), stage)
            streams[way].append(job.add(name))
            if way == "send":
                job.before[name].append(names[unit])
            else:
                job.before[names[unit]].append(name)
                job.before[name] += [names[units[at - 1]]] if at else []
            if is_real:
                low, high = sorted((own, other))
                ends[direction, low, high, unit.microbatch][way] = name
    for names_of_way in streams.values():
        job.chain(names_of_way)


def _add_rest(job: Job, stage: int, order: list[Computed], names: dict[Computed, Name]) -> None:
    """Add collectives of data parallelism and the end of the step."""
    layout = job.layout
    chunks = range(layout.vpp)
    gathers = [job.add(("params-all-gather", chunk, stage), labels=(chunk, -1, -1)) for chunk in chunks]
    for chunk, gather in zip(chunks, gathers, strict=True):
        first = next(unit for unit in order if unit.chunk == chunk and unit.direction == "forward")
        job.before[names[first]].append(gather)
    scatters = [
        job.add(("grads-reduce-scatter", at, stage), labels=(layout.vpp - 1 - at, -1, -1)) for at in range(layout.vpp)
    ]
    job.chain([*gathers, *scatters])
    last = names[order[-1]]
    pause = job.add(("gc", 0, stage), last)
    tail = [job.add(("layernorm-grads-all-reduce", 0, stage), pause)]
    if stage in (0, layout.pp - 1):
        tail.append(job.add(("embedding-grads-all-reduce", 0, stage)))
    if layout.overlaps:
        for at, scatter in enumerate(scatters):
            chunk = layout.vpp - 1 - at
            backward = [unit for unit in order if unit.chunk == chunk and unit.direction == "backward"]
            job.before[scatter].append(names[backward[-1]])
        job.before[tail[0]].append(scatters[-1])
        tail.append(job.add(("separate-grads-all-reduce", 0, stage)))
        job.synchronised.add(tail[-1])
    else:
        tail += scatters
    tail += [job.add(("optimizer-clip-main-grad", 0, stage)), job.add(("optimizer", 0, stage))]
    job.chain(tail)
    job.synchronised.update([*gathers, *scatters, ("optimizer-clip-main-grad", 0, stage)])


def taken_from(values: dict[tuple[Name, int], float]) -> Seconds:
    """A function that looks seconds up."""
    return lambda name, rank: values[name, rank]


@dataclass(frozen=True)
class Simulated:
    """A simulated step: operation and rank -> when it started waiting, and when it ended."""

    starts: dict[tuple[Name, int], float]
    ends: dict[tuple[Name, int], float]

    @property
    def step_seconds(self) -> float:
        """When the last optimizer ended."""
        return max(end for (name, _), end in self.ends.items() if name[0] == "optimizer")


def simulate_plainly(job: Job, seconds: Seconds, delay: Seconds = lambda name, rank: 0.0) -> Simulated:
    """Simulate one step, one operation at a time.

    Args:
        job: the operations.
        seconds: what each takes once it can move.
        delay: how long each is launched too late.
    """
    ranks = range(job.layout.dp)
    behind: dict[Name, list[Name]] = defaultdict(list)
    for name, earlier in job.before.items():
        for other in earlier:
            behind[other].append(name)
    missing = {(name, rank): len(job.before[name]) for name in job.labels for rank in ranks}
    ready = deque(key for key, count in missing.items() if not count)
    starts: dict[tuple[Name, int], float] = {}
    ends: dict[tuple[Name, int], float] = {}
    while ready:
        name, rank = ready.popleft()
        starts[name, rank] = delay(name, rank) + max((ends[one, rank] for one in job.before[name]), default=0.0)
        group = list(_moving_with(job, name, rank))
        if any(key not in starts for key in group):
            continue
        begin = max(starts[key] for key in group)
        for member, its_rank in group:
            ends[member, its_rank] = begin + seconds(member, its_rank)
            for later in behind[member]:
                missing[later, its_rank] -= 1
                if not missing[later, its_rank]:
                    ready.append((later, its_rank))
    assert len(ends) == len(missing), "the schedule waits for itself"
    return Simulated(starts, ends)


def _moving_with(job: Job, name: Name, rank: int) -> Iterator[tuple[Name, int]]:
    """The operations that can move only together with this one, itself included."""
    members = job.groups.get(name, [name])
    for other in range(job.layout.dp) if name in job.synchronised else (rank,):
        for member in members:
            yield member, other
