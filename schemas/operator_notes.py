"""Notes of people for tocsin: whether a verdict was right, and which work on machines is planned."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tocsin.schemas.errors import FieldError
from tocsin.schemas.verdicts import Component, ComponentKind
from tocsin.schemas.wire.validate import INT64_MAX, check_int, check_name

MAX_NOTE_CHARACTERS: Final = 1000
"""Greatest length of a note or a reason."""
MAX_ACTOR_CHARACTERS: Final = 200
TARGET_KINDS: Final = (ComponentKind.HOST, ComponentKind.LEAF, ComponentKind.JOB)
"""Kinds of components on which work can be planned."""
FEEDBACK: Final = "feedback"
MAINTENANCE: Final = "maintenance"
_KIND: Final = "kind"


@dataclass(frozen=True, slots=True)
class Feedback:
    """A person's judgement of one verdict; of several on one verdict the latest counts.

    Attributes:
        cluster: cluster of the verdict.
        verdict_id: id of the verdict.
        is_true: whether the verdict was right: its suspects were at fault, or nobody was where it names nobody.
        note: why, in the person's words; "" for none.
        actor: who says so: ``uid:1000`` on a control socket, ``operator:NAME`` with a credential over a network.
        ts_ns: when it was said.
    """

    cluster: str
    verdict_id: str
    is_true: bool
    note: str
    actor: str
    ts_ns: int


@dataclass(frozen=True, slots=True)
class Maintenance:
    """Planned work: incidents of its target are seen and stored meanwhile, never paged and never acted on.

    Of several with one id the latest counts; one that is ended early is said again with an earlier ``end_ns``.

    Attributes:
        maintenance_id: stable id, 16 hexadecimal digits.
        cluster: cluster of the target.
        target: a host, a leaf or a job.
        begin_ns: first moment of the work.
        end_ns: first moment after it.
        reason: what is done, in the person's words.
        actor: who planned it, as in ``Feedback``.
        ts_ns: when it was said.
    """

    maintenance_id: str
    cluster: str
    target: Component
    begin_ns: int
    end_ns: int
    reason: str
    actor: str
    ts_ns: int

    def is_on(self, now_ns: int) -> bool:
        """Return whether the work goes on at this time."""
        return self.begin_ns <= now_ns < self.end_ns


OperatorNote = Feedback | Maintenance


def maintenance_id_of(cluster: str, target: Component, begin_ns: int, actor: str, ts_ns: int) -> str:
    """Return the id of a planned work at its first saying: 16 hexadecimal digits, a hash of the arguments."""
    text = "\n".join((cluster, target.kind.value, target.name, str(begin_ns), actor, str(ts_ns)))
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def check_note(value: object, field: str, *, empty: bool = False) -> str:
    """Return a text of a person without spaces at its ends, at most ``MAX_NOTE_CHARACTERS`` long.

    Args:
        value: the text.
        field: its name, for errors.
        empty: whether it may be empty.

    Raises:
        FieldError: it is no such text.
    """
    text = value.strip() if isinstance(value, str) else None
    if text is None or len(text) > MAX_NOTE_CHARACTERS or not (text or empty):
        raise FieldError(field, value, f"a text of {0 if empty else 1} to {MAX_NOTE_CHARACTERS} characters")
    return text


def check_target(kind: object, name: object) -> Component:
    """Return the component on which work is planned.

    Raises:
        FieldError: the kind is none of ``TARGET_KINDS``, or the name is none.
    """
    found = next((one for one in TARGET_KINDS if one.value == kind), None)
    if found is None:
        raise FieldError("target_kind", kind, f"one of {', '.join(TARGET_KINDS)}")
    return Component(found, check_name(name, "target"))


def note_object(note: OperatorNote) -> dict[str, Any]:
    """Return the JSON object of a note; ``note_from`` is its inverse."""
    if isinstance(note, Feedback):
        return {_KIND: FEEDBACK, **{name: getattr(note, name) for name in Feedback.__dataclass_fields__}}
    values = {name: getattr(note, name) for name in Maintenance.__dataclass_fields__ if name != "target"}
    return {_KIND: MAINTENANCE, "target_kind": note.target.kind.value, "target": note.target.name, **values}


def note_from(values: object) -> OperatorNote:
    """Return the note of a JSON object.

    Raises:
        FieldError: the object is no note; the error names field and value.
    """
    if not isinstance(values, Mapping):
        raise FieldError("note", values, "an object")
    kind = values.get(_KIND)
    if kind == FEEDBACK:
        return _feedback(values)
    if kind == MAINTENANCE:
        return _maintenance(values)
    raise FieldError(_KIND, kind, f"{FEEDBACK} or {MAINTENANCE}")


def _feedback(values: Mapping[str, Any]) -> Feedback:
    is_true = values.get("is_true")
    if not isinstance(is_true, bool):
        raise FieldError("is_true", is_true, "true or false")
    return Feedback(
        check_name(values.get("cluster"), "cluster"),
        check_name(values.get("verdict_id"), "verdict_id"),
        is_true,
        check_note(values.get("note"), "note", empty=True),
        _actor(values),
        check_int(values.get("ts_ns"), "ts_ns", 0, INT64_MAX),
    )


def _maintenance(values: Mapping[str, Any]) -> Maintenance:
    begin_ns = check_int(values.get("begin_ns"), "begin_ns", 0, INT64_MAX)
    return Maintenance(
        check_name(values.get("maintenance_id"), "maintenance_id"),
        check_name(values.get("cluster"), "cluster"),
        check_target(values.get("target_kind"), values.get("target")),
        begin_ns,
        check_int(values.get("end_ns"), "end_ns", begin_ns, INT64_MAX),
        check_note(values.get("reason"), "reason"),
        _actor(values),
        check_int(values.get("ts_ns"), "ts_ns", 0, INT64_MAX),
    )


def _actor(values: Mapping[str, Any]) -> str:
    actor = check_name(values.get("actor"), "actor")
    if len(actor) > MAX_ACTOR_CHARACTERS:
        raise FieldError("actor", actor, f"at most {MAX_ACTOR_CHARACTERS} characters")
    return actor
