"""The embedded engine's numbers, for ``/metrics``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tocsin.schemas.formats.prometheus_text import Family, Sample
from tocsin.schemas.verdicts import FaultKind, VerdictState

if TYPE_CHECKING:
    from tocsin.pipeline.runtime.embedded.service import EngineService


_CONNECTIONS: Final = (
    ("accepted", "connections"),
    ("failed", "connection_errors"),
    ("not_accepted", "accept_failures"),
)
"""What becomes of a connection -> the listener's counter of it."""
_STANDING: Final = (VerdictState.OPEN, VerdictState.CONFIRMED)


def families_of(service: EngineService) -> list[Family]:
    """Return what there is to say about an engine."""
    engine, server, models = service.engine, service.server, service.engine.models
    return [
        _counter(
            "tocsin_engine_records_total", "Records by what became of them.", "outcome", engine.counters, "records_"
        ),
        _counter(
            "tocsin_engine_dead_letters_total", "Dead letters by reason.", "reason", server.counters, "dead_letters_"
        ),
        _counter("tocsin_engine_refused_total", "Records refused, by reason.", "reason", server.counters, "refused_"),
        Family(
            "tocsin_engine_connections_total",
            "counter",
            "Connections by what became of them: taken in, broken by an error of the engine's own, not taken in.",
            tuple(Sample({"outcome": name}, server.counters[key]) for name, key in _CONNECTIONS),
        ),
        _counter("tocsin_engine_closed_total", "Connections closed, by why.", "reason", server.counters, "closed_"),
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
            (
                Sample({"kind": "second"}, engine.counters["turns"]),
                Sample({"kind": "metrics"}, engine.counters["metric_slices"]),
            ),
        ),
        Family(
            "tocsin_engine_detector_seconds_total",
            "counter",
            "Time that each detector worked.",
            tuple(Sample({"detector": name}, value) for name, value in sorted(service.detector_seconds.items())),
        ),
        _counter("tocsin_engine_models_total", "Announced models by what became of them.", "outcome", models.counters),
        _counter("tocsin_engine_failures_total", "What raised and was caught, by part.", "part", service.failures),
        _labelled(
            "tocsin_engine_letters_dropped_total",
            "Dead letters and late records that no file keeps, by why.",
            ("kind", "reason"),
            service.letters.dropped,
        ),
        _open_incidents(service),
        *_state(service),
        *_gauges(service),
    ]


def _state(service: EngineService) -> list[Family]:
    """What is kept for a restart."""
    if service.recovery is None:
        return []
    text = "Snapshots and the journal of the engine's state: what was written, repeated by a start, set aside, lost."
    pause = "Time that the last snapshot held up the ticks."
    return [
        _counter("tocsin_engine_state_total", text, "what", service.recovery.figures),
        Family("tocsin_engine_snapshot_pause_seconds", "gauge", pause, (Sample({}, service.recovery.pause_seconds),)),
    ]


def _open_incidents(service: EngineService) -> Family:
    """What is wrong now, of all jobs: every fault and state has a line, also where there are none."""
    counts = service.engine.open_incidents()
    samples = (
        Sample({"fault": fault.value, "state": state.value}, counts[fault, state])
        for fault in FaultKind
        for state in _STANDING
    )
    return Family("tocsin_open_incidents", "gauge", "Incidents that stand now, by fault and state.", tuple(samples))


def _gauges(service: EngineService) -> list[Family]:
    gauges = (
        ("jobs", "Jobs that have a turn each second.", len(service.engine.jobs())),
        ("agents", "Connected agents.", len(service.server.connected_hosts)),
        ("inbox_bytes", "Received and not worked off.", service.server.inbox_bytes),
        ("tick_seconds", "Time the last tick took.", service.tick_seconds),
        ("tick_age_seconds", "Age of the newest tick.", service.tick_age_seconds()),
        ("clock_jumps", "How often the engine's own clock was set.", service.clock.jump_count),
        ("store_queue", "Writes that wait for the database.", service.writer.waiting_count),
        ("store_errors", "Failed writes so far.", service.writer.error_count),
        ("up_seconds", "Age.", service.age_seconds()),
    )
    return [Family(f"tocsin_engine_{name}", "gauge", text, (Sample({}, value),)) for name, text, value in gauges]


def _counter(name: str, text: str, label: str, counts: Mapping[str, int], prefix: str = "") -> Family:
    samples = tuple(
        Sample({label: key.removeprefix(prefix)}, value)
        for key, value in sorted(dict(counts).items())
        if key.startswith(prefix)
    )
    return Family(name, "counter", text, samples)


def _labelled(name: str, text: str, labels: tuple[str, str], counts: Mapping[tuple[str, str], int]) -> Family:
    samples = tuple(Sample(dict(zip(labels, key, strict=True)), value) for key, value in sorted(dict(counts).items()))
    return Family(name, "counter", text, samples)
