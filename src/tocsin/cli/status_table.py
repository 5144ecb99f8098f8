"""The state of all jobs from the incident database, in the form of an engine's answer to ``status``.

The distributed engine answers no questions. Its jobs write their state to the table ``job_status`` every ten seconds of
event time, and the age of the newest row says whether anything is judged now.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Final

from tocsin.cli.database import Ask
from tocsin.schemas.errors import StoreError
from tocsin.schemas.printable import plain
from tocsin.schemas.records import NS_PER_SECOND

OLD_STATUS_SECONDS: Final = 60.0
"""Age of the newest state from which nothing is judged any more; a restart of the job takes half of it."""
HEARD_SECONDS: Final = 7
"""Time since its last record up to which a host counts as connected."""
_FORGOTTEN_SECONDS: Final = 3_600
"""Age against the newest state from which a job is left out, as the engine forgets silent jobs."""
_QUERY: Final = """SELECT toUnixTimestamp64Nano(ts) AS ts_ns, known, job_id, status_json, models_json
FROM tocsin.job_status FINAL ORDER BY cluster, job_id, attempt"""
_NEWEST_QUERY: Final = "SELECT count() AS count, toUnixTimestamp64Nano(max(ts)) AS ts_ns FROM tocsin.job_status"


def read_status(ask: Ask, job_id: str | None = None, now_ns: int | None = None) -> dict[str, Any]:
    """Return the newest state of each job, with the keys of an engine's answer to ``status``.

    Args:
        ask: queries the database.
        job_id: only this job's attempts, None: all.
        now_ns: the time that ages are computed for, None: the clock's.

    Raises:
        StoreError: the database cannot be read, or holds what is no state.
    """
    rows = [json.loads(line) for line in ask(_QUERY, "JSONEachRow").splitlines()]
    newest_ns = max((int(row["ts_ns"]) for row in rows), default=None)
    age_seconds = _age_seconds(newest_ns, now_ns)
    oldest_ns = (newest_ns or 0) - _FORGOTTEN_SECONDS * NS_PER_SECOND
    shown = [row for row in rows if row["known"] and int(row["ts_ns"]) > oldest_ns]
    newest = max(shown, key=lambda row: int(row["ts_ns"]), default=None)
    jobs = [_state(row) for row in shown if job_id is None or row["job_id"] == job_id]
    is_live = age_seconds is not None and age_seconds <= OLD_STATUS_SECONDS
    live = "no job has ever told its state" if age_seconds is None else f"newest state {age_seconds:.1f} s old"
    return {
        "now_ns": newest_ns,
        "counters": {},
        "jobs": jobs,
        "models": [] if newest is None else json.loads(newest["models_json"]),
        "connected_hosts": sorted({host for job in jobs for host in _heard(job)}),
        "dead_letters": [],
        "tick_age_seconds": age_seconds,
        "is_live": is_live,
        "live": live,
        "is_ready": True,
        "ready": "ok",
        "pages": [],
        "events": [],
        "letters_dropped": 0,
    }


def is_judging(ask: Ask, command: str, now_ns: int | None = None) -> bool:
    """Return whether the newest state in the database is recent; if it is old, print an error on stderr.

    Args:
        ask: queries the database.
        command: name of the command, for the message.
        now_ns: the time that the age is computed for, None: the clock's.

    Returns:
        True also where no job has told its state, since an embedded engine writes verdicts alone.
    """
    row = json.loads(ask(_NEWEST_QUERY, "JSONEachRow"))
    age_seconds = _age_seconds(int(row["ts_ns"]) if int(row["count"]) else None, now_ns)
    return age_seconds is None or tell_age(age_seconds, command)


def tell_age(age_seconds: float, command: str) -> bool:
    """Return whether a state of this age is recent; if it is not, print an error on stderr."""
    if age_seconds <= OLD_STATUS_SECONDS:
        return True
    text = f"the newest state of a job is {age_seconds:.0f} s old: nothing is judged now, and what is shown may be old"
    print(plain(f"tocsin {command}: {text}; see tocsin flink status, and the sink's lag"), file=sys.stderr)
    return False


def _age_seconds(ts_ns: int | None, now_ns: int | None) -> float | None:
    """Return the age of a state, None where there is none."""
    if ts_ns is None:
        return None
    return max(0.0, ((time.time_ns() if now_ns is None else now_ns) - ts_ns) / NS_PER_SECOND)


def _state(row: dict[str, Any]) -> dict[str, Any]:
    """Return an attempt's entry in the answer; raise ``StoreError`` where the row holds none."""
    try:
        found = json.loads(row["status_json"])
        _ = found["hosts"], found["ranks"], found["verdicts"]
    except (ValueError, KeyError, TypeError) as error:
        text = f"the row of job {row['job_id']!r} in tocsin.job_status is no state: {error!r}"
        raise StoreError(f"{text}; is it of another version?") from error
    return dict(found)


def _heard(job: dict[str, Any]) -> list[str]:
    """Return the hosts of a job that were heard lately."""
    return [name for name, facts in job["hosts"].items() if facts["last_seen_seconds"] <= HEARD_SECONDS]
