"""Variables of the dashboards, and the conditions that they set in SQL."""

from __future__ import annotations

from typing import Final

from tests.tools.grafana.board import Variable

CLUSTER: Final = "$__conditionalAll(cluster IN (${cluster:singlequote}), $cluster)"
"""The row is of a chosen cluster."""
JOB: Final = "$__conditionalAll(job IN (${job:singlequote}), $job)"
"""The row is of a chosen job; for tables with a column ``job``."""
HOST: Final = "$__conditionalAll(host IN (${host:singlequote}), $host)"
"""The row is of a chosen host; for tables with a column ``host``."""
NAMES_HOST: Final = (
    "$__conditionalAll(verdict_id IN"
    " (SELECT verdict_id FROM tocsin.host_incidents WHERE host IN (${host:singlequote})), $host)"
)
"""The verdict names a chosen host."""
CHOSEN: Final = f"{CLUSTER}\n    AND {JOB}\n    AND {NAMES_HOST}"
"""The incident is of a chosen cluster and job, and names a chosen host."""
ONE_JOB: Final = "cluster = ${cluster:singlequote} AND job_id = ${job:singlequote}"
"""The row is of the chosen job; for the tables, whose column is ``job_id``."""

CLUSTERS: Final = """\
SELECT DISTINCT cluster FROM tocsin.host_health
UNION DISTINCT
SELECT DISTINCT cluster FROM tocsin.incidents"""
ANY_CLUSTER: Final = Variable("cluster", "Cluster", CLUSTERS)
THE_CLUSTER: Final = Variable("cluster", "Cluster", CLUSTERS, many=False)
ANY_JOB: Final = Variable(
    "job",
    "Job",
    f"""\
SELECT DISTINCT toString(job_id) FROM tocsin.host_health WHERE {CLUSTER}
UNION DISTINCT
SELECT DISTINCT job_id FROM tocsin.incidents WHERE {CLUSTER}""",
)
THE_JOB: Final = Variable(
    "job",
    "Job",
    """\
SELECT DISTINCT toString(job_id) FROM tocsin.host_health WHERE cluster = ${cluster:singlequote}
UNION DISTINCT
SELECT DISTINCT job_id FROM tocsin.incidents WHERE cluster = ${cluster:singlequote}""",
    many=False,
)
ANY_HOST: Final = Variable("host", "Host", f"SELECT DISTINCT host FROM tocsin.host_incidents WHERE {CLUSTER}")
HOST_OF_JOB: Final = Variable(
    "host",
    "Host",
    f"SELECT DISTINCT host FROM tocsin.host_health WHERE {ONE_JOB} AND $__timeFilter(minute)",
)
VERDICT_OF_JOB: Final = Variable(
    "verdict",
    "Evidence of",
    """\
SELECT verdict_id, concat(formatDateTime(since, '%m-%d %H:%i'), ' ', machine, ' ', cause)
FROM tocsin.incident_times
WHERE cluster = ${cluster:singlequote} AND job = ${job:singlequote} AND notEmpty(hosts)
ORDER BY since DESC
LIMIT 200""",
    many=False,
)
