"""The dashboard of one job."""

from __future__ import annotations

from typing import Final

from tests.tools.grafana.board import Board, Panel, Prom, Sql
from tests.tools.grafana.choices import HOST, HOST_OF_JOB, NAMES_HOST, ONE_JOB, THE_CLUSTER, THE_JOB, VERDICT_OF_JOB

_STEP: Final = f"""\
SELECT step_seconds
FROM
(
    SELECT 1 AS choice, ts AS at, JSONExtractFloat(status_json, 'step_seconds') AS step_seconds
    FROM tocsin.job_status FINAL
    WHERE {ONE_JOB} AND known
    UNION ALL
    SELECT 2 AS choice, told AS at, productive_seconds / steps AS step_seconds
    FROM tocsin.ettr FINAL
    WHERE {ONE_JOB} AND steps > 0
)
ORDER BY choice, at DESC
LIMIT 1"""
_AGE: Final = f"""\
SELECT (toUnixTimestamp64Milli(now64(3)) - toUnixTimestamp64Milli(max(at))) / 1e3 AS age
FROM
(
    SELECT ts AS at FROM tocsin.job_status WHERE {ONE_JOB}
    UNION ALL
    SELECT told AS at FROM tocsin.ettr WHERE {ONE_JOB}
)"""
_OF_JOB: Final = "cluster = ${cluster:singlequote} AND job = ${job:singlequote}"
_INCIDENTS: Final = f"""\
SELECT since, attempt, machine, fault, cause, state, reason, action, confidence, opened, confirmed, ended, judgement,
    summary, verdict_id
FROM tocsin.incident_times
WHERE {_OF_JOB} AND ($__timeFilter(since) OR state IN ('open', 'confirmed'))
    AND {NAMES_HOST}
ORDER BY since DESC
LIMIT 500"""
_UPDATES: Final = f"""\
SELECT detected, verdict_id, update_number, state, reason, machine, fault, cause, action, confidence, evidence,
    arrayStringConcat(witnesses, ', ') AS witnesses
FROM tocsin.incident_updates FINAL
WHERE {ONE_JOB} AND $__timeFilter(detected)
    AND {NAMES_HOST}
ORDER BY detected DESC, verdict_id, update_number DESC
LIMIT 500"""
_PART_NAMES: Final = (
    "productive",
    "recomputed",
    "start_up",
    "detection",
    "diagnosis",
    "scheduling",
    "idle",
    "unattributed",
)
_PARTS: Final = (
    "SELECT\n"
    + ",\n".join(f"    {name}_seconds AS {name}" for name in _PART_NAMES)
    + f"\nFROM tocsin.ettr_by_job\nWHERE {_OF_JOB}"
)
_ATTEMPTS: Final = f"""\
SELECT attempt, began, until, is_over, ettr_ratio, wall_seconds, productive_seconds, recomputed_seconds,
    start_up_seconds, detection_seconds, diagnosis_seconds, scheduling_seconds, idle_seconds, unattributed_seconds,
    steps, recomputed_steps, last_step, if(steps > 0, productive_seconds / steps, NULL) AS mean_step_seconds
FROM tocsin.ettr FINAL
WHERE {ONE_JOB}
ORDER BY attempt DESC, began DESC"""
_PACE: Final = f"""\
SELECT attempt, ts, hosts, ranks, stepping_ranks, max_step,
    JSONExtractFloat(status_json, 'step_seconds') AS median_step_seconds,
    JSONExtract(status_json, 'mfu', 'mfu_ratio', 'Nullable(Float64)') AS mfu_ratio, open_verdicts, ended
FROM tocsin.job_status FINAL
WHERE {ONE_JOB} AND known
ORDER BY attempt DESC"""
_STARTS: Final = f"""\
SELECT attempt, began,
    if(stage = '', 'whole start', concat(stage, ', ', start_kind)) AS part,
    multiIf(
        stage = '', start_up_seconds,
        stage_ended > stage_began, (toUnixTimestamp64Milli(stage_ended) - toUnixTimestamp64Milli(stage_began)) / 1e3,
        NULL) AS took_seconds,
    if(stage = '' OR median_seconds < 0, NULL, median_seconds) AS median_host_seconds,
    slowest_host, stage_hosts, open_hosts, lost_hosts,
    own_gpu_seconds / 3600 AS own_gpu_hours, waiting_gpu_seconds / 3600 AS waiting_gpu_hours,
    last_host, saved_gpu_seconds / 3600 AS saved_gpu_hours, is_failed AS never_trained,
    if(stage = '' OR cache_hit_ratio < 0, NULL, cache_hit_ratio) AS cache_hits
FROM tocsin.startup FINAL
WHERE {ONE_JOB}
ORDER BY attempt DESC, began DESC, stage != '', stage_began
LIMIT 500"""
_SCORES: Final = f"""\
SELECT minute AS time, toString(host) AS host, max(worst_score) AS score
FROM tocsin.host_health FINAL
WHERE {ONE_JOB} AND $__timeFilter(minute)
    AND {HOST}
GROUP BY time, host
ORDER BY time"""
_WATCHED: Final = f"""\
SELECT host, sum(samples) AS samples, sum(late) AS late, sum(gaps) AS gaps, max(h.worst_score) AS highest_score,
    argMax(h.worst_metric, h.worst_score) AS its_metric, max(minute) AS newest
FROM (SELECT * FROM tocsin.host_health FINAL WHERE {ONE_JOB} AND $__timeFilter(minute) AND {HOST}) AS h
GROUP BY host
ORDER BY highest_score DESC
LIMIT 200"""
_EVIDENCE: Final = """\
SELECT toDateTime64(ts, 3, 'UTC') AS time, concat(metric, ' of ', component) AS series,
    suspect_value AS suspect, peer_median, peer_p05, peer_p95
FROM tocsin.incident_evidence FINAL
WHERE verdict_id = ${verdict:singlequote}
ORDER BY time"""
_SENTENCES: Final = """\
SELECT arrayJoin(evidence_list) AS evidence
FROM tocsin.incidents_all
WHERE verdict_id = ${verdict:singlequote}"""
_ABSTENTIONS: Final = f"""\
SELECT splitByChar(' ', what)[1] AS reason, toUInt64(splitByChar(' ', what)[2]) AS times, attempt, ts AS newest
FROM (SELECT attempt, ts, arrayJoin(abstained) AS what FROM tocsin.job_status FINAL WHERE {ONE_JOB})
ORDER BY attempt DESC, times DESC"""
_ACTIONS: Final = f"""\
SELECT issued, kind, target_kind, target, state, dry_run, reason, changed, detail, verdict_id
FROM tocsin.actions FINAL
WHERE {ONE_JOB} AND $__timeFilter(issued)
ORDER BY issued DESC
LIMIT 200"""
_TOLD: Final = f"""\
SELECT sent, kind, severity, receiver, route, outcome, tries, detail, verdict_id
FROM tocsin.alerts_sent FINAL
WHERE {ONE_JOB} AND $__timeFilter(made)
ORDER BY sent DESC
LIMIT 200"""
_RUNNING: Final = 'sum by (attempt, part) (tocsin_ettr_seconds{cluster="$cluster", exported_job="$job"})'
_MFU: Final = 'max by (attempt) (tocsin_mfu_ratio{cluster="$cluster", exported_job="$job"})'
_PODS: Final = tuple(
    Prom(
        f'max by (attempt) (tocsin_max_pods_{kind}{{cluster="$cluster", exported_job="$job"}})',
        f"attempt {{{{attempt}}}} {kind}",
    )
    for kind in ("dp", "pp")
)
_SHOWN: Final = (
    'max by (host, fault, cause, state) (tocsin_incident{cluster="$cluster", exported_job="$job", host=~"$host"})'
)
_SECONDS: Final = {f"{name}_seconds": "s" for name in (*_PART_NAMES, "wall", "mean_step")} | {
    "ettr_ratio": "percentunit"
}

JOB: Final = Board(
    name="job",
    title="tocsin / job",
    text="One training job: its incidents and their evidence, its pace, what its time was spent on.",
    since="now-24h",
    variables=(THE_CLUSTER, THE_JOB, HOST_OF_JOB, VERDICT_OF_JOB),
    rows={
        "Now": (
            Panel(
                "Incidents that stand",
                "stat",
                (Sql(f"SELECT count() AS incidents FROM tocsin.incidents_current WHERE {_OF_JOB}"),),
                width=6,
                height=4,
                red_above=1,
            ),
            Panel(
                "Effective training time",
                "stat",
                (Sql(f"SELECT ettr_ratio FROM tocsin.ettr_by_job WHERE {_OF_JOB}"),),
                width=6,
                height=4,
                unit="percentunit",
                none_word="no account yet",
            ),
            Panel(
                "Time of a step",
                "stat",
                (Sql(_STEP),),
                text="The median of the last steps; from tocsin serve the mean of the attempt.",
                width=6,
                height=4,
                unit="s",
            ),
            Panel(
                "Age of its state",
                "stat",
                (Sql(_AGE),),
                text="Told every ten seconds, by tocsin serve each minute. If old, nothing is judged, or it ended.",
                width=6,
                height=4,
                unit="s",
                red_above=180,
            ),
        ),
        "Incidents": (
            Panel(
                "Incidents of the job",
                "table",
                (Sql(_INCIDENTS),),
                text="Those of the time range, and all that stand. tocsin incidents show ID says more.",
                width=24,
                units={"confidence": "percentunit"},
            ),
            Panel("What was said, update by update", "table", (Sql(_UPDATES),), width=24),
            Panel(
                "Suspect and peers",
                "timeseries",
                (Sql(_EVIDENCE, is_series=True),),
                text="Series of the incident that is chosen above, in the unit of the metric: the suspect, its peers' "
                "median and their 5th and 95th percentile.",
                height=10,
            ),
            Panel("Evidence, the strongest first", "table", (Sql(_SENTENCES),), height=10),
            Panel(
                "Incidents that stand, as Prometheus saw them",
                "timeseries",
                (Prom(_SHOWN, "{{host}} {{fault}} {{cause}} {{state}}"),),
            ),
            Panel(
                "Why no verdict was given",
                "table",
                (Sql(_ABSTENTIONS),),
                text="Reasons of abstentions, and how often, since the attempt began.",
            ),
            Panel("What was proposed and done", "table", (Sql(_ACTIONS),), width=24),
            Panel("What people were told", "table", (Sql(_TOLD),), width=24),
        ),
        "Pace": (
            Panel(
                "Steps by attempt",
                "table",
                (Sql(_PACE),),
                text="mfu_ratio is empty where the model's operations or the GPU's peak are unknown.",
                units={"median_step_seconds": "s", "mfu_ratio": "percentunit"},
            ),
            Panel(
                "Highest score of each host",
                "timeseries",
                (Sql(_SCORES, is_series=True),),
                text="1 is the alarm line of the detector.",
                red_above=1,
            ),
            Panel(
                "MFU of running attempts",
                "timeseries",
                (Prom(_MFU, "attempt {{attempt}}"),),
                text="Model FLOPs utilization of the newest steps, as Prometheus saw it; of the hundred jobs that have "
                "the lowest.",
                unit="percentunit",
            ),
            Panel(
                "Minipods that its groups touch",
                "timeseries",
                _PODS,
                text="The most that a data-parallel (dp) or pipeline-parallel (pp) group of a running attempt touches, "
                "as Prometheus saw it: 1 is aligned. Of the hundred jobs that are spread most; minipods must be known.",
            ),
            Panel("How well the hosts are watched", "table", (Sql(_WATCHED),)),
        ),
        "What its time was spent on": (
            Panel("Wall time by part, all attempts", "bargauge", (Sql(_PARTS),), unit="s", height=9),
            Panel(
                "Wall time of running attempts by part",
                "timeseries",
                (Prom(_RUNNING, "{{attempt}} {{part}}"),),
                text="As Prometheus saw it.",
                unit="s",
                height=9,
            ),
            Panel("Attempts", "table", (Sql(_ATTEMPTS),), width=24, units=_SECONDS),
            Panel(
                "What its starts took, stage by stage",
                "table",
                (Sql(_STARTS),),
                text="GPU-hours until training: in the stage, or waiting for its last host; those that no stage tells "
                "are in the row of the whole start. saved_gpu_hours would have been saved without the last host.",
                width=24,
                units={"took_seconds": "s", "median_host_seconds": "s", "cache_hits": "percentunit"},
            ),
        ),
    },
)
