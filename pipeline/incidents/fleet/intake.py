"""What all runtimes of the fleet view share: records of hosts for a view, and its metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tocsin.pipeline.incidents.fleet.view import FleetView
from tocsin.schemas import events
from tocsin.schemas.formats.prometheus_text import Family, Sample
from tocsin.schemas.hardware import HARDWARE_EVENTS
from tocsin.schemas.records import Event, HostStatus, Record, Topology

_TAKEN: Final = frozenset({*HARDWARE_EVENTS, events.AGENT, events.HELLO, events.HOST_FACTS, events.INCIDENT_CLOSE})


def tell_records(view: FleetView, records: Iterable[Record], now_ns: int) -> None:
    """Tell a view which hosts were heard, where they are, and what they report.

    Args:
        view: the view of the records' cluster.
        records: any records, in the order of their times; those that say nothing of hosts are left out.
        now_ns: the present time.
    """
    told: list[Event] = []
    for record in records:
        if isinstance(record, HostStatus):
            view.on_status(record, now_ns)
        elif isinstance(record, Topology):
            for place in record.places:
                view.hosts.place(place.host, place.leaf)
        elif isinstance(record, Event) and record.name in _TAKEN:
            if record.name == events.AGENT and record.payload.get("edge") == "stop":
                view.hosts.left(record.host)
            told.append(record)
    view.on_host_events(told, now_ns)


def fleet_families(views: Mapping[str, FleetView]) -> list[Family]:
    """Return the metrics of some views: hosts and the fleet's own incidents, by cluster.

    Args:
        views: cluster -> its view.
    """
    shown = [(cluster, view.status()) for cluster, view in sorted(views.items())]
    hosts = tuple(
        Sample({"cluster": cluster, "kind": kind}, status[f"hosts_{kind}"])
        for cluster, status in shown
        for kind in ("known", "idle")
    )
    kinds = ("host_incidents", "fleet_incidents", "repeat_offenders", "covered_verdicts")
    told = tuple(Sample({"cluster": c, "kind": kind}, status[kind]) for c, status in shown for kind in kinds)
    return [
        Family("tocsin_fleet_hosts", "gauge", "Hosts that the fleet view knows.", hosts),
        Family("tocsin_fleet_incidents", "gauge", "Standing incidents of the fleet view.", told),
    ]
