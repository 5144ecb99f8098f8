"""The dashboard of all jobs and machines."""

from __future__ import annotations

from typing import Final

from tests.tools.grafana.board import Board, Panel, Prom, Sql
from tests.tools.grafana.choices import ANY_CLUSTER, ANY_HOST, ANY_JOB, CHOSEN, CLUSTER, HOST, JOB

_OPEN: Final = f"""\
SELECT count() AS incidents
FROM tocsin.incidents_current
WHERE {CHOSEN}"""
_CONFIRMED: Final = f"{_OPEN}\n    AND state = 'confirmed'"
_OFFENDERS: Final = f"""\
SELECT host, incidents, by_people, jobs, arrayStringConcat(causes, ', ') AS causes, first, last, cluster
FROM tocsin.repeat_offenders
WHERE {CLUSTER}
    AND {HOST}
ORDER BY incidents DESC, last DESC
LIMIT 50"""
_MAINTENANCE: Final = f"""\
SELECT target_kind AS kind, target, begins, ends, reason, actor, cluster
FROM tocsin.maintenance FINAL
WHERE ends > now() AND {CLUSTER}
ORDER BY begins"""
_STANDING: Final = f"""\
SELECT since, job, machine, what, why, state, confidence, action, verdict_id, cluster
FROM tocsin.incidents_current
WHERE {CHOSEN}
ORDER BY since"""
_BY_CAUSE: Final = f"""\
SELECT
    cause,
    count() AS incidents,
    uniqExact(job) AS jobs,
    countIf(judgement = 'right') AS upheld,
    countIf(judgement = 'wrong') AS wrong,
    max(since) AS newest
FROM tocsin.incident_times
WHERE was_confirmed AND $__timeFilter(since)
    AND {CHOSEN}
GROUP BY cause
ORDER BY incidents DESC"""
_EACH_DAY: Final = f"""\
SELECT toStartOfDay(since) AS time, toString(cause) AS cause, count() AS incidents
FROM tocsin.incident_times
WHERE was_confirmed AND $__timeFilter(since)
    AND {CHOSEN}
GROUP BY time, cause
ORDER BY time"""
_SHOWN: Final = (
    "count by (fault, state) (max by (cluster, exported_job, host, fault, cause, state)"
    ' (tocsin_incident{cluster=~"$cluster", exported_job=~"$job", host=~"$host"}))'
)
_ALARMS: Final = f"""\
SELECT
    a.cluster AS cluster,
    a.detector AS detector,
    a.model_version AS model_version,
    sum(a.alarms) AS alarms,
    sum(a.false_alarms) AS false_alarms,
    round(alarms / any(w.days), 5) AS alarms_per_machine_day
FROM (SELECT * FROM tocsin.alarms_by_detector WHERE $__dateFilter(day) AND {CLUSTER}) AS a
INNER JOIN
(
    SELECT cluster, sum(machine_days) AS days
    FROM tocsin.machine_days
    WHERE $__dateFilter(day)
    GROUP BY cluster
) AS w ON w.cluster = a.cluster
GROUP BY cluster, detector, model_version
ORDER BY alarms DESC"""
_DETECTION: Final = f"""\
SELECT
    cause,
    count() AS incidents,
    round(avg(seconds_to_open), 1) AS mean_to_open,
    round(avg(seconds_to_confirm), 1) AS mean_to_confirm,
    round(quantile(0.9)(seconds_to_confirm), 1) AS p90_to_confirm
FROM tocsin.incident_times
WHERE was_confirmed AND judgement != 'wrong' AND fault != 'degraded' AND $__timeFilter(since)
    AND {CHOSEN}
GROUP BY cause
ORDER BY incidents DESC"""
_FALSE: Final = f"""\
SELECT since, job, machine, cause, confidence, detector, model_version, how_known, note, judged_by, verdict_id, cluster
FROM tocsin.false_accusations
WHERE $__timeFilter(since)
    AND {CHOSEN}
ORDER BY since DESC"""
_UNJUDGED: Final = f"""\
SELECT since, job, machine, cause, confidence, state, verdict_id, cluster
FROM tocsin.incident_times
WHERE was_confirmed AND judgement = '' AND notEmpty(hosts) AND fault != 'degraded' AND $__timeFilter(since)
    AND {CHOSEN}
ORDER BY since DESC"""
_ETTR: Final = f"""\
SELECT job, ettr_ratio, wall_seconds, productive_seconds, recomputed_seconds, start_up_seconds, detection_seconds,
    diagnosis_seconds, scheduling_seconds, idle_seconds, unattributed_seconds, attempts, steps, is_over, cluster
FROM tocsin.ettr_by_job
WHERE until >= $__fromTime AND began <= $__toTime
    AND {CLUSTER}
    AND {JOB}
ORDER BY ettr_ratio
LIMIT 200"""
_STARTS: Final = f"""\
SELECT day, cluster, starts, failed_starts, start_up_gpu_hours, failed_gpu_hours, allocated_gpu_hours, start_up_ratio
FROM tocsin.startup_by_day
WHERE day >= toDate($__fromTime) AND day <= toDate($__toTime) AND {CLUSTER}
ORDER BY day DESC, cluster
LIMIT 400"""
_LOWEST: Final = (
    'bottomk(20, max by (cluster, exported_job, attempt) (tocsin_mfu_ratio{cluster=~"$cluster", exported_job=~"$job"}))'
)
_TOLD: Final = f"""\
SELECT receiver, kind, severity, outcome, count() AS notices, max(sent) AS newest
FROM tocsin.alerts_sent FINAL
WHERE $__timeFilter(made) AND {CLUSTER}
GROUP BY receiver, kind, severity, outcome
ORDER BY notices DESC"""
_PARTS: Final = ("productive", "recomputed", "start_up", "detection", "diagnosis", "scheduling", "idle", "unattributed")
_SHARE: Final = {"confidence": "percentunit"}

FLEET: Final = Board(
    name="fleet",
    title="tocsin / fleet",
    text="Incidents of all jobs: what stands, what was right, how fast it was found, what it cost.",
    since="now-30d",
    variables=(ANY_CLUSTER, ANY_JOB, ANY_HOST),
    rows={
        "Now": (
            Panel("Incidents that stand", "stat", (Sql(_OPEN),), width=6, height=4, red_above=1, none_word="0"),
            Panel("Confirmed ones", "stat", (Sql(_CONFIRMED),), width=6, height=4, red_above=1, none_word="0"),
            Panel(
                "Repeat offenders (90 days)",
                "stat",
                (Sql(f"SELECT count() AS hosts FROM tocsin.repeat_offenders WHERE {CLUSTER} AND {HOST}"),),
                width=6,
                height=4,
                red_above=1,
            ),
            Panel(
                "Hosts under maintenance",
                "stat",
                (
                    Sql(
                        "SELECT uniqExact(cluster, target) AS hosts FROM tocsin.maintenance FINAL\n"
                        f"WHERE target_kind = 'host' AND begins <= now() AND ends > now() AND {CLUSTER}"
                    ),
                ),
                width=6,
                height=4,
            ),
            Panel("What is wrong now", "table", (Sql(_STANDING),), width=24, height=9, units=_SHARE, leads_to_job=True),
            Panel(
                "Incidents that stand, as Prometheus saw them",
                "timeseries",
                (Prom(_SHOWN, "{{fault}} {{state}}"),),
                text="A series of tocsin_incident for each host of an incident. The pages show at most 1,000.",
            ),
            Panel("Planned work", "table", (Sql(_MAINTENANCE),), text="What goes on now and what is still to come."),
        ),
        "Incidents of the time range": (
            Panel("Confirmed incidents by cause", "table", (Sql(_BY_CAUSE),)),
            Panel("Confirmed incidents each day", "timeseries", (Sql(_EACH_DAY, is_series=True),)),
            Panel(
                "Repeat offenders",
                "table",
                (Sql(_OFFENDERS),),
                text="Faults of machines that a person or a check upheld, twice or more within 90 days.",
                width=24,
            ),
            Panel("What people were told", "table", (Sql(_TOLD),), width=24),
        ),
        "How right, how fast": (
            Panel(
                "Alarms for each machine-day, by detector and model version",
                "table",
                (Sql(_ALARMS),),
                text="A machine that nobody watched counts for nothing. The version is empty where there is no model.",
            ),
            Panel(
                "Time to detect, by cause",
                "table",
                (Sql(_DETECTION),),
                text="Seconds of event time from the begin of the fault.",
                units={"mean_to_open": "s", "mean_to_confirm": "s", "p90_to_confirm": "s"},
            ),
            Panel(
                "Accused falsely",
                "table",
                (Sql(_FALSE),),
                leads_to_job=True,
                text="A person said that the verdict was wrong, or it was confirmed and then taken back.",
                width=24,
                units=_SHARE,
            ),
            Panel(
                "Confirmed and not judged yet",
                "table",
                (Sql(_UNJUDGED),),
                leads_to_job=True,
                text="tocsin feedback ID true|false --note TEXT says whether it was right.",
                width=24,
                units=_SHARE,
            ),
        ),
        "What it cost": (
            Panel(
                "Effective training time of jobs (ETTR)",
                "table",
                (Sql(_ETTR),),
                leads_to_job=True,
                text="Whole lives of the jobs that ran in the time range, the worst first.",
                width=24,
                height=10,
                units={"ettr_ratio": "percentunit", "wall_seconds": "s", **{f"{one}_seconds": "s" for one in _PARTS}},
            ),
            Panel(
                "What starts took, by day",
                "table",
                (Sql(_STARTS),),
                text="The share of a cluster's GPU time. Attempts that told no number of GPUs count in neither.",
                units={"start_up_ratio": "percentunit"},
            ),
            Panel(
                "Jobs with the lowest MFU",
                "timeseries",
                (Prom(_LOWEST, "{{exported_job}} {{attempt}}"),),
                text="Model FLOPs utilization of the newest steps, as Prometheus saw it.",
                unit="percentunit",
            ),
        ),
    },
)
