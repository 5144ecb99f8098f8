"""The JSON Schema of the policy file."""

from __future__ import annotations

from typing import Final, get_args

from tocsin.pipeline.actions.policy.codes import CODE_ACTIONS
from tocsin.pipeline.actions.policy.config import TAKING, ProposalTarget
from tocsin.pipeline.actions.policy.limits import limits_schema
from tocsin.pipeline.core.marked_file import Schema
from tocsin.schemas.causes import CAUSES, Blames
from tocsin.schemas.verdicts import ActionKind, FaultKind, WitnessKind

KINDS: Final = tuple(one.value for one in ActionKind if one is not ActionKind.NONE)
"""Words that a rule may ask for."""
MOST_RULES: Final = 200
_MOST_COUNT: Final = 10
"""Most repetitions that a rule counts; of each host as many times are kept."""
_SPAN: Final[Schema] = {"type": "number", "minimum": 1, "maximum": 2_592_000}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 2, "maximum": _MOST_COUNT}


def _words(words: list[str], description: str) -> Schema:
    """Return the schema of one word or several of a list."""
    one: Schema = {"enum": words}
    return {"description": description, "anyOf": [one, {"type": "array", "items": one, "minItems": 1}]}


def _texts(description: str) -> Schema:
    """Return the schema of one text or several."""
    one: Schema = {"type": "string", "minLength": 1, "maxLength": 200}
    return {"description": description, "anyOf": [one, {"type": "array", "items": one, "minItems": 1}]}


def _flag(description: str) -> Schema:
    """Return the schema of a yes or no."""
    return {"type": "boolean", "description": description}


def _match() -> Schema:
    """Return the schema of a rule's condition."""
    properties: dict[str, Schema] = {
        "job": _texts("Patterns of the job's id; * stands for any text."),
        "fault": _words([one.value for one in FaultKind], "Fault of the verdict."),
        "cause": _words(sorted(CAUSES), "Cause; `tocsin causes` lists them."),
        "blames": _words(sorted(get_args(Blames)), "What the cause blames."),
        "action": _words([one.value for one in ActionKind], "Action that the verdict proposes."),
        "code": _words(sorted(CODE_ACTIONS), "What NVIDIA's tables ask for after the codes that the verdict rests on."),
        "error": _texts("Names of exceptions in the last words of the program."),
        "witness": _words([one.value for one in WitnessKind], "Kind of a witness of the verdict."),
        "named": _flag("Whether the verdict names suspects."),
        "words_only": _flag("Whether only words of a user's program tell it."),
        "common": _flag("Whether the suspects share a component, such as a leaf."),
        "min_confidence": {"type": "number", "minimum": 0, "maximum": 1},
        "after_evict_seconds": {
            **_SPAN,
            "description": "The job lost a machine by an eviction at most this long before the fault.",
        },
    }
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _rule() -> Schema:
    """Return the schema of a rule."""
    kind: Schema = {"enum": list(KINDS)}
    steps: Schema = {"type": "array", "items": kind, "minItems": 1, "maxItems": 10}
    tolerate: Schema = {
        "type": "object",
        "description": "Only people are told until it happened so often on one host, or stands for so long.",
        "properties": {"count": _COUNT, "within_seconds": _SPAN, "stands_seconds": _SPAN},
        "required": ["count", "within_seconds", "stands_seconds"],
        "additionalProperties": False,
    }
    mild: Schema = {"enum": [one for one in KINDS if ActionKind(one) not in TAKING]}
    again: Schema = {
        "type": "object",
        "description": "What is done instead where it happens again on one host.",
        "properties": {"count": _COUNT, "within_seconds": _SPAN, "do": mild},
        "required": ["count", "within_seconds", "do"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {
            "name": {"type": "string", "pattern": "^[a-z][a-z0-9_]{0,63}$"},
            "meaning": {"type": "string", "maxLength": 500, "description": "One sentence for people."},
            "match": _match(),
            "do": {
                "description": "What to do; a list: one after the other, as often as the job fails again.",
                "anyOf": [kind, steps],
            },
            "target": {"enum": [one.value for one in ProposalTarget], "description": "Default: suspects."},
            "approval": _flag("Whether a person must approve first; default false."),
            "tolerate": tolerate,
            "again": again,
        },
        "required": ["name", "match", "do"],
        "additionalProperties": False,
    }


def policy_schema() -> Schema:
    """Return the JSON Schema (draft 2020-12) of a policy file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Policy of tocsin's actions",
        "type": "object",
        "properties": {
            "version": {"const": 1},
            "forget_seconds": {
                **_SPAN,
                "description": "A job that did not fail for so long begins at the first step again.",
            },
            "limits": limits_schema(),
            "rules": {"type": "array", "items": _rule(), "minItems": 1, "maxItems": MOST_RULES},
        },
        "required": ["version", "rules"],
        "additionalProperties": False,
    }
