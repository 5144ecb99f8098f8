"""The dashboard of tocsin's own health; it shows each metric that ``deploy/prometheus/alerts.yml`` reads."""

from __future__ import annotations

from typing import Final

from tests.tools.grafana.board import Board, Panel, Prom, Query, Sql
from tests.tools.grafana.choices import ANY_CLUSTER, CLUSTER

_STATES: Final = f"""\
SELECT cluster, job_id AS job, attempt, max(at) AS newest,
    (toUnixTimestamp64Milli(now64(3)) - toUnixTimestamp64Milli(newest)) / 1e3 AS age
FROM
(
    SELECT cluster, job_id, attempt, ts AS at FROM tocsin.job_status FINAL WHERE known AND NOT ended AND {CLUSTER}
    UNION ALL
    SELECT cluster, job_id, attempt, told AS at FROM tocsin.ettr FINAL WHERE NOT is_over AND {CLUSTER}
)
GROUP BY cluster, job, attempt
ORDER BY age DESC
LIMIT 200"""
_CANARIES: Final = f"""\
SELECT toDateTime64(detected, 3, 'UTC') AS time, cluster,
    (toUnixTimestamp64Milli(updated) - intDiv(toUnixTimestamp64Nano(detected), 1000000)) / 1e3 AS seconds
FROM tocsin.incidents FINAL
WHERE reason = 'canary' AND $__timeFilter(detected) AND {CLUSTER}
ORDER BY time"""
_SENDING: Final = f"""\
SELECT receiver, receiver_kind, outcome, count() AS notices, max(tries) AS most_tries,
    round(max(toUnixTimestamp64Nano(sent) - toUnixTimestamp64Nano(made)) / 1e9, 1) AS longest, max(sent) AS newest
FROM tocsin.alerts_sent FINAL
WHERE $__timeFilter(made) AND {CLUSTER}
GROUP BY receiver, receiver_kind, outcome
ORDER BY notices DESC"""
_WATCHED: Final = f"""\
SELECT minute AS time, uniqExact(cluster, host) AS hosts, sum(late) AS late_records, sum(gaps) AS gaps
FROM tocsin.host_health FINAL
WHERE $__timeFilter(minute) AND {CLUSTER}
GROUP BY time
ORDER BY time"""
_OPERATOR: Final = "flink_taskmanager_job_task_operator"
_WATERMARK: Final = f"{_OPERATOR}_currentInputWatermark"
_TAKEOVERS: Final = 'sum by (role) (increase(tocsin_active_events_total{event="takeovers"}[$__rate_interval]))'


def _series(title: str, *queries: Query, text: str = "", unit: str = "none", width: int = 8) -> Panel:
    """Return a panel with series."""
    return Panel(title, "timeseries", queries, text=text, unit=unit, width=width)


def _down(title: str, job: str) -> Panel:
    """Return how many processes of a scrape job do not answer."""
    query = Prom(f'count(up{{job="{job}"}} == 0) or vector(0)')
    return Panel(title, "stat", (query,), width=6, height=4, red_above=1)


MONITOR: Final = Board(
    name="monitor",
    title="tocsin / monitor",
    text="Is tocsin itself well? The figures behind the alerts of deploy/prometheus/alerts.yml.",
    since="now-6h",
    variables=(ANY_CLUSTER,),
    rows={
        "Does everything answer": (
            _down("Agents that do not answer", "tocsin-agent"),
            _down("Engines (tocsin serve) that do not answer", "tocsin-serve"),
            Panel(
                "Sinks that answer",
                "stat",
                (Prom('count(up{job="tocsin-sink"} == 1) or vector(0)'),),
                text="With Kafka one is needed at least; the embedded engine has none.",
                width=6,
                height=4,
            ),
            Panel(
                "Flink jobs that run",
                "stat",
                (Prom("sum(flink_jobmanager_numRunningJobs) or vector(0)"),),
                text="With Kafka one is needed at least; the embedded engine has none.",
                width=6,
                height=4,
            ),
            Panel(
                "How old the state of each running job is",
                "table",
                (Sql(_STATES),),
                leads_to_job=True,
                text="Told every ten seconds of event time, by tocsin serve each minute: how far judging is behind.",
                units={"age": "s"},
            ),
            _series(
                "Active processes by role",
                Prom("sum by (role) (tocsin_active)", "{{role}}"),
                text="One of each role is active; 0: nobody does its work.",
                width=6,
            ),
            _series(
                "Takeovers",
                Prom(
                    'sum by (role) (increase(tocsin_active_events_total{event="takeovers"}[$__rate_interval]))',
                    "{{role}}",
                ),
                width=6,
            ),
        ),
        "Agents": (
            _series(
                "Agents without a connection",
                Prom("count(tocsin_agent_engine_connected == 0) or vector(0)", "not connected"),
            ),
            _series(
                "Records that agents lost",
                Prom("topk(10, increase(tocsin_agent_lost_records_total[$__rate_interval]) > 0)", "{{instance}}"),
            ),
            _series(
                "Records that wait in spools",
                Prom("topk(10, tocsin_agent_spooled_records)", "{{instance}}"),
            ),
            _series(
                "Collectors that fail",
                Prom("count by (collector) (tocsin_agent_collector_success == 0)", "{{collector}}"),
            ),
            _series(
                "Clocks: the worst offsets",
                Prom("topk(10, abs(tocsin_agent_clock_offset_seconds))", "{{instance}}"),
                unit="s",
            ),
            _series(
                "Hosts that were watched, late records, gaps",
                Sql(_WATCHED, is_series=True),
                text="By minute, from the table host_health.",
            ),
        ),
        "Engine (tocsin serve)": (
            _series(
                "Age of the newest tick",
                Prom("tocsin_engine_tick_age_seconds", "{{instance}}"),
                text="Grows while event time stands.",
                unit="s",
            ),
            _series(
                "Since the alerts' canary came through",
                Prom("time() - tocsin_alerts_canary_timestamp_seconds", "{{instance}}"),
                text="Only with a watchdog in the routes file. Above 300 s the engine lives and judges nothing.",
                unit="s",
            ),
            _series("Writes that wait for the database", Prom("tocsin_engine_store_queue", "{{instance}}")),
            _series(
                "Dead letters by reason",
                Prom("sum by (reason) (increase(tocsin_engine_dead_letters_total[$__rate_interval]))", "{{reason}}"),
            ),
            _series(
                "Announced models by outcome",
                Prom(
                    "sum by (instance, outcome) (increase(tocsin_engine_models_total[$__rate_interval]))",
                    "{{instance}} {{outcome}}",
                ),
            ),
            _series(
                "Incidents that stand",
                Prom("sum by (fault, state) (tocsin_open_incidents) > 0", "{{fault}} {{state}}"),
            ),
        ),
        "Alerts": (
            _series("Notices that wait", Prom("sum by (receiver) (tocsin_alerts_waiting)", "{{receiver}}")),
            _series(
                "Age of the oldest that waits",
                Prom("max by (receiver) (tocsin_alerts_oldest_waiting_seconds)", "{{receiver}}"),
                unit="s",
            ),
            _series(
                "Notices by outcome",
                Prom(
                    "sum by (receiver, outcome) (increase(tocsin_alerts_sent_total[$__rate_interval]))",
                    "{{receiver}} {{outcome}}",
                ),
            ),
            _series(
                "Receivers whose last delivery failed",
                Prom("max by (receiver, reason) (tocsin_alerts_trouble) == 1", "{{receiver}} {{reason}}"),
            ),
            _series(
                "Standing incidents that nobody is told of",
                Prom('max by (reason) (tocsin_alerts_incidents{state="untold"}) > 0', "{{reason}}"),
            ),
            _series(
                "Delay of the controller",
                Prom("time() - (max(tocsin_controller_event_time_seconds) > 0)", "fleet view"),
                unit="s",
            ),
            Panel(
                "Notices whose delivery ended",
                "table",
                (Sql(_SENDING),),
                text="The longest time is from the notice to the end of its delivery.",
                width=24,
                units={"longest": "s"},
            ),
        ),
        "Actions": (
            _series(
                "Executors that do not answer, and those without a connection",
                Prom('count by (job) (up{job=~"tocsin-executor-.+"} == 0)', "{{job}} is gone"),
                Prom("count by (job) (tocsin_executor_connected == 0)", "{{job}} is not connected"),
            ),
            _series("Actions by state", Prom("sum by (kind, state) (tocsin_actions)", "{{kind}} {{state}}")),
            _series(
                "What executors say",
                Prom(
                    "sum by (job, said, reason) (increase(tocsin_executor_acks_total[$__rate_interval])) > 0",
                    "{{job}} {{said}} {{reason}}",
                ),
            ),
            _series(
                "What has no effect at executors",
                Prom(
                    "sum by (job, reason) (increase(tocsin_executor_troubles_total[$__rate_interval])) > 0",
                    "{{job}} {{reason}}",
                ),
                width=12,
            ),
            _series(
                "What has no effect at the controller",
                Prom(
                    "sum by (reason) (increase(tocsin_action_messages_left_out_total[$__rate_interval])) > 0",
                    "{{reason}}",
                ),
                width=12,
            ),
        ),
        "Sink": (
            _series(
                "Messages that wait to be written",
                Prom("sum(tocsin_sink_lag_messages)", "verdicts"),
                Prom("sum(tocsin_report_sink_lag_messages)", "reports"),
            ),
            _series(
                "Waits for ClickHouse",
                Prom("max(tocsin_sink_waiting)", "verdicts"),
                Prom("max(tocsin_report_sink_waiting)", "reports"),
                text="1: ClickHouse is away or refuses.",
            ),
            _series(
                "From slice to table",
                Sql(_CANARIES, is_series=True),
                text="Canary verdicts (--canary-seconds): from the slice to the row. Below 5 s is good.",
                unit="s",
            ),
            _series(
                "Dead letters of the sink by reason",
                Prom("sum by (reason) (increase(tocsin_sink_dead_letters_total[$__rate_interval]))", "{{reason}}"),
            ),
            _series(
                "Failed writes by reason",
                Prom("sum by (reason) (increase(tocsin_sink_failures_total[$__rate_interval]))", "{{reason}}"),
            ),
            _series(
                "Verdicts that retention deleted unwritten",
                Prom("max(tocsin_sink_expired_messages)", "expired"),
            ),
        ),
        "Flink": (
            _series(
                "Event time behind",
                Prom(
                    f'time() - max by (job_name) ({_WATERMARK}{{operator_name="operators"}}) / 1000',
                    "{{job_name}}",
                ),
                text="2 to 4 s is good; above 30 s event time stands.",
                unit="s",
            ),
            _series(
                "Records that wait to be judged",
                Prom(f"sum by (job_name) ({_OPERATOR}_pendingRecords)", "{{job_name}}"),
            ),
            _series(
                "Dead letters of the job",
                Prom(
                    f"sum by (job_name) (increase({_OPERATOR}_tocsin_dead_letters[$__rate_interval]))", "{{job_name}}"
                ),
            ),
            _series(
                "Restarts",
                Prom("increase(flink_jobmanager_job_numRestarts[$__rate_interval])", "{{job_name}}"),
                width=12,
            ),
            _series(
                "Failed checkpoints",
                Prom("increase(flink_jobmanager_job_numberOfFailedCheckpoints[$__rate_interval])", "{{job_name}}"),
                width=12,
            ),
        ),
    },
)
