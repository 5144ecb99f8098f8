"""What ``tocsin startup`` found, as sentences, a table and a waterfall, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from tocsin.cli.startup_starts import Start
from tocsin.models.startup.clocks import ClockShift
from tocsin.models.startup.cost import blame, waiting_gpu_seconds
from tocsin.models.startup.durations import NS, StageTable
from tocsin.models.startup.mllog_stages import StampGroup
from tocsin.models.startup.stragglers import SharedSlowness, Straggler
from tocsin.schemas.printable import counted, plain
from tocsin.schemas.startup import SHARED_SERVICES, StartupStage

BAR_CHARACTERS = 60
"""Width of the waterfall."""
MOST_NAMES = 8
"""Most stragglers that a sentence of its own is printed for."""


@dataclass(frozen=True, slots=True)
class JudgedStart:
    """A start, and who is late in it.

    Attributes:
        start: the start.
        late: stragglers of its stages.
        shared: stages that are slow on all nodes.
    """

    start: Start
    late: tuple[Straggler, ...]
    shared: tuple[SharedSlowness, ...]


@dataclass(frozen=True, slots=True)
class Judged:
    """All starts of one call.

    Attributes:
        starts: in the order of time.
        repeated: (node, stage, slow starts, starts looked at) of nodes that are slow again and again.
    """

    starts: tuple[JudgedStart, ...]
    repeated: tuple[tuple[str, str, int, int], ...]


def text_of(judged: Judged) -> str:
    """Return all starts as text, and at the end the nodes that are slow again and again."""
    blocks = ["\n".join(_block(one)) for one in judged.starts]
    blocks += [
        f"{plain(node)} was slow in {plain(stage)} in {slow} of its last {counted(of, 'start')}: drain it and check it"
        for node, stage, slow, of in judged.repeated
    ]
    return "\n\n".join(blocks)


def sentences_of(judged: JudgedStart) -> list[str]:
    """Return what is wrong with a start, or that nothing is."""
    start, lines = judged.start, []
    for slow in judged.shared:
        what = SHARED_SERVICES.get(StartupStage(slow.stage)) if slow.stage in set(StartupStage) else None
        lines.append(
            f"All nodes are slow in {plain(slow.stage)}: {_time(slow.median_seconds)}, in "
            f"{counted(slow.start_count, 'earlier start')} {_time(slow.usual_seconds)}; no machine is to blame, "
            f"look at {what or 'what they share'}."
        )
    for one in judged.late[:MOST_NAMES]:
        so_far = " so far" if one.is_open else ""
        lines.append(
            f"{start.kind} {plain(one.node)} is late in {plain(one.stage)}: {_time(one.seconds)}{so_far}, the median "
            f"of {counted(one.peer_count, 'peer')} is {_time(one.median_seconds)} (limit {_time(one.limit_seconds)})."
        )
    if len(judged.late) > MOST_NAMES:
        lines.append(f"… {len(judged.late) - MOST_NAMES} more are late.")
    lines += [late_text(group) for group in start.groups if group.late_count]
    clocks = [_clock_text(start.kind, one) for one in sorted(start.shifts, key=_order)[:MOST_NAMES]]
    if len(start.shifts) > MOST_NAMES:
        clocks.append(f"… {len(start.shifts) - MOST_NAMES} more clocks seem off.")
    return [*clocks, *(lines or ["Nobody is late."])]


def _order(shift: ClockShift) -> tuple[int, str]:
    """Return the order of nodes: numbers by their size."""
    return int(shift.node) if shift.node.isdecimal() else 0, shift.node


def _clock_text(kind: str, shift: ClockShift) -> str:
    """Return that the clock of a node differs from its peers'."""
    size = _time(abs(shift.seconds))
    how, when = (("ahead", "later"), ("behind", "sooner"))[shift.seconds < 0]
    return (
        f"The clock of {kind} {plain(shift.node)} seems {size} {how}, or it began {size} {when}: all its stamps come "
        f"{when} than its peers' by that or more. They are put back; only its own durations are compared."
    )


def late_text(group: StampGroup) -> str:
    """Return what is late among stamps without names."""
    late, least = f"{group.late_seconds:.1f}", f"{group.least_late_seconds:.1f}"
    how = late if late == least else f"{least} to {late}"
    come = "comes" if group.late_count == 1 else "come"
    who = f"{group.late_count} of {group.count} stamps of {plain(group.key)}"
    return f"{who} {come} {how} s late (after the median stamp); the log does not say whose they are."


def _block(judged: JudgedStart) -> list[str]:
    """Return the lines of one start."""
    start = judged.start
    until = f"{_time(start.seconds)} to training" if start.train_ns else f"not training after {_time(start.seconds)}"
    head = [start.name, start.what, counted(start.process_count, "process").replace("processs", "processes"), until]
    cost = f"{start.waste_gpu_seconds / 3600:.2f} GPU-hours" + ("" if start.gpu_counts else " (a GPU a process)")
    lines = [plain("  ".join([*filter(None, head), cost])), *sentences_of(judged), ""]
    lines += _table(start)
    lines += ["", *_waterfall(start)]
    if start.groups:
        lines += ["", *_groups(start.groups)]
    for name, skipped in start.skipped.items():
        what = ", ".join(
            f"{count} x {reason} (first: line {skipped.first_lines[reason]})"
            for reason, count in skipped.counts.items()
        )
        lines.append(plain(f"left out of {name}: {what}"))
    if start.outsiders:
        names = ", ".join(start.outsiders[:MOST_NAMES]) + (" …" if len(start.outsiders) > MOST_NAMES else "")
        lines.append(plain(f"left out, as they carry no rank of the topology: {names}"))
    return lines


def _table(start: Start) -> list[str]:
    """Return the table of stages."""
    head = ("stage", "begins", "job", "median", "max/median", "nodes", "open", "lost", "waiting", "last")
    rows = [head, *(_row(start, table) for table in start.tables)]
    return list(aligned(rows, (0, len(head) - 1)))


def aligned(rows: Sequence[Sequence[str]], left: Sequence[int]) -> Iterator[str]:
    """Yield the lines of a table; the columns ``left`` stand to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.ljust(width) if at in left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()


def _row(start: Start, table: StageTable) -> tuple[str, ...]:
    """Return the cells of one stage."""
    begin, ratio, last = table.begin_ns, table.max_ratio, blame(table, start.gpu_counts)
    is_of_nodes = _is_of_nodes(table)
    waiting = waiting_gpu_seconds(table, start.gpu_counts)
    return (
        plain(table.stage if table.start_kind == "full" else f"{table.stage} ({table.start_kind})"),
        "-" if begin is None else _time((begin - start.first_ns) / NS),
        _time(table.job_seconds),
        _time(table.median_seconds) if is_of_nodes else "-",
        f"{ratio:.2f}" if ratio is not None and is_of_nodes else "-",
        str(len(table.spans)) if is_of_nodes else "-",
        str(len(table.open_nodes)),
        str(table.lost_count),
        f"{waiting / 3600:.2f} GPU-h" if is_of_nodes else "-",
        f"{plain(last.node)} (+{last.gpu_seconds / 3600:.2f} GPU-h)" if last and is_of_nodes else "-",
    )


def _is_of_nodes(table: StageTable) -> bool:
    """Return whether a stage is known of single nodes, and not only of the job."""
    return any(span.node for span in table.spans)


def _waterfall(start: Start) -> list[str]:
    """Return a bar for each stage on the axis of time; dots where it is still open."""
    last_ns = max([start.train_ns or start.now_ns, *(table.end_ns or 0 for table in start.tables)])
    scale = BAR_CHARACTERS / max(last_ns - start.first_ns, 1)
    width = max(len(plain(table.stage)) for table in start.tables)
    right = _time((last_ns - start.first_ns) / NS)
    lines = [f"{'':{width}}  0 s{right:>{BAR_CHARACTERS - 3}}"]
    for table in start.tables:
        begin_ns = table.begin_ns or table.end_ns or start.first_ns
        is_open = bool(table.open_nodes)
        end_ns = last_ns if is_open else table.end_ns or begin_ns
        begin = min(int((begin_ns - start.first_ns) * scale), BAR_CHARACTERS - 1)
        end = max(begin + 1, round((end_ns - start.first_ns) * scale))
        done = round(((table.end_ns or begin_ns) - start.first_ns) * scale) if is_open else end
        bar = "".join("#" if at < max(done, begin + 1) else "." for at in range(begin, min(end, BAR_CHARACTERS)))
        lines.append(f"{plain(table.stage):{width}}  {'':{begin}}{bar}")
    return lines


def _groups(groups: Sequence[StampGroup]) -> list[str]:
    """Return the table of stamps without names."""
    width = max(len("stamps"), *(len(plain(group.key)) for group in groups))
    rows = (
        f"{plain(one.key):{width}}  {one.count:>5}  {one.spread_seconds:>4.1f} s  {one.late_count:>4}" for one in groups
    )
    return [f"{'stamps':{width}}  count  spread  late", *rows]


def _time(seconds: float | None) -> str:
    """Return a duration in seconds, - if unknown."""
    if seconds is None:
        return "-"
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"


def as_json(judged: Judged) -> dict[str, object]:
    """Return all starts as one JSON object; times of stages are seconds after the start's first mark."""
    return {
        "starts": [_start_json(one) for one in judged.starts],
        "repeated": [
            {"node": node, "stage": stage, "slow_starts": slow, "of_starts": of}
            for node, stage, slow, of in judged.repeated
        ],
    }


def _start_json(judged: JudgedStart) -> dict[str, object]:
    """Return one start as a JSON object."""
    start = judged.start
    return {
        "name": start.name,
        "what": start.what,
        "begin_ns": start.first_ns,
        "train_ns": start.train_ns,
        "seconds": start.seconds,
        "processes": start.process_count,
        "waste_gpu_seconds": start.waste_gpu_seconds,
        "stages": [_stage_json(start, table) for table in start.tables],
        "stragglers": [
            {"kind": start.kind, "name": one.node, **asdict(one), "late_seconds": one.late_seconds}
            for one in judged.late
        ],
        "shared": [asdict(one) for one in judged.shared],
        "stamps": [asdict(group) for group in start.groups],
        "clocks": [asdict(shift) for shift in start.shifts],
        "outsiders": list(start.outsiders),
        "skipped": {
            name: {
                str(reason): {"count": count, "first_line": skipped.first_lines[reason]}
                for reason, count in skipped.counts.items()
            }
            for name, skipped in start.skipped.items()
        },
        "summary": " ".join(sentences_of(judged)),
    }


def _stage_json(start: Start, table: StageTable) -> dict[str, object]:
    """Return one stage as a JSON object."""
    last = blame(table, start.gpu_counts)
    is_of_nodes = _is_of_nodes(table)
    return {
        "stage": table.stage,
        "start_kind": table.start_kind,
        "begin_seconds": None if table.begin_ns is None else (table.begin_ns - start.first_ns) / NS,
        "end_seconds": None if table.end_ns is None else (table.end_ns - start.first_ns) / NS,
        "job_seconds": table.job_seconds,
        "median_seconds": table.median_seconds if is_of_nodes else None,
        "max_ratio": table.max_ratio if is_of_nodes else None,
        "node_seconds": {span.node: span.seconds for span in table.spans} if is_of_nodes else {},
        "open": table.open_nodes,
        "lost": table.lost_count,
        "waiting_gpu_seconds": waiting_gpu_seconds(table, start.gpu_counts) if is_of_nodes else None,
        "blame": asdict(last) if last and is_of_nodes else None,
    }
