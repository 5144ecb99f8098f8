"""The query of ``tocsin ettr``."""

from __future__ import annotations

from typing import Final

_ACCOUNTS: Final = (
    "SELECT * EXCEPT (newest) FROM (SELECT cluster, job_id AS job, attempt, began, until, told, is_over, wall_seconds,"
    " productive_seconds, recomputed_seconds, start_up_seconds, detection_seconds, diagnosis_seconds, idle_seconds,"
    " scheduling_seconds, unattributed_seconds, ettr_ratio, steps, recomputed_steps, last_step, gpus,"
    " max(told) OVER (PARTITION BY cluster, job_id) AS newest FROM tocsin.ettr FINAL "
)
_IN_ORDER: Final = ") ORDER BY newest DESC, cluster, job, attempt, began LIMIT 1000"


def ettr_query(job_id: str | None = None) -> str:
    """Return the query for the account of each attempt, those of the job that was told last first (at most 1,000).

    Args:
        job_id: only this job's attempts; None: those of all jobs.
    """
    where = "" if job_id is None else f"WHERE job_id = unhex('{job_id.encode('utf-8', 'replace').hex()}') "
    return f"{_ACCOUNTS}{where}{_IN_ORDER}"
