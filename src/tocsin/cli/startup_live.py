"""``tocsin startup JOB``: the starts of a job that an engine heard, and what starts took of a cluster's days."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from tocsin.cli.database import database, database_of
from tocsin.cli.engine_reader import reader_of
from tocsin.cli.startup_text import BAR_CHARACTERS, aligned
from tocsin.pipeline.stores.ettr_queries import ettr_query
from tocsin.pipeline.stores.startup_queries import DAYS_QUERY, startup_query
from tocsin.schemas.printable import counted, json_text, plain
from tocsin.schemas.records import NS_PER_SECOND

Row = Mapping[str, Any]
_HEAD: Final = (
    *("stage", "begins", "job", "median", "slowest host", "hosts", "open", "lost", "cache", "GPU-h", "waiting", "last"),
)
_LEFT: Final = (0, 4, 11)
"""Columns that stand to the left."""


def print_job(args: argparse.Namespace, job_id: str) -> int:
    """Print the starts of a job; return 0, or 1 if none is known."""
    rows, accounts = _read(args, job_id)
    starts = starts_of(rows, accounts)
    if args.json:
        print(json_text({"job": job_id, "starts": starts}))
    elif starts:
        print("\n\n".join(["\n".join(_lines(one)) for one in starts] + _total(starts, accounts)))
    else:
        print(
            f"no start of job {plain(job_id)} is known: the engine tells one when it hears a hello of the job or a"
            " stage of its start"
        )
    return 0 if starts else 1


def print_days(args: argparse.Namespace) -> int:
    """Print what starts took of each cluster's days; return 0."""
    reader = reader_of(args)
    if reader is not None:
        rows = list(reader.call("startup", days=True)["rows"])
    else:
        with database(*database_of(args)) as ask:
            rows = _parsed(ask(DAYS_QUERY, "JSONEachRow"))
    if args.json:
        for row in rows:
            print(json_text({**row, **{name: int(row[name]) for name in ("starts", "failed_starts")}}))
        return 0
    if not rows:
        print("no start and no attempt with a known number of GPUs is in the database yet")
        return 0
    head = ("DAY", "CLUSTER", "STARTS", "FAILED", "START-UP GPU-H", "FAILED GPU-H", "ALLOCATED GPU-H", "SHARE")
    cells = [
        (
            str(row["day"]),
            plain(str(row["cluster"])),
            str(row["starts"]),
            str(row["failed_starts"]),
            f"{row['start_up_gpu_hours']:.2f}",
            f"{row['failed_gpu_hours']:.2f}",
            f"{row['allocated_gpu_hours']:.2f}",
            f"{100 * row['start_up_ratio']:.2f} %",
        )
        for row in rows
    ]
    print("\n".join(aligned([head, *cells], (0, 1))))
    return 0


def _read(args: argparse.Namespace, job_id: str) -> tuple[list[Row], list[Row]]:
    """Return the rows of a job's starts, and the accounts of its attempts' time."""
    reader = reader_of(args)
    if reader is not None:
        return list(reader.call("startup", job_id=job_id)["rows"]), list(reader.call("ettr", job_id=job_id)["rows"])
    with database(*database_of(args)) as ask:
        found = (_parsed(ask(query, "JSONEachRow")) for query in (startup_query(job_id), ettr_query(job_id)))
        rows, accounts = found
    return rows, accounts


def _parsed(answer: bytes) -> list[Row]:
    """Return the rows of an answer."""
    return [json.loads(line) for line in answer.splitlines()]


def starts_of(rows: Sequence[Row], accounts: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the starts, the oldest first, with times in seconds after the first mark of each.

    Args:
        rows: those of ``startup_query``.
        accounts: those of ``ettr_query``; they say which attempts are over.
    """
    over = {(str(one["cluster"]), int(one["attempt"])) for one in accounts if one["is_over"]}
    grouped = groupby(rows, key=lambda row: (str(row["cluster"]), int(row["attempt"]), int(row["began_ns"])))
    found = [_start(key, list(own), is_over=key[:2] in over) for key, own in grouped]
    return found[::-1]


def _start(key: tuple[str, int, int], rows: Sequence[Row], *, is_over: bool) -> dict[str, Any]:
    """Return one start."""
    cluster, attempt, began_ns = key
    whole = next((row for row in rows if not row["stage"]), rows[0])
    trained_ns, told_ns = int(whole["trained_ns"]), int(whole["told_ns"])
    stages = [row for row in rows if row["stage"]]
    zero_ns = min([began_ns, *(int(row["stage_began_ns"]) for row in stages if int(row["stage_began_ns"]))])
    over_ns, is_failed = int(whole["over_ns"]), bool(whole["is_failed"])
    return {
        "cluster": cluster,
        "attempt": attempt,
        "began_ns": began_ns,
        "zero_ns": zero_ns,
        "trained_seconds": (trained_ns - zero_ns) / NS_PER_SECOND if trained_ns else None,
        "told_seconds": (told_ns - zero_ns) / NS_PER_SECOND,
        "over_seconds": (over_ns - zero_ns) / NS_PER_SECOND if over_ns else None,
        "start_up_seconds": whole["start_up_seconds"] if trained_ns or over_ns else None,
        "so_far_seconds": None if trained_ns else (told_ns - began_ns) / NS_PER_SECOND,
        "state": "trained" if trained_ns else "failed" if is_failed else "over" if is_over else "starting",
        "hosts": int(whole["hosts"]),
        "gpus": int(whole["gpus"]),
        "gpu_seconds": whole["start_up_seconds"] * int(whole["gpus"]),
        "untold_gpu_seconds": whole["own_gpu_seconds"] if not whole["stage"] else 0.0,
        "stages": [_stage(row, zero_ns, over_ns if is_failed else 0) for row in stages],
    }


def _stage(row: Row, zero_ns: int, failed_ns: int) -> dict[str, Any]:
    """Return one stage of a start; ``failed_ns``: when it failed, 0 = it did not."""
    now_ns = failed_ns or int(row["told_ns"])

    def seconds(name: str) -> float | None:
        ts_ns = int(row[name])
        return (ts_ns - zero_ns) / NS_PER_SECOND if ts_ns else None

    began, ended, open_count = seconds("stage_began_ns"), seconds("stage_ended_ns"), int(row["open_hosts"])
    until = (now_ns - zero_ns) / NS_PER_SECOND if open_count else ended
    slowest_until_ns = int(row["slowest_ended_ns"]) or now_ns
    slowest = (slowest_until_ns - int(row["slowest_began_ns"])) / NS_PER_SECOND if row["slowest_host"] else None
    return {
        "stage": row["stage"],
        "start_kind": row["start_kind"],
        "begin_seconds": began,
        "end_seconds": None if open_count else ended,
        "job_seconds": None if began is None or until is None else until - began,
        "median_seconds": None if row["median_seconds"] < 0 else row["median_seconds"],
        "slowest_host": row["slowest_host"],
        "slowest_seconds": slowest,
        "hosts": int(row["stage_hosts"]),
        "open_hosts": open_count,
        "goes_on": open_count > 0 and not failed_ns,
        "lost_hosts": int(row["lost_hosts"]),
        "cache_hit_ratio": None if row["cache_hit_ratio"] < 0 else row["cache_hit_ratio"],
        "own_gpu_seconds": row["own_gpu_seconds"],
        "waiting_gpu_seconds": row["waiting_gpu_seconds"],
        "last_host": row["last_host"],
        "saved_gpu_seconds": row["saved_gpu_seconds"],
    }


def _lines(start: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of one start: a head, the table of its stages, the waterfall."""
    size = f"{counted(start['hosts'], 'host')}, {counted(start['gpus'], 'GPU')}"
    seconds, hours = _time(start["start_up_seconds"]), f"{start['gpu_seconds'] / 3600:.2f} GPU-hours"
    if start["state"] == "trained":
        took = f"{seconds} to training, {hours}"
    elif start["state"] == "failed":
        took = f"failed after {seconds}, {hours}"
    elif start["state"] == "over":
        took = f"never told a step; last heard of after {_time(start['so_far_seconds'])}"
        if start["over_seconds"] is not None:
            took += f"; {seconds} in stages that ended, {hours}"
    else:
        took = f"starting for {_time(start['so_far_seconds'])}"
    yield f"attempt {start['attempt']}  {size}  {took}"
    if not start["stages"]:
        yield "no stage was told: docs/startup.md says who tells them"
        return
    yield ""
    yield from aligned([_HEAD, *map(_cells, start["stages"])], _LEFT)
    if start["untold_gpu_seconds"] > 0:
        yield f"in no stage: {start['untold_gpu_seconds'] / 3600:.2f} GPU-h"
    yield ""
    yield from _waterfall(start)


def _cells(stage: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of one stage; dots after a duration that still goes on."""
    goes_on = " …" if stage["goes_on"] else ""
    slowest = f"{plain(stage['slowest_host'])} {_time(stage['slowest_seconds'])}{goes_on}"
    hits, last = stage["cache_hit_ratio"], stage["saved_gpu_seconds"] / 3600
    return (
        plain(stage["stage"] if stage["start_kind"] == "full" else f"{stage['stage']} ({stage['start_kind']})"),
        _time(stage["begin_seconds"]),
        f"{_time(stage['job_seconds'])}{goes_on}",
        _time(stage["median_seconds"]),
        slowest if stage["slowest_host"] else "-",
        str(stage["hosts"]),
        str(stage["open_hosts"]),
        str(stage["lost_hosts"]),
        "-" if hits is None else "hit" if hits == 1 else "miss" if hits == 0 else f"{100 * hits:.0f} % hits",
        f"{stage['own_gpu_seconds'] / 3600:.2f}",
        f"{stage['waiting_gpu_seconds'] / 3600:.2f}",
        f"{plain(stage['last_host'])} (+{last:.2f} GPU-h)" if stage["last_host"] else "-",
    )


def _waterfall(start: Mapping[str, Any]) -> Iterator[str]:
    """Yield a bar for each stage on the axis of time; dots where hosts are still in it."""
    ends = [one["end_seconds"] or one["begin_seconds"] or 0.0 for one in start["stages"]]
    is_open = any(one["goes_on"] for one in start["stages"])
    last = max(
        [
            *ends,
            start["trained_seconds"] or start["over_seconds"] or 0.0,
            start["told_seconds"] if is_open else 0.0,
            1e-9,
        ]
    )
    scale = BAR_CHARACTERS / last
    width = max(len(plain(one["stage"])) for one in start["stages"])
    yield f"{'':{width}}  0 s{_time(last):>{BAR_CHARACTERS - 3}}"
    for one in start["stages"]:
        end = one["end_seconds"] if one["end_seconds"] is not None else last
        begin = one["begin_seconds"] if one["begin_seconds"] is not None else end
        first = min(int(begin * scale), BAR_CHARACTERS - 1)
        count = max(1, min(round(end * scale), BAR_CHARACTERS) - first)
        yield f"{plain(one['stage']):{width}}  {'':{first}}{('.' if one['open_hosts'] else '#') * count}"


def _total(starts: Sequence[Mapping[str, Any]], accounts: Sequence[Row]) -> list[str]:
    """Return the GPU-hours of the job by cause, the largest first, as one block; none where no time counts."""
    causes: dict[str, float] = {}
    for start in starts:
        mark = " (failed)" if start["state"] == "failed" else ""
        causes[f"in no stage{mark}"] = causes.get(f"in no stage{mark}", 0.0) + start["untold_gpu_seconds"]
        for one in start["stages"]:
            own, waiting = f"{one['stage']}{mark}", f"waiting for the last host in {one['stage']}{mark}"
            causes[own] = causes.get(own, 0.0) + one["own_gpu_seconds"]
            causes[waiting] = causes.get(waiting, 0.0) + one["waiting_gpu_seconds"]
    total = sum(causes.values())
    if total <= 0:
        return []
    allocated = sum(one["wall_seconds"] * int(one["gpus"]) for one in accounts)
    lines = [f"all starts: {total / 3600:.2f} GPU-hours"]
    if allocated >= total:  # the job's own times come later than its starts
        lines[0] += f", {100 * total / allocated:.2f} % of the {allocated / 3600:.2f} that the job has had"
    lines += [
        f"  {seconds / 3600:>10.2f}  {100 * seconds / total:>5.1f} %  {plain(name)}"
        for name, seconds in sorted(causes.items(), key=lambda pair: (-pair[1], pair[0]))
        if seconds > 0
    ]
    return ["\n".join(lines)]


def _time(seconds: float | None) -> str:
    """Return a duration in seconds, - if unknown."""
    if seconds is None:
        return "-"
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"
