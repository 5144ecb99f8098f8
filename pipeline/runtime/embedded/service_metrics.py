"""The embedded engine's metrics, for ``/metrics``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tocsin.pipeline.identity.key_trouble import key_file_families
from tocsin.pipeline.incidents.standing import incident_families
from tocsin.schemas.formats.prometheus_text import Family, Sample
from tocsin.schemas.kinds import GroupKind
from tocsin.schemas.verdicts import FaultKind, Verdict, VerdictState

if TYPE_CHECKING:
    from tocsin.pipeline.runtime.embedded.service import EngineService


_CONNECTIONS: Final = (
    ("accepted", "connections"),
    ("failed", "connection_errors"),
    ("not_accepted", "accept_failures"),
)
"""Outcome of a connection, and the listener's counter of it."""
_MOST_ATTEMPTS: Final = 100
"""Attempts of one family on the metrics page."""
_SPREAD_KINDS: Final = ((GroupKind.DP, "data-parallel"), (GroupKind.PP, "pipeline-parallel"))
_STANDING: Final = (VerdictState.OPEN, VerdictState.CONFIRMED)


def families_of(service: EngineService) -> list[Family]:
    """Return the metric families of an engine.

    Args:
        service: the engine.
    """
    return [
        *_intake(service),
        *_work(service),
        _open_incidents(service),
        _mfu(service),
        *most_pods_families(service),
        *incident_families(service.standing_verdicts(), silence=lambda one: _silence(service, one)),
        *_state(service),
        *_gauges(service),
        *service.followers.families(),
        *([] if service.server.key_file is None else key_file_families([service.server.key_file])),
    ]


def _silence(service: EngineService, verdict: Verdict) -> str:
    """Return the named reason for which nobody is told of a verdict now, "" for none."""
    book = service.memory.proposals.maintenance
    planned = "" if book is None else book.silence(verdict, service.time.now_ns())
    return planned or ("covered_by_fleet" if service.followers.covered_by(verdict) else "")


def _intake(service: EngineService) -> list[Family]:
    """Return the counters of records and connections."""
    records, server = service.engine.counters, service.server.counters
    return [
        _counter("tocsin_engine_records_total", "Records by what became of them.", "outcome", records, "records_"),
        _counter("tocsin_engine_dead_letters_total", "Dead letters by reason.", "reason", server, "dead_letters_"),
        _counter("tocsin_engine_refused_total", "Records refused, by reason.", "reason", server, "refused_"),
        Family(
            "tocsin_engine_connections_total",
            "counter",
            "Connections by what became of them: taken in, broken by an error of the engine's own, not taken in.",
            tuple(Sample({"outcome": name}, server[key]) for name, key in _CONNECTIONS),
        ),
        _counter("tocsin_engine_closed_total", "Connections closed, by why.", "reason", server, "closed_"),
    ]


def _work(service: EngineService) -> list[Family]:
    """Return the counters of verdicts, slices, detectors, models and failures."""
    engine = service.engine
    slices = (("second", "turns"), ("metrics", "metric_slices"))
    detectors = sorted(service.detector_seconds.items())
    return [
        _labelled(
            "tocsin_engine_verdict_lines_total",
            "Verdict lines by state and reason.",
            ("state", "reason"),
            engine.verdicts_by_reason,
        ),
        Family(
            "tocsin_engine_slices_total",
            "counter",
            "Slices worked off: of a second, and of metrics.",
            tuple(Sample({"kind": kind}, engine.counters[key]) for kind, key in slices),
        ),
        Family(
            "tocsin_engine_detector_seconds_total",
            "counter",
            "Time that each detector worked.",
            tuple(Sample({"detector": name}, value) for name, value in detectors),
        ),
        _counter(
            "tocsin_engine_models_total", "Announced models by what became of them.", "outcome", engine.models.counters
        ),
        _counter("tocsin_engine_failures_total", "What raised and was caught, by part.", "part", service.failures),
        _labelled(
            "tocsin_engine_letters_dropped_total",
            "Dead letters and late records that no file keeps, by why.",
            ("kind", "reason"),
            service.dead_letters.dropped,
        ),
    ]


def _state(service: EngineService) -> list[Family]:
    """Return the metrics of the state that is kept for a restart; none where no state is kept."""
    if service.recovery is None:
        return []
    text = "Snapshots and the journal of the engine's state: what was written, repeated by a start, set aside, lost."
    pause = "Time that the last snapshot held up the ticks."
    return [
        _counter("tocsin_engine_state_total", text, "what", service.recovery.figures),
        Family("tocsin_engine_snapshot_pause_seconds", "gauge", pause, (Sample({}, service.recovery.pause_seconds),)),
    ]


def _open_incidents(service: EngineService) -> Family:
    """Return the number of open incidents of all jobs; every fault and state has a sample, also with 0."""
    counts = service.engine.open_incidents()
    samples = (
        Sample({"fault": fault.value, "state": state.value}, counts[fault, state])
        for fault in FaultKind
        for state in _STANDING
    )
    return Family("tocsin_open_incidents", "gauge", "Incidents that stand now, by fault and state.", tuple(samples))


def _mfu(service: EngineService) -> Family:
    """Return the model FLOPs utilization of running attempts, at most ``_MOST_ATTEMPTS``, the lowest first."""
    lowest = sorted(service.engine.mfu_ratios().items(), key=lambda entry: (entry[1], entry[0]))[:_MOST_ATTEMPTS]
    samples = (
        Sample({"cluster": job.cluster, "job": job.job_id, "attempt": str(job.attempt)}, ratio) for job, ratio in lowest
    )
    text = "Model FLOPs utilization of the newest steps of running attempts whose model and GPUs are known."
    return Family("tocsin_mfu_ratio", "gauge", text, tuple(samples))


def most_pods_families(service: EngineService) -> list[Family]:
    """Return Arnold's ``max_pods_dp`` and ``max_pods_pp`` of running attempts, at most ``_MOST_ATTEMPTS`` of each.

    The attempts that are spread most come first.
    """
    told = service.engine.most_pods()
    families = []
    for kind, words in _SPREAD_KINDS:
        most = sorted(told, key=lambda job: (-told[job][kind], job))[:_MOST_ATTEMPTS]
        samples = (
            Sample({"cluster": job.cluster, "job": job.job_id, "attempt": str(job.attempt)}, told[job][kind])
            for job in most
        )
        text = f"Most minipods that a {words} group of a running attempt touches, where the topology tells minipods."
        families.append(Family(f"tocsin_max_pods_{kind}", "gauge", text, tuple(samples)))
    return families


def _gauges(service: EngineService) -> list[Family]:
    """Return the gauges of the engine's present load, ages and queues."""
    gauges = (
        ("jobs", "Jobs that have a turn each second.", len(service.engine.jobs())),
        ("agents", "Connected agents.", len(service.server.connected_hosts)),
        ("inbox_bytes", "Received and not worked off.", service.server.inbox_bytes),
        ("tick_seconds", "Time the last tick took.", service.tick_seconds),
        ("tick_age_seconds", "Age of the newest tick.", service.health.tick_age_seconds()),
        ("clock_jumps", "How often the engine's own clock was set.", service.clock.jump_count),
        ("store_queue", "Writes that wait for the database.", service.writer.waiting_count),
        ("store_errors", "Failed writes so far.", service.writer.error_count),
        ("up_seconds", "Age.", service.health.age_seconds()),
    )
    return [Family(f"tocsin_engine_{name}", "gauge", text, (Sample({}, value),)) for name, text, value in gauges]


def _counter(name: str, text: str, label: str, counts: Mapping[str, int], prefix: str = "") -> Family:
    """Return a counter family with one sample for each count whose name begins with the prefix.

    Args:
        name: the family's name.
        text: its help text.
        label: name of the label that holds a count's name, without the prefix.
        counts: name -> number.
        prefix: prefix of the counts' names.
    """
    samples = tuple(
        Sample({label: key.removeprefix(prefix)}, value)
        for key, value in sorted(dict(counts).items())
        if key.startswith(prefix)
    )
    return Family(name, "counter", text, samples)


def _labelled(name: str, text: str, labels: tuple[str, str], counts: Mapping[tuple[str, str], int]) -> Family:
    """Return a counter family with two labels and one sample for each count."""
    samples = tuple(Sample(dict(zip(labels, key, strict=True)), value) for key, value in sorted(dict(counts).items()))
    return Family(name, "counter", text, samples)
