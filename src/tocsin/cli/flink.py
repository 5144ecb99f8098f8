"""``tocsin flink submit | status | savepoint | upgrade | cancel``: the job on a Flink cluster."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import time
import urllib.parse
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TextIO

from tocsin.cli.cluster.state import default_folder, read_state
from tocsin.cli.flink_options import (
    add_job_arguments,
    changes,
    job_options,
    keep,
    running_options,
    unknown_names,
    upgraded_options,
)
from tocsin.cli.interrupts import Interrupts
from tocsin.cli.kafka import settings_of
from tocsin.pipeline.runtime.flink.options import JobOptions
from tocsin.pipeline.runtime.flink.rest import FlinkJob, FlinkRest
from tocsin.schemas.errors import ConfigError, EngineError, TocsinError
from tocsin.schemas.kafka.settings import KafkaSettings
from tocsin.schemas.printable import json_text, plain

if TYPE_CHECKING:
    from tocsin.cli.cluster.submit import Origin, Submission

URL_VARIABLE: Final = "TOCSIN_FLINK"
_DEFAULT_URL: Final = "http://127.0.0.1:8081"
_SPARE_SECONDS: Final = 0.2
_RESTORED_CHECKPOINTS_COUNT: Final = 2
"""Checkpoints after which what was restored counts as taken over."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verbs and their flags."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    submit = verbs.add_parser("submit", help="hand the job to the cluster")
    upgrade = verbs.add_parser(
        "upgrade", help="savepoint, stop, submit again from it; back to the old one if that fails"
    )
    status = verbs.add_parser("status", help="the cluster, the job, its checkpoints and counters")
    savepoint = verbs.add_parser("savepoint", help="take a savepoint while the job goes on; prints where it lies")
    cancel = verbs.add_parser("cancel", help="end the job; its last checkpoint stays")
    for verb in (submit, upgrade, status, savepoint, cancel):
        verb.add_argument(
            "--rest",
            metavar="URL",
            help=f"the JobManager, http://HOST:PORT [env: {URL_VARIABLE}; default: the cluster of 'tocsin cluster up',"
            f" else {_DEFAULT_URL}]",
        )
        verb.add_argument("--name", default="tocsin", help="the job's name (default: %(default)s)")
    add_job_arguments(submit)
    add_job_arguments(upgrade, is_kept=True)
    for verb in (savepoint, upgrade):
        verb.add_argument("--to", default="", metavar="FOLDER", help="where savepoints go (default: as Flink is set)")
    status.add_argument("--json", action="store_true", help="one JSON object")
    text = "show which slot works on it: two large jobs in one slot share its time, another --parallelism may part them"
    status.add_argument("--job", action="append", default=[], metavar="CLUSTER/JOB", help=text)
    text = "savepoint, or checkpoint that stayed, to begin with"
    submit.add_argument("--from-savepoint", default="", metavar="PATH", help=text)


def run(args: argparse.Namespace) -> int:
    """Do what the verb says."""
    rest = FlinkRest(rest_url(args.rest))
    verbs = {"submit": _submit, "upgrade": _upgrade, "status": _status, "savepoint": _savepoint, "cancel": _cancel}
    return verbs[args.verb](rest, args)


def rest_url(named: str | None) -> str:
    """Return the JobManager's address: the flag, the environment, the local cluster, Flink's default."""
    if url := named or os.environ.get(URL_VARIABLE):
        return url
    state = read_state(default_folder())
    return state.addresses.get("flink", _DEFAULT_URL) if state is not None else _DEFAULT_URL


def check_python(rest: FlinkRest, path: str) -> None:
    """See that the TaskManagers' Python is there, where they are on this machine.

    One that is missing can take a TaskManager of Flink 2.2 down ("Reference count must not be negative").

    Raises:
        ConfigError: it is not.
    """
    if urllib.parse.urlsplit(rest.url).hostname in {"127.0.0.1", "localhost", "::1"} and shutil.which(path) is None:
        raise ConfigError("--python", path, "a Python interpreter of the TaskManagers' machines")


def check_topics(settings: KafkaSettings, prefix: str) -> None:
    """See that the topics are there; what differs otherwise is said on stderr.

    Raises:
        EngineError: the broker cannot be asked, or a topic is missing.
    """
    from tocsin.pipeline.kafka import topics

    differences, command = topics.check(settings, topics.WantedTopics(prefix)), "tocsin topics apply"
    missing = [difference.topic for difference in differences if difference.what == "missing"]
    if missing:
        where = ",".join(settings.servers)
        raise EngineError(
            f"{len(missing)} topics are missing at {where}: {', '.join(missing)};"
            f" 'tocsin topics apply --kafka {where} --topic-prefix {prefix}' makes them"
        )
    if differences:
        # of topics that were made for replays, which plain 'topics apply' would undo
        others = topics.check(settings, topics.WantedTopics(prefix, is_for_replays=True))
        if len(others) < len(differences):
            differences, command = others, f"{command} --retain-forever"
    where = f"--kafka {','.join(settings.servers)} --topic-prefix {prefix}"
    for difference in differences:
        print(f"tocsin flink: {difference}: '{command} {where}' mends it", file=sys.stderr)


def find_job(rest: FlinkRest, name: str) -> FlinkJob | None:
    """Return the job of this name that is not over, None: there is none."""
    return next((job for job in rest.jobs() if job.name == name and not job.is_over), None)


def _need_job(rest: FlinkRest, name: str) -> FlinkJob:
    job = find_job(rest, name)
    if job is None:
        others = [other.name for other in rest.jobs() if not other.is_over]
        told = f"; there are: {', '.join(others)} (--name)" if others else "; no job runs there"
        raise EngineError(f"no job {name!r} at {rest.url}{told}")
    return job


def _need_running(rest: FlinkRest, name: str) -> FlinkJob:
    job = _need_job(rest, name)
    if job.state != "RUNNING":
        raise EngineError(
            f"{name!r} ({job.job_id}) is {job.state.lower()} and makes no savepoint now: "
            "'tocsin flink status' says why, 'tocsin flink cancel' names its last checkpoint"
        )
    return job


def _submit(rest: FlinkRest, args: argparse.Namespace) -> int:
    from tocsin.cli.cluster.submit import Origin, Submission, submit

    settings = settings_of(args)
    options = job_options(args, settings)
    there = find_job(rest, args.name)
    if there is not None:
        told = f"{there.name!r} is there already as {there.job_id} ({there.state})"
        raise EngineError(f"{told}: 'tocsin flink upgrade' takes its place, --name gives the new one another name")
    check_python(rest, args.python)
    check_topics(settings, args.topic_prefix)
    origin = replace(Origin(), worker_python=args.python)
    job_id = submit(Submission(options.to_json(), rest.url, origin, args.from_savepoint))
    try:
        _wait(rest, job_id, args.wait_seconds, options if args.from_savepoint else None)
    except EngineError as error:
        told = "'tocsin flink status' says how it goes on, 'tocsin flink cancel' ends it"
        raise EngineError(f"{error}; {told}") from error
    print(f"{args.name}: running as {job_id} at {rest.url}")
    return 0


def _tell_changes(shown: str, options: JobOptions, old: Origin, new: Origin) -> None:
    told = changes(running_options(shown), options)
    told += [f"{name}: left out, this version does not know it" for name in unknown_names(shown)]
    if old.version != new.version:
        told.append(f"tocsin: {old.version} -> {new.version}")
    if old.worker_python != new.worker_python:
        told.append(f"--python: {old.worker_python} -> {new.worker_python}")
    print("\n".join(["what changes:", *(f"  {line}" for line in told)] if told else ["no option changes"]), flush=True)


def _wait(rest: FlinkRest, job_id: str, seconds: float, restored: JobOptions | None) -> None:
    """Wait until it runs and, where it was restored with these options, has taken the state over."""
    from tocsin.cli.cluster.submit import wait_running

    count = 0 if restored is None else _RESTORED_CHECKPOINTS_COUNT
    wait_running(rest, job_id, seconds + (count * restored.checkpoint_seconds if restored else 0), count)


def _upgrade(rest: FlinkRest, args: argparse.Namespace) -> int:
    from tocsin.cli.cluster.submit import Origin, Submission, origin_of, submit

    old = _need_running(rest, args.name)
    shown = rest.options(old.job_id)
    if not shown:
        raise EngineError(f"{args.name!r} ({old.job_id}) was not submitted by 'tocsin flink submit': it has no options")
    running = running_options(shown)
    keep(args, running)
    settings = settings_of(args)
    options = upgraded_options(args, settings, running)
    origin = replace(Origin(), worker_python=args.python)
    check_python(rest, args.python)
    check_topics(settings, args.topic_prefix)
    _tell_changes(shown, options, origin_of(shown), origin)
    again = json.loads(shown)
    again["stream"]["properties"] = dict(options.stream.properties)  # passwords are in no job's options
    with Interrupts() as interrupts:  # while it is stopped: without the savepoint's path there is no way back
        path = rest.stop(old.job_id, args.to)
        try:
            _tell(f"stopped with a savepoint: {path}")
            interrupts.release()
            job_id = submit(Submission(options.to_json(), rest.url, origin, path))
            _wait(rest, job_id, args.wait_seconds, options)
        except (TocsinError, OSError, KeyboardInterrupt) as error:
            why = str(error) or "interrupted"
            _tell(f"the new job did not start ({why}); going back to the old one", sys.stderr)
            job_id = _go_back(rest, Submission(json.dumps(again), rest.url, origin_of(shown), path), args.name)
            raise EngineError(f"not upgraded: {why}; the old job runs again as {job_id}") from error
    print(f"{args.name}: running as {job_id} at {rest.url}")
    return 0


def _go_back(rest: FlinkRest, old: Submission, name: str) -> str:
    """Submit the old job again in the place of a new one, and return its number."""
    from tocsin.cli.cluster.submit import submit, wait_running

    try:
        new = find_job(rest, name)  # by name: a submission that was interrupted told us no number
        if new is not None:
            rest.cancel(new.job_id)
        job_id = submit(old)
        wait_running(rest, job_id)
    except (TocsinError, OSError) as error:
        told = f"the way back failed, too: {error}; 'tocsin flink status' says whether a job is there,"
        raise EngineError(f"{told} 'tocsin flink submit --from-savepoint {old.restore}' begins one") from error
    return job_id


def _tell(text: str, to: TextIO | None = None) -> None:
    """Say it where somebody still listens: a terminal that is gone must not end what goes on."""
    with contextlib.suppress(OSError):
        print(text, file=to or sys.stdout, flush=True)


def _savepoint(rest: FlinkRest, args: argparse.Namespace) -> int:
    print(rest.savepoint(_need_running(rest, args.name).job_id, args.to))
    return 0


def _cancel(rest: FlinkRest, args: argparse.Namespace) -> int:
    job = _need_job(rest, args.name)
    path = rest.checkpoints(job.job_id).last_path if rest.keeps_checkpoints(job.job_id) else ""
    rest.cancel(job.job_id)
    if path:
        with contextlib.suppress(EngineError):  # a JobManager of this job alone ends with it
            time.sleep(rest.stale_seconds() + _SPARE_SECONDS)  # a newer one may have taken the place of that one
            path = rest.checkpoints(job.job_id).last_path or path
    kept = f"; its last checkpoint: {path} (submit --from-savepoint takes it)" if path else ""
    print(f"{args.name}: cancelled {job.job_id}{kept}")
    return 0


def _status(rest: FlinkRest, args: argparse.Namespace) -> int:
    from tocsin.cli.flink_status import describe, facts

    for job in args.job:
        if not all(job.partition("/")):
            raise ConfigError("--job", job, "CLUSTER/JOB")
    found = facts(rest, args.name, args.job)
    print(json_text(found, indent=2) if args.json else "\n".join(map(plain, describe(found))))
    known: dict[str, Any] | None = found["job"]
    return 0 if known is not None and known["is_running"] else 1
