"""What is written on a Kubernetes node to say whose doing it is and what was changed: an annotation for each action.

The annotation ``tocsin.dev/action-ID`` holds a JSON object: what we changed (``did``), why, and when. The taint has the
action's id as its value, the condition names it in its message. Only what ``did`` names is ever taken back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from tocsin.pipeline.actions.executors.kubernetes_text import Condition, KubeNode, Taint, time_of
from tocsin.schemas.actions import Action

PREFIX: Final = "tocsin.dev/action-"
TAINT: Final = "tocsin.dev/training-fault-suspected"
CONDITION: Final = "TrainingFaultSuspected"
MARKED: Final = "tocsin.dev/action"
"""Label of whole objects that an action made."""
CORDON: Final = "cordon"
TAINTED: Final = "taint"
_ID = re.compile(r"[0-9a-f]{32}")
_NO_WORD = re.compile(r"[^A-Za-z0-9]+")


@dataclass(frozen=True, slots=True)
class Mark:
    """What an action left on a node.

    Attributes:
        action_id: the action.
        did: what it changed beside the annotation itself: ``cordon``, ``taint``; empty for nothing.
        cause: cause of the verdict.
        verdict_id: the verdict.
        kind: kind of the action.
        at: when, as the API server writes times.
        owner_uid: UID of the controller of the job's pod on the node, "" for none.
        host: the machine's name in verdicts where it is not the node's name, "" where it is.
    """

    action_id: str
    did: tuple[str, ...]
    cause: str = ""
    verdict_id: str = ""
    kind: str = ""
    at: str = ""
    owner_uid: str = ""
    host: str = ""

    @property
    def annotation(self) -> str:
        """Name of the annotation."""
        return f"{PREFIX}{self.action_id}"

    def as_text(self) -> str:
        """Return the annotation's value."""
        values = {
            "did": list(self.did),
            "cause": self.cause,
            "verdict": self.verdict_id,
            "kind": self.kind,
            "at": self.at,
            "owner": self.owner_uid,
            "host": self.host,
        }
        return json.dumps({name: value for name, value in values.items() if value or name == "did"})


def mark_of(action: Action, did: tuple[str, ...], now_ns: int, owner_uid: str = "", host: str = "") -> Mark:
    """Return the mark that an action is to leave."""
    kind = action.kind.value
    return Mark(action.action_id, did, action.cause, action.verdict_id, kind, time_of(now_ns), owner_uid, host)


def marks_on(node: KubeNode) -> Mapping[str, Mark]:
    """Return the marks of a node by action.

    An annotation that somebody changed so that it cannot be read, or took away while the taint is there, still marks
    the node; what it changed beside the taint is not known then, and stays.
    """
    tainted = {one.value for one in node.taints if one.key == TAINT and _ID.fullmatch(one.value)}
    found = {name: Mark(name, (TAINTED,)) for name in sorted(tainted)}
    for key, text in sorted(node.annotations.items()):
        name = key.removeprefix(PREFIX)
        if key != name and _ID.fullmatch(name):
            did = (TAINTED,) if name in tainted else ()
            found[name] = _read(name, text) or Mark(name, did)
    return found


def taint_of(action_id: str, now_ns: int) -> Taint:
    """Return the taint of an action: no new pods, and none is ended."""
    return Taint(TAINT, action_id, "NoSchedule", time_of(now_ns))


def condition_of(mark: Mark) -> Condition:
    """Return the condition of a node that holds a mark."""
    word = "".join(part.capitalize() for part in _NO_WORD.split(mark.cause)) or "Unknown"
    reason = word if word[0].isalpha() else f"Cause{word}"
    return Condition("True", reason, f"tocsin action {mark.action_id}, verdict {mark.verdict_id}")


def is_condition_ours(condition: Condition | None) -> bool:
    """Return whether a condition of our type is as we wrote it, for whichever action."""
    return condition is not None and re.match(r"tocsin action [0-9a-f]{32}, ", condition.message) is not None


def given_on(mark: Mark, after: Mark) -> Mark:
    """Return the mark of a node's next action, which from now on holds what the first one changed."""
    return replace(after, did=tuple(sorted({*mark.did, *after.did})))


def _read(action_id: str, text: str) -> Mark | None:
    """Return what an annotation says, None where it cannot be read."""
    try:
        value = json.loads(text)
        did = tuple(str(one) for one in value["did"])
        names = ("cause", "verdict", "kind", "at", "owner", "host")
        return Mark(action_id, did, *(str(value.get(name, "")) for name in names))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
