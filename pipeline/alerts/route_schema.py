"""The JSON Schema of the routes file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tocsin.pipeline.alerts.adapters.kinds import AdapterKind, Schema
from tocsin.pipeline.alerts.notice import AlertSeverity
from tocsin.schemas.causes import CAUSES
from tocsin.schemas.verdicts import ActionKind, FaultKind, VerdictState

_NAME: Final[Schema] = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"}
_GLOBS: Final[Schema] = {
    "description": "One pattern or several; * stands for any text, ? for one character.",
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
    ],
}
_WATCHDOG: Final[Schema] = {
    "type": "object",
    "properties": {"receiver": _NAME, "every_seconds": {"type": "number", "minimum": 10, "maximum": 86_400}},
    "required": ["receiver"],
    "additionalProperties": False,
}
_LIMITS: Final[Schema] = {
    "description": "How many incidents a route tells one by one; the rest is counted by a summary.",
    "type": "object",
    "properties": {
        "signature_count": {"type": "integer", "minimum": 1, "maximum": 1000},
        "route_count": {"type": "integer", "minimum": 1, "maximum": 1000},
        "window_seconds": {"type": "number", "minimum": 1, "maximum": 86_400},
        "calm_seconds": {"type": "number", "minimum": 60, "maximum": 86_400},
        "stale_seconds": {"type": "number", "minimum": 60, "maximum": 604_800},
    },
    "additionalProperties": False,
}


def _words(words: list[str], description: str) -> Schema:
    """Return the schema of one word or several of a list."""
    one: Schema = {"enum": words}
    return {"description": description, "anyOf": [one, {"type": "array", "items": one, "minItems": 1}]}


def _match(*, with_severity: bool) -> Schema:
    """Return the schema of a condition on incidents."""
    properties: dict[str, Schema] = {
        "job": _GLOBS,
        "cluster": _GLOBS,
        "host": _GLOBS,
        "fault": _words([one.value for one in FaultKind], "Fault; degraded is told only where it is named here."),
        "cause": _words(sorted(CAUSES), "Cause; `tocsin causes` lists them."),
        "action": _words([one.value for one in ActionKind], "Action that the verdict proposes."),
        "state": _words(
            [VerdictState.OPEN.value, VerdictState.CONFIRMED.value],
            "State in which an incident is told first; default confirmed.",
        ),
        "min_confidence": {"type": "number", "minimum": 0, "maximum": 1},
    }
    if with_severity:
        properties["severity"] = _words([one.value for one in AlertSeverity], "Severity by the table.")
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _route() -> Schema:
    """Return the schema of a route."""
    return {
        "type": "object",
        "properties": {
            "name": _NAME,
            "receiver": _NAME,
            "match": _match(with_severity=True),
            "continue": {"type": "boolean", "description": "Whether later routes may tell the incident, too."},
            "give_up_after_seconds": {
                "type": "number",
                "minimum": 60,
                "maximum": 604_800,
                "description": "How long one notice is tried; default a day.",
            },
        },
        "required": ["name", "receiver"],
        "additionalProperties": False,
    }


def schema_of(registry: Mapping[str, AdapterKind]) -> Schema:
    """Return the JSON Schema (draft 2020-12) of a routes file.

    Args:
        registry: word of the kind -> kind of receiver.
    """
    receivers: Schema = {
        "type": "object",
        "properties": {"kind": {"enum": sorted(registry)}},
        "required": ["kind"],
        "allOf": [
            {"if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]}, "then": one.schema}
            for kind, one in sorted(registry.items())
        ],
    }
    return frame_schema(
        {"type": "object", "propertyNames": _NAME, "minProperties": 1, "additionalProperties": receivers}
    )


def frame_schema(receivers: Schema) -> Schema:
    """Return the schema of a routes file around a schema of its receivers."""
    severity: Schema = {
        "type": "object",
        "properties": {
            "match": _match(with_severity=False),
            "severity": {"enum": [one.value for one in AlertSeverity]},
            "once_an_attempt": {
                "type": "boolean",
                "description": "Whether of one cause and one attempt of a job only the first incident is told.",
            },
        },
        "required": ["match", "severity"],
        "additionalProperties": False,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Routes of tocsin's alerts",
        "type": "object",
        "properties": {
            "version": {"const": 1},
            "receivers": receivers,
            "severities": {"type": "array", "items": severity},
            "routes": {"type": "array", "items": _route(), "minItems": 1},
            "watchdog": _WATCHDOG,
            "limits": _LIMITS,
        },
        "required": ["version", "receivers", "routes"],
        "additionalProperties": False,
    }
