"""Marks of stages from ``stage`` events."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tocsin.schemas import events
from tocsin.schemas.records import NS_PER_SECOND, Event
from tocsin.schemas.startup import Edge, StageMark, StartKind

_MOST_SECONDS: Final = 1e7


def marks_of(event: Event) -> list[StageMark]:
    """Return the marks that an event stands for; none if it is no ``stage`` event, or says no stage or edge.

    The host is compared with its peers, its ranks are its processes. Without a host the rank is compared. An end that
    says how many ``seconds`` the stage lasted stands for its begin, too.
    """
    stage, edge = event.payload.get("stage"), event.payload.get("edge")
    if event.name != events.STAGE or not isinstance(stage, str) or not stage or edge not in tuple(Edge):
        return []
    rank = str(event.rank) if event.rank >= 0 else ""
    kind = event.payload.get("start_kind", StartKind.FULL)
    mark = StageMark(
        event.ts_ns, stage, Edge(edge), event.host or rank, rank, str(kind or StartKind.FULL), event.job.attempt
    )
    seconds = event.payload.get("seconds")
    if mark.edge is Edge.BEGIN or not isinstance(seconds, int | float) or not 0 <= seconds < _MOST_SECONDS:
        return [mark]
    return [replace(mark, ts_ns=event.ts_ns - round(seconds * NS_PER_SECOND), edge=Edge.BEGIN), mark]
