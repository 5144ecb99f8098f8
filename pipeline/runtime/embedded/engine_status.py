"""The state of one job for ``tocsin status``: hosts, ranks, groups, late records, clocks, abstentions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tocsin.pipeline.job.facts import RankFacts
from tocsin.pipeline.runtime.job_changes import changes_of_job
from tocsin.pipeline.runtime.job_pipeline import JobPipeline
from tocsin.schemas.plain_objects import plain_object
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, JobKey


def status_of(
    job: JobKey, pipeline: JobPipeline, now_ns: int, late_by_host: Mapping[tuple[JobKey, str], int]
) -> dict[str, Any]:
    """Return the state of a job as a JSON-able object.

    Args:
        job: the attempt.
        pipeline: its operators.
        now_ns: the newest tick.
        late_by_host: numbers of late records by job and host.
    """
    graph = pipeline.graph
    step_seconds = pipeline.steps.median_step_ns / NS_PER_SECOND
    hosts = _hosts_status(job, pipeline, now_ns, late_by_host)
    ranks = _ranks_status(pipeline, now_ns)
    return {
        "cluster": job.cluster,
        "job_id": job.job_id,
        "attempt": job.attempt,
        "world_size": graph.world_size,
        "ended": graph.ended(),
        "superseded": pipeline.is_superseded,
        "max_step": graph.max_step,
        "step_seconds": step_seconds,
        "mfu": _mfu_status(pipeline, now_ns),
        "groups": len(graph.groups),
        "hook_present": any(host.hook_present for host in graph.hosts.values()) or bool(graph.ranks),
        "host_count": len(hosts),
        "rank_count": len(ranks),
        "stepping_rank_count": sum(facts["steps_per_second"] > 0 for facts in ranks.values()),
        "hosts": hosts,
        "changes": [plain_object(change) for change in changes_of_job(pipeline)],
        "ranks": ranks,
        "places": graph.placement.rows(),
        "contested_ranks": sorted(graph.contested),
        "abstained": pipeline.abstentions(),
        "models": pipeline.models.versions(),
        "models_in_use": pipeline.models.states(),
        "learned": pipeline.learned.status(),
        "verdicts": [verdict.to_line() for verdict in pipeline.decide.live],
    }


def _mfu_status(pipeline: JobPipeline, now_ns: int) -> dict[str, Any] | None:
    """Return the model FLOPs utilization of a job's newest steps; None where the model's operations are unknown."""
    found = pipeline.by_steps.mfu.utilization(now_ns)
    if found is None:
        return None
    state: dict[str, Any] = {
        "mfu_ratio": found.mfu_ratio,
        "best_ratio": found.best_ratio,
        "flops_per_second": found.flops_per_second,
    }
    if found.mfu_ratio is None:
        state |= {"reason": Reason.GPU_PEAK_UNKNOWN.value, "gpu": found.gpu_without_peak}
    return state


def _hosts_status(
    job: JobKey, pipeline: JobPipeline, now_ns: int, late_by_host: Mapping[tuple[JobKey, str], int]
) -> dict[str, dict[str, Any]]:
    """Return host -> its clock, and what of its records arrived late or was refused."""
    return {
        name: {
            "last_seen_seconds": (now_ns - facts.last_seen_ns) / NS_PER_SECOND,
            "clock_offset_seconds": facts.clock_offset_ns / NS_PER_SECOND,
            "clock_error_seconds": facts.clock_error_ns / NS_PER_SECOND,
            "late": late_by_host.get((job, name), 0),
            "refused": pipeline.rank_filter.refused_by_host.get(name, 0),
            "hook_present": facts.hook_present,
        }
        for name, facts in sorted(pipeline.graph.hosts.items())
    }


def _ranks_status(pipeline: JobPipeline, now_ns: int) -> dict[str, dict[str, Any]]:
    """Return rank, as text -> its host, its steps and whether its process runs."""
    graph = pipeline.graph
    return {
        str(rank): {
            "host": graph.host_of(rank),
            "step": facts.last_step,
            "steps_per_second": 0.0 if _is_stalled(facts) else pipeline.steps.rate_of(rank, now_ns),
            "last_seen_seconds": (now_ns - facts.last_step_ns) / NS_PER_SECOND if facts.last_step_ns else None,
            "stopped": facts.stopped_since_ns > 0,
            "exited": facts.exit is not None,
        }
        for rank, facts in sorted(graph.ranks.items())
    }


def _is_stalled(facts: RankFacts) -> bool:
    """Return whether a rank is known to make no step now."""
    return bool(facts.exit is not None or facts.bye_ns or facts.stopped_since_ns or facts.stall is not None)


def expected_hosts(pipelines: Iterable[JobPipeline], since_ns: int) -> frozenset[str]:
    """Return the hosts that report by themselves and were heard lately, of jobs that have not ended.

    Args:
        pipelines: the jobs' operators.
        since_ns: hosts that were last heard before are left out.
    """
    return frozenset(
        host
        for pipeline in pipelines
        if not pipeline.graph.ended()
        for host, facts in pipeline.graph.hosts.items()
        if facts.last_seen_ns >= since_ns and facts.report_interval_ns
    )
