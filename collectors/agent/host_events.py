"""Conversion of hooks' messages to events."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tocsin.collectors.agent.messages import (
    Exit,
    Hello,
    LoaderReport,
    ModelWork,
    NotFinite,
    PhaseEdge,
    StageEdge,
)
from tocsin.collectors.api import HostEvent
from tocsin.schemas import events
from tocsin.schemas.records import EventSource, Severity

OWN_SOURCE: Final = EventSource.PROCESS
"""Source of events about the agent itself."""


def with_minipod(event: HostEvent, minipod: str) -> HostEvent:
    """Return a host's event; its facts with the minipod, which an idle host tells in no other way.

    Args:
        event: the event.
        minipod: name of the host's minipod, "" if it is not known.
    """
    if event.name != events.HOST_FACTS or not minipod:
        return event
    return replace(event, payload={**event.payload, "minipod": minipod})


def hook_event(body: object) -> HostEvent:
    """Return the event for a hook's message; a message without a type of its own gives a goodbye."""
    if isinstance(body, Hello):
        payload = {"pid": body.pid, "world_size": body.world_size, "hook_version": body.hook_version}
        payload |= {key: value for key in events.JOB_FACT_KEYS if (value := getattr(body, key))}
        return HostEvent(events.HELLO, EventSource.JOB, Severity.INFO, payload)
    if isinstance(body, PhaseEdge):
        return HostEvent(events.PHASE, EventSource.JOB, Severity.INFO, {"phase": body.phase, "edge": body.edge})
    if isinstance(body, ModelWork):
        return HostEvent(events.MODEL, EventSource.JOB, Severity.INFO, dict(body.payload))
    if isinstance(body, StageEdge):
        payload = {"stage": body.stage, "edge": body.edge, "start_kind": body.start_kind}
        if body.seconds is not None:
            payload["seconds"] = body.seconds
        if body.cache_hit_ratio is not None:
            payload["cache_hit_ratio"] = body.cache_hit_ratio
        return HostEvent(events.STAGE, EventSource.STARTUP, Severity.INFO, payload)
    if isinstance(body, NotFinite):
        payload = {"step": body.step, "what": body.what, "value": body.value}
        return HostEvent(events.NAN, EventSource.JOB, Severity.ERROR, payload)
    if isinstance(body, LoaderReport):
        return HostEvent(events.LOADER, EventSource.LOADER, Severity.INFO, dict(body.values))
    if isinstance(body, Exit):
        bad = bool(body.code or body.signal)
        payload = {"code": body.code, "signal": body.signal, "stderr_tail": body.stderr_tail, "pid": body.pid}
        return HostEvent(events.EXIT, EventSource.PROCESS, Severity.FATAL if bad else Severity.INFO, payload)
    return HostEvent(events.BYE, EventSource.JOB, Severity.INFO, {})
