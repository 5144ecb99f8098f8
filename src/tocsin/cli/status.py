"""``tocsin status``: shows the engine's state of each job, and why there is no verdict."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tocsin.cli.database import add_database_arguments, database, database_of
from tocsin.cli.detectors import learned_lines
from tocsin.cli.engine_reader import add_engine_arguments, reader_of
from tocsin.cli.main import EXIT_ERROR
from tocsin.cli.paths import control_socket
from tocsin.cli.status_table import read_status, tell_age
from tocsin.cli.ticks import engine_ticks, is_ticking
from tocsin.pipeline.runtime.embedded.control_socket import ANSWER_TIMEOUT_SECONDS, ControlClient, EngineAbsentError
from tocsin.pipeline.stores.clickhouse_address import ClickHouseAddress
from tocsin.schemas.printable import json_text, plain
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import IDLE_JOB_ID, NS_PER_SECOND

_MEANINGS = {reason.value: reason.meaning for reason in Reason}
_HOOK = {True: "present", False: "absent: no step records, only events and silence can speak"}
_METRIC_SLICE_SECONDS = 7
"""Age up to which a host counts as heard: one metric slice, its lateness and the transport."""
_STALLED_ENGINE_SECONDS = 5.0
"""Time-out of the query to an engine that does not tick; it may hold the lock that the answer needs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags to the parser."""
    parser.add_argument("job", nargs="?", help="job id (default: all jobs)")
    parser.add_argument("--json", action="store_true", help="the engine's answer as it is")
    add_database_arguments(parser)
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Query the engine, or the tables of a distributed one, and print its state.

    Returns:
        The exit status: 0, 1 if the job that was asked for is unknown, 2 if the engine does not tick.
    """
    answer, ticks = asked(args, args.job)
    if args.json:
        print(json_text(answer, indent=2))
        return 0 if ticks else EXIT_ERROR
    status = _show(args, answer)
    return status if ticks else EXIT_ERROR


def asked(args: argparse.Namespace, job: str | None = None) -> tuple[dict[str, Any], bool]:
    """Return the answer of the engine, or of the database of a distributed one, and whether anything is judged now.

    Without flags it is this machine's engine; where none runs, the server that the environment names.

    Args:
        args: flags of ``add_database_arguments`` and ``add_engine_arguments``.
        job: id of the job to ask for, None: all.
    """
    about = {"job_id": job} if job else {}
    reader = reader_of(args)
    if reader is not None:
        answer = reader.call("status", **about)
        return answer, is_ticking(answer, "status")
    data, address = database_of(args)
    if args.clickhouse:
        return _from_table(job, data, address)
    try:
        ticks = engine_ticks(data, "status")
        client = ControlClient(control_socket(data), ANSWER_TIMEOUT_SECONDS if ticks else _STALLED_ENGINE_SECONDS)
        return client.call("status", **about), ticks
    except EngineAbsentError:
        if address is None:
            raise
        return _from_table(job, data, address)


def _from_table(job: str | None, data: Path, address: ClickHouseAddress | None) -> tuple[dict[str, Any], bool]:
    """Return the newest states in the database, and whether they are recent."""
    with database(data, address) as ask:
        answer = read_status(ask, job)
    age_seconds = answer["tick_age_seconds"]
    return answer, age_seconds is not None and tell_age(age_seconds, "status")


def _show(args: argparse.Namespace, answer: dict[str, Any]) -> int:
    """Print the answer as text; return the exit status, 1 if the job that was asked for is unknown."""
    for line in _engine_lines(answer):
        print(plain(line))
    refused = answer.get("server", {}).get("refused_clock_ahead", 0)
    if refused:
        print(f"refused   {refused} records from the future: a host's clock is ahead (its agent corrects its stamps)")
    if not answer["jobs"]:
        what = f"job {plain(args.job)}" if args.job else "any job"
        runs = "" if answer["tick_age_seconds"] is None else "runs and "
        print(f"The engine {runs}has heard nothing of {what}.")
        print(f"Connected agents: {', '.join(map(plain, answer['connected_hosts'])) or 'none'}.")
        _print_models(answer)
        return 1 if args.job else 0
    for job in answer["jobs"]:
        if job["job_id"] == IDLE_JOB_ID and args.job != IDLE_JOB_ID:
            fresh = [
                name for name, facts in job["hosts"].items() if facts["last_seen_seconds"] <= _METRIC_SLICE_SECONDS
            ]
            print(f"idle      {len(fresh)} hosts without a job: judged by the events of their own hardware alone")
            continue
        for line in describe(job, answer["connected_hosts"]):
            print(plain(line))
    for fleet in answer.get("fleet", {}).get("clusters", ()):
        print(plain(_fleet_line(fleet)))
    _print_models(answer)
    for dead_letter in answer["dead_letters"]:
        print(
            plain(f"dead letter from {dead_letter['host'] or '?'}: {dead_letter['reason']}: {dead_letter['message']}")
        )
    return 0


def _engine_lines(answer: dict[str, Any]) -> Iterator[str]:
    """Yield the lines about the engine itself: the age of its newest tick, and its problems."""
    age_seconds = answer["tick_age_seconds"]
    yield (
        f"engine    {answer['live']}"
        if age_seconds is None
        else (f"engine    newest tick {age_seconds:.1f} s old, {answer['live']}")
    )
    if not answer["is_ready"]:
        yield f"engine    not ready: {answer['ready']}"
    for page in answer["pages"]:
        if page.startswith("none"):
            yield f"engine    no metrics page: {page.removeprefix('none: ')}"
    yield from _alert_lines(answer.get("alerts"))
    for event in answer["events"]:
        seconds = max(0.0, (answer["now_ns"] or 0) - event["ts_ns"]) / NS_PER_SECOND
        if event["name"] == Reason.CLOCK_JUMPED:
            whose = "its hosts show that its own clock is wrong" if event["follows_hosts"] else "its clock was set"
            text = f"{whose}, its time changed by {event['jump_seconds']:+.1f} s: all jobs began anew"
        else:
            text = f"{event['name']} in job {event['job']}: {event['error']}"
        yield f"engine    {seconds:.0f} s ago: {text}"
    notes = answer.get("notes", {})
    if notes.get("on") or notes.get("planned"):
        yield f"work      {notes['on']} going on, {notes['planned']} planned for later (tocsin maintenance list)"
    if answer["letters_dropped"]:
        yield f"engine    {answer['letters_dropped']} dead letters and late records were not kept: too many"


def _fleet_line(fleet: dict[str, Any]) -> str:
    """Return the line about the hosts of one cluster over all its jobs."""
    return (
        f"fleet     {fleet['cluster']}: {fleet['hosts_known']} hosts known, {fleet['hosts_idle']} idle, "
        f"{fleet['host_incidents']} incidents of idle hosts, {fleet['fleet_incidents']} of the fleet (they stand for "
        f"{fleet['covered_verdicts']} others), {fleet['repeat_offenders']} repeat offenders"
    )


def _alert_lines(alerts: dict[str, Any] | None) -> Iterator[str]:
    """Yield the lines about what keeps people from being told."""
    if alerts is None:
        return
    if alerts["queue_begun_anew"]:
        yield f"alerts    the queue begins anew: {alerts['queue_begun_anew']}"
    if alerts["watchdog"].get("withheld"):
        yield f"alerts    the watchdog's notice is withheld: {alerts['watchdog']['withheld']}"
    for receiver, reason in alerts["troubles"].items():
        waiting = alerts["waiting"].get(receiver, 0)
        yield f"alerts    receiver {receiver}: {reason}; {waiting} notices wait"
    for reason, count in alerts.get("untold_incidents", {}).items():
        yield f"alerts    {count} standing incidents nobody was told of: {reason}"


def _print_models(answer: dict[str, Any]) -> None:
    """Print the state of the models that the engine uses."""
    for model in answer.get("models", ()):
        when = ""
        if model["state"] == "in use":
            since = datetime.fromtimestamp(model["effective_ns"] / NS_PER_SECOND, UTC)
            when = f" since {since:%Y-%m-%d %H:%M:%S} UTC"
        print(plain(f"model     {model['detector']} {model['version']}: {model['state']}{when}"))


def describe(job: dict[str, Any], connected: list[str]) -> list[str]:
    """Return the lines about one job."""
    hosts, ranks = job["hosts"], job["ranks"]
    if job.get("superseded"):  # its steps and hosts are history; the later attempt's are shown
        return [f"job {job['job_id']} (cluster {job['cluster']}, attempt {job['attempt']}), over: a later attempt runs"]
    stepping_count = job.get("stepping_rank_count", sum(facts["steps_per_second"] > 0 for facts in ranks.values()))
    lines = [
        f"job {job['job_id']} (cluster {job['cluster']}, attempt {job['attempt']})"
        + (", ended" if job["ended"] else ""),
        f"  hosts     {job.get('host_count', len(hosts))} known, {sum(host in connected for host in hosts)} connected",
        f"  ranks     {job.get('rank_count', len(ranks))} of {job['world_size']} known, {stepping_count} making steps",
        f"  newest    step {job['max_step']}",
        f"  hook      {_HOOK[bool(job['hook_present'])]}",
        f"  groups    {job['groups']} communication groups known",
        f"  step      {job['step_seconds'] * 1e3:.0f} ms",
        *_mfu_lines(job.get("mfu")),
    ]
    lines += [_host_line(name, facts) for name, facts in hosts.items() if _is_odd(facts)]
    lines += _abstention_lines(job["abstained"])
    lines += learned_lines(job.get("learned", []), job.get("models_in_use", {}))
    for verdict in job["verdicts"]:
        who = ", ".join(suspect["name"] for suspect in verdict["suspects"]) or "nobody"
        lines.append(f"  verdict   {verdict['state']}: {verdict['fault']}, {who}, cause {verdict['cause']}")
    if not job["verdicts"]:
        lines.append("  verdict   none: nothing is wrong that could be seen")
    return lines


def _mfu_lines(mfu: dict[str, Any] | None) -> list[str]:
    """Return the line about the model FLOPs utilization; none where the job does not tell its model's operations."""
    if mfu is None:
        return []
    tera = f"each GPU does {mfu['flops_per_second'] / 1e12:.3g} TFLOP/s of the model's work"
    if mfu["mfu_ratio"] is None:
        gpu = f"the peak of {mfu['gpu']!r} is in no table" if mfu["gpu"] else "no rank tells its GPU"
        return [f"  mfu       unknown ({mfu['reason']}): {gpu}, give peak_flops_per_second; {tera}"]
    best = "" if mfu["best_ratio"] is None else f", the best level was {100 * mfu['best_ratio']:.1f} %"
    return [f"  mfu       {100 * mfu['mfu_ratio']:.1f} %{best}; {tera}"]


def _is_odd(facts: dict[str, Any]) -> bool:
    """Return whether a host is worth a line: it is silent, sends late records, or its clock is off."""
    quiet = facts["last_seen_seconds"] > _METRIC_SLICE_SECONDS
    return bool(quiet or facts["late"] or abs(facts["clock_offset_seconds"]) > 0.2)


def _host_line(name: str, facts: dict[str, Any]) -> str:
    """Return the line about one host."""
    return (
        f"  host      {name}: last heard {facts['last_seen_seconds']:.1f} s ago, {facts['late']} late records, "
        f"clock {facts['clock_offset_seconds'] * 1e3:+.0f} ms (error {facts['clock_error_seconds'] * 1e3:.0f} ms)"
    )


def _abstention_lines(abstained: dict[str, int]) -> list[str]:
    """Return a line for each reason why no verdict was given, the most frequent first."""
    return [
        f"  abstained {count} x {reason}" + (f": {_MEANINGS[reason]}" if reason in _MEANINGS else "")
        for reason, count in sorted(abstained.items(), key=lambda item: -item[1])
    ]
