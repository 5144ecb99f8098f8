"""The queries of ``tocsin startup``: the starts of a job, and what starts took of a cluster's days."""

from __future__ import annotations

from typing import Final

_STARTS: Final = (
    "SELECT cluster, job_id AS job, attempt, start_kind, stage, toUnixTimestamp64Nano(s.began) AS began_ns,"
    " toUnixTimestamp64Nano(s.told) AS told_ns, toUnixTimestamp64Nano(s.trained) AS trained_ns,"
    " toUnixTimestamp64Nano(s.over) AS over_ns, is_failed,"
    " toUnixTimestamp64Nano(s.stage_began) AS stage_began_ns, toUnixTimestamp64Nano(s.stage_ended) AS stage_ended_ns,"
    " toUnixTimestamp64Nano(s.slowest_began) AS slowest_began_ns,"
    " toUnixTimestamp64Nano(s.slowest_ended) AS slowest_ended_ns, start_up_seconds, hosts, gpus, stage_hosts,"
    " open_hosts, lost_hosts, median_seconds, slowest_host, last_host, saved_gpu_seconds, own_gpu_seconds,"
    " waiting_gpu_seconds, cache_hit_ratio FROM tocsin.startup AS s FINAL "
)
_IN_ORDER: Final = " ORDER BY began_ns DESC, attempt DESC, cluster, stage != '', stage_began_ns, stage LIMIT 2000"
DAYS_QUERY: Final = (
    "SELECT cluster, toString(day) AS day, starts, failed_starts, start_up_gpu_hours, failed_gpu_hours,"
    " allocated_gpu_hours, start_up_ratio"
    " FROM tocsin.startup_by_day ORDER BY day DESC, cluster LIMIT 400"
)
"""The newest days of all clusters."""


def startup_query(job_id: str) -> str:
    """Return the query for the stages of a job's starts, the newest start first (at most 2,000 rows).

    Times are Unix nanoseconds.
    """
    return f"{_STARTS}WHERE job_id = unhex('{job_id.encode('utf-8', 'replace').hex()}'){_IN_ORDER}"
