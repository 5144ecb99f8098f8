"""One action with everything that the controller remembers of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tocsin.pipeline.actions.ladder import Proposal
from tocsin.pipeline.actions.reasons import ActionReason
from tocsin.schemas.action_states import BEGUN_STATES, FINAL_STATES, OPEN_STATES, ActionState
from tocsin.schemas.actions import REMOVING_KINDS, STOPPING_KINDS, Action
from tocsin.schemas.cloudevents import decode_verdict, encode_verdict
from tocsin.schemas.plain_objects import plain_object, read_object
from tocsin.schemas.reasons import Reason
from tocsin.schemas.verdicts import ActionKind, Verdict

MAX_HOLDERS = 8
"""Most executors of one action whose last words are remembered."""
_LAPSES: Final = frozenset(
    {
        ActionReason.DEADLINE,
        ActionReason.VERDICT_STALE,
        ActionReason.VERDICT_CLOSED,
        ActionReason.VERDICT_CHANGED,
        ActionReason.HOST_NOT_IN_ATTEMPT,
    }
)
"""Reasons of an end after which an action is open again when its verdict holds again.

The machines of an attempt are told as ranks are heard of: after a restart of the engine, a verdict may come first.
"""


@dataclass(slots=True)
class TrackedAction:
    """An action, the verdict that it rests on, and what happened to it.

    Attributes:
        action: the action as it was published last.
        verdict: newest update of its verdict; of its evidence only that witnesses lack.
        signal: class of the evidence without driver and firmware.
        detector: detector that found the fault first.
        needs_approval: whether the policy asks a person.
        note: what the policy says to people.
        approved_ns: when a person approved it, 0 = nobody did.
        asked_ns: since when it waits for approval, 0 = it never did.
        held_ns: since when guards hold it, 0 = none does.
        blocked_ns: since when its executor is held up, 0 = it is not.
        begun_ns: when its executor began, 0 = it did not.
        done_ns: when it was done, 0 = it was not.
        is_proven: whether a failed check or a person proved it right.
        cleared: hosts of it that may come back.
        seqs: executor -> number of its last message about this action.
        paged: reason of the last page about it, "" = none.
        holders: executors that were given it, oldest first.
        has_effects: whether an executor said that it changed something.
        command_ns: when a person said something of it last, 0 = never.
        opened_ns: when it was opened, or opened again after its verdict had lapsed.
        hosts: the machines of the action, whose target never changes.
        is_leaf: whether it is about all machines behind one leaf switch.
    """

    action: Action
    verdict: Verdict
    signal: str
    detector: str
    needs_approval: bool
    note: str = ""
    approved_ns: int = 0
    asked_ns: int = 0
    held_ns: int = 0
    blocked_ns: int = 0
    begun_ns: int = 0
    done_ns: int = 0
    is_proven: bool = False
    cleared: set[str] = field(default_factory=set)
    seqs: dict[str, int] = field(default_factory=dict)
    paged: str = ""
    holders: list[str] = field(default_factory=list)
    has_effects: bool = False
    command_ns: int = 0
    opened_ns: int = 0
    hosts: tuple[str, ...] = field(init=False, compare=False, repr=False)
    is_leaf: bool = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Read the target once: guards ask for it again and again."""
        self.hosts, self.is_leaf = self.action.target.hosts, self.action.target.is_leaf()

    @property
    def state(self) -> ActionState:
        """The action's state."""
        return self.action.state

    @property
    def kind(self) -> ActionKind:
        """The action's kind."""
        return self.action.kind

    @property
    def is_open(self) -> bool:
        """Whether no executor holds it and it may still be carried out."""
        is_held_up = self.state is ActionState.BLOCKED and not self.begun_ns
        return self.kind is not ActionKind.NOTIFY and (self.state in OPEN_STATES or is_held_up)

    @property
    def is_unbegun(self) -> bool:
        """Whether nothing was changed yet and something still may be."""
        return self.is_open or (self.state is ActionState.CLAIMED)

    @property
    def is_final(self) -> bool:
        """Whether it is over and took nothing away that is still to come back."""
        if self.state in FINAL_STATES:
            return not self.is_standing and not self.waits_for_others
        return self.state is ActionState.DONE and self.kind not in REMOVING_KINDS

    @property
    def waits_for_others(self) -> bool:
        """Whether the action itself no longer keeps its machines out, but other actions do."""
        return self.state is ActionState.UNDONE and self.action.reason == ActionReason.HELD_BY_OTHER_ACTION

    @property
    def is_reserved(self) -> bool:
        """Whether budgets count the action. They do once an executor may begin it, and ever after one has held it."""
        return self.state in {ActionState.APPROVED, ActionState.CLAIMED} or bool(self.holders)

    @property
    def is_standing(self) -> bool:
        """Whether it took machines away, or may have, and they were not given back."""
        if self.kind not in REMOVING_KINDS:
            return False
        is_begun = self.state in BEGUN_STATES or (self.state is ActionState.BLOCKED and bool(self.begun_ns))
        return is_begun or (self.state is ActionState.FAILED and self.has_effects)

    @property
    def is_running(self) -> bool:
        """Whether it is about to be, or is being, carried out."""
        begun = self.state is ActionState.BLOCKED and bool(self.begun_ns)
        return begun or self.state in {ActionState.APPROVED, ActionState.CLAIMED, ActionState.STARTED}

    @property
    def has_lapsed(self) -> bool:
        """Whether the action may be opened again: it ended for a reason of ``_LAPSES``, and no executor ever had it."""
        is_over = self.state in {ActionState.EXPIRED, ActionState.CANCELLED}
        return is_over and self.action.reason in _LAPSES and not self.holders

    @property
    def last_ns(self) -> int:
        """When it changed last, or its deadline where that is later."""
        return max(self.action.changed_ns, self.action.deadline_ns)

    def is_out(self, now_ns: int) -> bool:
        """Return whether it keeps machines away at this time, or an executor may still take them away."""
        may_begin = self.state in {ActionState.APPROVED, ActionState.CLAIMED} or (
            bool(self.holders) and now_ns < self.action.lease_ns
        )
        return self.is_standing or (self.kind in REMOVING_KINDS and may_begin)

    @property
    def stops_job(self) -> bool:
        """Whether carrying it out ends the job's attempt."""
        return self.kind in STOPPING_KINDS

    def used_ns(self, now_ns: int) -> int:
        """Return when it used its place in the budgets: now while it may be begun, later when it was begun."""
        if self.state in {ActionState.APPROVED, ActionState.CLAIMED}:
            return now_ns
        return self.begun_ns or self.action.lease_ns

    def weight(self) -> int:
        """Return how many places of a budget it uses: one a machine; one for the job, and for a whole leaf."""
        return 1 if self.is_leaf else max(1, len(self.hosts))


def tracked_from(proposal: Proposal, action: Action) -> TrackedAction:
    """Return a new action with what its proposal says."""
    verdict = proposal.verdict
    detector = verdict.evidence[0].detector if verdict.evidence else proposal.rule
    asks, note = proposal.needs_approval, proposal.note
    return TrackedAction(action, slim(verdict), proposal.signal, detector, asks, note, opened_ns=action.issued_ns)


def slim(verdict: Verdict) -> Verdict:
    """Return a verdict without its evidence, of which the controller needs only whether witnesses lack."""
    lacks = tuple(one for one in verdict.evidence if one.metric == Reason.ONE_WITNESS.value)
    return replace(verdict, evidence=lacks)


_NUMBERS = ("approved_ns", "asked_ns", "held_ns", "blocked_ns", "begun_ns", "done_ns", "command_ns")


def state_of(tracked: TrackedAction) -> dict[str, Any]:
    """Return an action's state as JSON-able values, the same for equal states."""
    return {
        "action": plain_object(tracked.action),
        "verdict": encode_verdict(tracked.verdict).decode(),
        "signal": tracked.signal,
        "detector": tracked.detector,
        "needs_approval": tracked.needs_approval,
        "note": tracked.note,
        "times": [getattr(tracked, name) for name in _NUMBERS],
        "is_proven": tracked.is_proven,
        "cleared": sorted(tracked.cleared),
        "seqs": sorted(tracked.seqs.items()),
        "paged": tracked.paged,
        "holders": list(tracked.holders),
        "has_effects": tracked.has_effects,
        "opened_ns": tracked.opened_ns,
    }


def tracked_of_state(state: Mapping[str, Any]) -> TrackedAction:
    """Return the action of what ``state_of`` returned."""
    found = TrackedAction(
        read_object(Action, state["action"], "action"),
        decode_verdict(state["verdict"].encode()),
        state["signal"],
        state["detector"],
        state["needs_approval"],
        state["note"],
        is_proven=state["is_proven"],
        cleared=set(state["cleared"]),
        seqs=dict(state["seqs"]),
        paged=state["paged"],
        holders=list(state["holders"]),
        has_effects=state["has_effects"],
    )
    found.opened_ns = state.get("opened_ns", found.action.issued_ns)  # a state of before has none
    for name, value in zip(_NUMBERS, state["times"], strict=True):
        setattr(found, name, value)
    return found
