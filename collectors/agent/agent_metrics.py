"""The agent's own metrics, as Prometheus families."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from typing import Final

from tocsin.collectors.agent.runner import CollectorReport
from tocsin.collectors.agent.tally import Tally
from tocsin.collectors.sources.procfs import parse_process_stat, read_text
from tocsin.collectors.transport.sink import SinkStatus
from tocsin.schemas.formats.prometheus_text import Family, Sample

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def families(
    tally: Tally,
    records: Mapping[str, int],
    reports: Mapping[str, CollectorReport],
    sink: SinkStatus,
    late_count: int,
    skipped: Mapping[str, Mapping[str, int]],
) -> list[Family]:
    """Return the metric families of one agent.

    Args:
        tally: datagrams, dead letters and events counted so far.
        records: record kind -> records handed to the sink.
        reports: collector -> how its last call went.
        sink: state of the connection to the engine.
        late_count: samples that came after their slice was cut.
        skipped: collector -> reason -> what it passed over.
    """
    return [
        _counts("datagrams_total", "Datagrams of hooks taken, by type.", "type", tally.datagrams),
        _counts("dead_letters_total", "Datagrams not as agreed, by reason.", "reason", tally.dead_letters),
        _counts("events_total", "Events raised, by name.", "name", tally.events),
        _counts("records_total", "Records handed to the sink, by kind.", "kind", records),
        *_collector_families(reports, skipped),
        *_sink_families(sink),
        _one("late_samples_total", "counter", "Samples that came after their slice was cut.", late_count),
        _one("clock_offset_seconds", "gauge", "Host's clock minus engine's.", sink.offset.offset_ns / 1e9),
        _one("clock_error_seconds", "gauge", "Bound of the offset's error.", sink.offset.error_ns / 1e9),
        *_process_families(),
    ]


def _collector_families(
    reports: Mapping[str, CollectorReport], skipped: Mapping[str, Mapping[str, int]]
) -> list[Family]:
    """Return the families with a sample for each collector."""
    return [
        Family(
            "tocsin_agent_collector_success",
            "gauge",
            "1 where the collector's last call went well.",
            tuple(Sample({"collector": name}, float(found.ok)) for name, found in reports.items()),
        ),
        Family(
            "tocsin_agent_collector_duration_seconds",
            "gauge",
            "How long the collector's last call took.",
            tuple(Sample({"collector": name}, found.seconds) for name, found in reports.items()),
        ),
        Family(
            "tocsin_agent_collector_skipped_total",
            "counter",
            "What a collector passed over, by reason.",
            tuple(
                Sample({"collector": name, "reason": reason}, count)
                for name, counts in skipped.items()
                for reason, count in sorted(counts.items())
            ),
        ),
    ]


def _sink_families(sink: SinkStatus) -> list[Family]:
    """Return the families about the connection to the engine and the spool."""
    return [
        _one("engine_connected", "gauge", "1 while the engine is connected.", float(sink.is_connected)),
        _one("connects_total", "counter", "Connections made to the engine.", sink.reconnect_count),
        _one("acknowledged_records_total", "counter", "Records that the engine has taken.", sink.acked_count),
        _one("spooled_records", "gauge", "Records that wait in the spool.", sink.spooled_count),
        _one("lost_records_total", "counter", "Records lost: no room, or damaged on disk.", sink.dropped_count),
        _one("unencodable_records_total", "counter", "Records that the codec refused.", sink.unencodable_count),
        _one("refused_records_total", "counter", "Records stamped in the future, not taken.", sink.refused_count),
        _one("bad_engine_messages_total", "counter", "Engine's messages not understood.", sink.bad_message_count),
    ]


def _process_families() -> list[Family]:
    """Return the families about the agent's own process: CPU time and memory."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    rss_bytes = parse_process_stat(read_text("/proc/self/stat")).rss_page_count * _PAGE_BYTES
    return [
        _one("cpu_seconds_total", "counter", "CPU time of the agent.", usage.ru_utime + usage.ru_stime),
        _one("resident_memory_bytes", "gauge", "Resident memory of the agent.", rss_bytes),
    ]


def socket_families(renewed_count: int, *, is_reached: bool) -> list[Family]:
    """Return the metric families of the socket that hooks send to.

    Args:
        renewed_count: how often the socket vanished and was made again.
        is_reached: whether the socket's path leads to this agent, not to another one's socket.
    """
    reached = "0 while another has the place of the hooks' socket."
    renewals = "Times it had vanished and was made again."
    return [
        _one("socket_reached", "gauge", reached, float(is_reached)),
        _one("socket_renewals_total", "counter", renewals, renewed_count),
    ]


def _one(name: str, kind: str, text: str, value: float) -> Family:
    """Return a family with one sample without labels."""
    full_name = f"tocsin_agent_{name}"
    return Family(full_name, "counter" if kind == "counter" else "gauge", text, (Sample({}, value),))


def _counts(name: str, text: str, label: str, counts: Mapping[str, int]) -> Family:
    """Return a counter with one sample for each key of ``counts``, the key as its label."""
    samples = tuple(Sample({label: key}, value) for key, value in sorted(dict(counts).items()))
    return Family(f"tocsin_agent_{name}", "counter", text, samples)
