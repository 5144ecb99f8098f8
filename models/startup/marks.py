"""Marks of stages from ``stage`` events."""

from __future__ import annotations

from tocsin.schemas import events
from tocsin.schemas.records import Event
from tocsin.schemas.startup import Edge, StageMark, StartKind


def mark_of(event: Event) -> StageMark | None:
    """Return the mark that an event stands for; None if it is no ``stage`` event, or says no stage or edge.

    The host is compared with its peers, its ranks are its processes. Without a host the rank is compared.
    """
    stage, edge = event.payload.get("stage"), event.payload.get("edge")
    if event.name != events.STAGE or not isinstance(stage, str) or not stage or edge not in tuple(Edge):
        return None
    rank = str(event.rank) if event.rank >= 0 else ""
    kind = event.payload.get("start_kind", StartKind.FULL)
    return StageMark(
        event.ts_ns, stage, Edge(edge), event.host or rank, rank, str(kind or StartKind.FULL), event.job.attempt
    )
