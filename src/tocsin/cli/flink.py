"""``tocsin flink submit | status | savepoint | upgrade | cancel``: the job on a Flink cluster."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import urllib.parse
from dataclasses import replace
from typing import Any, Final

from tocsin.cli.cluster.state import default_folder, read_state
from tocsin.cli.kafka import add_kafka_arguments, settings_of
from tocsin.pipeline.flink.options import JobOptions
from tocsin.pipeline.flink.rest import FlinkRest, Job
from tocsin.pipeline.flink.sql import STARTS, StreamOptions
from tocsin.schemas.errors import ConfigError, EngineError
from tocsin.schemas.kafka_settings import KafkaSettings

URL_VARIABLE: Final = "TOCSIN_FLINK"
_DEFAULT_URL: Final = "http://127.0.0.1:8081"
_UPGRADE_CHECKPOINTS_COUNT: Final = 2


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
    for verb in (submit, upgrade):
        _add_job_arguments(verb)
    for verb in (savepoint, upgrade):
        verb.add_argument("--to", default="", metavar="FOLDER", help="where savepoints go (default: as Flink is set)")
    status.add_argument("--json", action="store_true", help="one JSON object")
    text = "show which slot works on it: two large jobs in one slot share its time, another --parallelism may part them"
    status.add_argument("--job", action="append", default=[], metavar="CLUSTER/JOB", help=text)
    text = "savepoint, or checkpoint that stayed, to begin with"
    submit.add_argument("--from-savepoint", default="", metavar="PATH", help=text)


def _add_job_arguments(parser: argparse.ArgumentParser) -> None:
    add_kafka_arguments(parser)
    text = "between two checkpoints: what is said again after a failure (default: %(default)s)"
    parser.add_argument("--checkpoint-seconds", type=float, default=10.0, metavar="S", help=text)
    parser.add_argument("--parallelism", type=int, default=1, metavar="N", help="slots to use (default: %(default)s)")
    text = "every so often each job gets a verdict that measures the way to the tables (default: never)"
    parser.add_argument("--canary-seconds", type=int, default=0, metavar="S", help=text)
    text = "stream seconds between two snapshots of a job's operators (default: %(default)s)"
    parser.add_argument("--snapshot-seconds", type=int, default=60, metavar="S", help=text)
    text = "where to begin without a savepoint; committed: where the group stood, else latest (default: %(default)s)"
    parser.add_argument("--start", choices=tuple(STARTS), default="committed", help=text)
    text = "verdicts in transactions: none comes twice, each comes a checkpoint later"
    parser.add_argument("--exactly-once", action="store_true", help=text)
    parser.add_argument("--group", metavar="NAME", help="consumer group (default: <topic prefix>.flink)")
    text = "how long it may take until all parts run (default: %(default)s)"
    parser.add_argument("--wait-seconds", type=float, default=120.0, metavar="S", help=text)
    text = "Python on the TaskManagers' machines, with this tocsin (default: this one, %(default)s)"
    parser.add_argument("--python", default=sys.executable, metavar="PATH", help=text)


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


def job_options(args: argparse.Namespace, settings: KafkaSettings) -> JobOptions:
    """Return what the flags say.

    Raises:
        ConfigError: names the flag.
    """
    properties = settings.java_properties()
    servers = properties.pop("bootstrap.servers")
    if properties == {"security.protocol": "PLAINTEXT"}:
        properties = {}
    stream = StreamOptions(
        servers,
        args.topic_prefix,
        properties,
        args.group or f"{args.topic_prefix}.flink",
        args.start,
        is_exactly_once=args.exactly_once,
    )
    return JobOptions(
        stream, args.name, args.checkpoint_seconds, args.parallelism, args.snapshot_seconds, args.canary_seconds
    )


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
    from tocsin.pipeline.bus import topics

    differences = topics.check(settings, topics.Wish(prefix))
    missing = [difference.topic for difference in differences if difference.what == "missing"]
    if missing:
        where = ",".join(settings.servers)
        raise EngineError(
            f"{len(missing)} topics are missing at {where}: {', '.join(missing)};"
            f" 'tocsin topics apply --kafka {where} --topic-prefix {prefix}' makes them"
        )
    for difference in differences:
        print(f"tocsin flink: {difference}: 'tocsin topics apply' mends it", file=sys.stderr)


def find_job(rest: FlinkRest, name: str) -> Job | None:
    """Return the job of this name that is not over, None: there is none."""
    return next((job for job in rest.jobs() if job.name == name and not job.is_over), None)


def _need_job(rest: FlinkRest, name: str) -> Job:
    job = find_job(rest, name)
    if job is None:
        others = [other.name for other in rest.jobs() if not other.is_over]
        told = f"; there are: {', '.join(others)} (--name)" if others else "; no job runs there"
        raise EngineError(f"no job {name!r} at {rest.url}{told}")
    return job


def _submit(rest: FlinkRest, args: argparse.Namespace) -> int:
    from tocsin.cli.cluster.submit import Origin, Submission, submit, wait_running

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
        wait_running(rest, job_id, args.wait_seconds)
    except EngineError as error:
        told = "'tocsin flink status' says how it goes on, 'tocsin flink cancel' ends it"
        raise EngineError(f"{error}; {told}") from error
    print(f"{args.name}: running as {job_id} at {rest.url}")
    return 0


def _upgrade(rest: FlinkRest, args: argparse.Namespace) -> int:
    from tocsin.cli.cluster.submit import Origin, Submission, origin_of, submit, wait_running

    settings = settings_of(args)
    options = job_options(args, settings)
    old = _need_job(rest, args.name)
    shown = rest.options(old.job_id)
    if not shown:
        raise EngineError(f"{args.name!r} ({old.job_id}) was not submitted by 'tocsin flink submit': it has no options")
    check_python(rest, args.python)
    check_topics(settings, args.topic_prefix)
    path = rest.stop(old.job_id, args.to)
    print(f"stopped with a savepoint: {path}", flush=True)
    job_id = ""
    try:
        job_id = submit(Submission(options.to_json(), rest.url, replace(Origin(), worker_python=args.python), path))
        wait_running(rest, job_id, args.wait_seconds, _UPGRADE_CHECKPOINTS_COUNT)
    except (EngineError, KeyboardInterrupt) as error:
        why = str(error) or "interrupted"
        print(f"the new job did not start ({why}); going back to the old one", file=sys.stderr, flush=True)
        if job_id and any(job.job_id == job_id and not job.is_over for job in rest.jobs()):
            rest.cancel(job_id)
        again = json.loads(shown)
        again["stream"]["properties"] = dict(options.stream.properties)  # passwords are in no job's options
        job_id = submit(Submission(json.dumps(again), rest.url, origin_of(shown), path))
        wait_running(rest, job_id)
        raise EngineError(f"not upgraded: {why}; the old job runs again as {job_id}") from error
    print(f"{args.name}: running as {job_id} at {rest.url}")
    return 0


def _savepoint(rest: FlinkRest, args: argparse.Namespace) -> int:
    print(rest.savepoint(_need_job(rest, args.name).job_id, args.to))
    return 0


def _cancel(rest: FlinkRest, args: argparse.Namespace) -> int:
    job = _need_job(rest, args.name)
    path = rest.checkpoints(job.job_id).last_path if rest.keeps_checkpoints(job.job_id) else ""
    rest.cancel(job.job_id)
    kept = f"; its last checkpoint: {path} (submit --from-savepoint takes it)" if path else ""
    print(f"{args.name}: cancelled {job.job_id}{kept}")
    return 0


def _status(rest: FlinkRest, args: argparse.Namespace) -> int:
    from tocsin.cli.flink_status import describe, facts

    for job in args.job:
        if not all(job.partition("/")):
            raise ConfigError("--job", job, "CLUSTER/JOB")
    found = facts(rest, args.name, args.job)
    print(json.dumps(found, indent=2) if args.json else "\n".join(describe(found)))
    known: dict[str, Any] | None = found["job"]
    return 0 if known is not None and known["is_running"] else 1
