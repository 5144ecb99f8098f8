"""Indexes of actions by what guards and the passing of time ask of them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar

from tocsin.pipeline.actions.tracked import TrackedAction
from tocsin.schemas.action_states import OPEN_STATES, ActionState
from tocsin.schemas.actions import HARD_KINDS
from tocsin.schemas.verdicts import ActionKind

TICKED: Final = frozenset(
    {*OPEN_STATES, ActionState.CLAIMED, ActionState.STARTED, ActionState.BLOCKED, ActionState.UNDOING}
)
"""States that the passing of time may change."""
_Key = tuple[str, ...]
RESTARTING: Final = frozenset({ActionKind.RESTART, ActionKind.ROLLBACK})
"""Kinds that start a job again on the machines that it has; they have budgets of their own."""


class UseGroup(StrEnum):
    """Actions that share budgets."""

    MACHINES = "machines"
    """They take machines away."""
    RESTARTS = "restarts"
    """They start a job again and leave no machine out."""
    NEITHER = "neither"


def group_of(kind: ActionKind) -> UseGroup:
    """Return the budgets that actions of a kind use."""
    if kind in HARD_KINDS:
        return UseGroup.MACHINES
    return UseGroup.RESTARTS if kind in RESTARTING else UseGroup.NEITHER


_T = TypeVar("_T")


class Use(NamedTuple):
    """An action that uses places of budgets.

    Attributes:
        tracked: the action.
        used_ns: when it used them, 0: now, since it may be begun.
        weight: how many of the job and of the fleet.
        budget_class: its class of evidence.
    """

    tracked: TrackedAction
    used_ns: int
    weight: int
    budget_class: str


class ActionShelves:
    """Actions by the places at which somebody looks for them; an action that changed is filed again."""

    def __init__(self) -> None:
        """Start empty."""
        self._order: dict[str, int] = {}
        """Action -> its number in the order in which actions came."""
        self._next = 0
        self._keys: dict[str, frozenset[_Key]] = {}
        """Action -> the shelves on which it stands."""
        self._shelves: dict[_Key, dict[str, TrackedAction]] = {}
        self._uses: dict[_Key, dict[str, Use]] = {}
        self._ages = _Ages(), _Ages()
        """Finished actions by their last change and deadline: those that lapsed, and the others."""

    @property
    def open_count(self) -> int:
        """Number of actions that are not final, without pages."""
        return len(self._shelves.get(_OPEN, ()))

    def file(self, tracked: TrackedAction) -> None:
        """Put an action on its shelves."""
        name = tracked.action.action_id
        if name not in self._order:
            self._order[name], self._next = self._next, self._next + 1
        before, after = self._keys.get(name, _NOWHERE), frozenset(_keys_of(tracked))
        for key in before - after:
            _remove(self._shelves, key, name)
        for key in after - before:
            self._shelves.setdefault(key, {})[name] = tracked
        self._keys[name] = after
        self._file_use(tracked)
        lapsed, final = self._ages
        is_final, is_lapsed = tracked.is_final, tracked.has_lapsed
        lapsed.note(tracked, is_in=is_final and is_lapsed)
        final.note(tracked, is_in=is_final and not is_lapsed)

    def take_out(self, tracked: TrackedAction) -> None:
        """Take an action from all shelves."""
        name = tracked.action.action_id
        for key in self._keys.pop(name, _NOWHERE):
            _remove(self._shelves, key, name)
        for key in _use_keys(tracked):
            _remove(self._uses, key, name)
        self._order.pop(name, None)
        for ages in self._ages:
            ages.note(tracked, is_in=False)

    def stopping(self, cluster: str, job_id: str) -> list[TrackedAction]:
        """See ``ActionBook.stopping``."""
        return self._sorted(("stopping", cluster, job_id))

    def in_the_way(self, cluster: str, host: str) -> list[TrackedAction]:
        """See ``ActionBook.in_the_way``."""
        return self._sorted(("host", cluster, host))

    def uses(self, cluster: str, kind: ActionKind) -> Iterable[Use]:
        """See ``ActionBook.uses``."""
        return self._uses.get((cluster, kind.value), {}).values()

    def uses_of_job(self, cluster: str, job_id: str, kind: ActionKind) -> Iterable[Use]:
        """See ``ActionBook.uses_of_job``."""
        return self._uses.get((cluster, kind.value, job_id), {}).values()

    def uses_of_group(self, cluster: str, group: UseGroup, job_id: str | None) -> Iterable[Use]:
        """See ``ActionBook.uses_of_group``."""
        key = (cluster, group) if job_id is None else (cluster, group, job_id)
        return self._uses.get(key, {}).values()

    def live(self) -> list[TrackedAction]:
        """See ``ActionBook.live``."""
        found = self._shelves.get(_LIVE, {}).values()
        return sorted(found, key=lambda one: (one.action.issued_ns, one.action.action_id))

    def keeping_out(self) -> list[TrackedAction]:
        """See ``ActionBook.keeping_out``."""
        return self._sorted(_OUT)

    def waiting_for_others(self) -> list[TrackedAction]:
        """See ``ActionBook.waiting_for_others``."""
        return self._sorted(_LEFT)

    def outdated(self, lapsed_ns: int, final_ns: int) -> Iterator[TrackedAction]:
        """See ``ActionBook.outdated``."""
        for ages, before_ns in zip(self._ages, (lapsed_ns, final_ns), strict=True):
            yield from ages.before(before_ns)

    def _sorted(self, key: _Key) -> list[TrackedAction]:
        found = self._shelves.get(key)
        if not found:
            return []
        return sorted(found.values(), key=lambda one: self._order[one.action.action_id])

    def _file_use(self, tracked: TrackedAction) -> None:
        name = tracked.action.action_id
        if not (tracked.is_reserved or tracked.is_standing):
            for key in _use_keys(tracked):
                _remove(self._uses, key, name)
            return
        use = Use(tracked, tracked.used_ns(0), tracked.weight(), tracked.action.budget_class)
        for key in _use_keys(tracked):
            self._uses.setdefault(key, {})[name] = use


class _Ages:
    """Finished actions in the order in which they may be forgotten."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._known: dict[str, TrackedAction] = {}

    def note(self, tracked: TrackedAction, *, is_in: bool) -> None:
        """Note whether an action is among them."""
        name = tracked.action.action_id
        if not is_in:
            self._known.pop(name, None)
        elif name not in self._known:
            self._known[name] = tracked
            heapq.heappush(self._heap, (tracked.last_ns, name))

    def before(self, before_ns: int) -> Iterator[TrackedAction]:
        """Yield the actions whose last time is before another one."""
        while self._heap and self._heap[0][0] < before_ns:
            _, name = heapq.heappop(self._heap)
            tracked = self._known.get(name)
            if tracked is None:
                continue
            if tracked.last_ns < before_ns:
                yield tracked
            else:
                heapq.heappush(self._heap, (tracked.last_ns, name))


_OPEN: Final[_Key] = ("open",)
_LIVE: Final[_Key] = ("live",)
_OUT: Final[_Key] = ("out",)
_LEFT: Final[_Key] = ("left",)
_NOWHERE: Final[frozenset[_Key]] = frozenset()


def _keys_of(tracked: TrackedAction) -> Iterator[_Key]:
    """Yield the shelves on which an action stands."""
    state, kind = tracked.state, tracked.kind
    if state in TICKED:
        yield _LIVE
    if kind is ActionKind.NOTIFY:
        return
    if tracked.is_standing:
        yield _OUT
    if tracked.waits_for_others:
        yield _LEFT
    if not tracked.is_final:
        yield _OPEN
    job, is_running = tracked.action.target.job, tracked.is_running
    if is_running and tracked.stops_job:
        yield "stopping", job.cluster, job.job_id
    has_machine = is_running or state is ActionState.UNDOING or tracked.is_standing
    if kind in HARD_KINDS and (has_machine or (tracked.is_leaf and tracked.is_unbegun)):
        for host in tracked.hosts:
            yield "host", job.cluster, host


def _use_keys(tracked: TrackedAction) -> tuple[_Key, ...]:
    """Return the places of an action that uses budgets: by kind and by group, of the cluster and of its job."""
    job, kind, group = tracked.action.target.job, tracked.kind.value, group_of(tracked.kind)
    cluster, job_id = job.cluster, job.job_id
    return (cluster, kind), (cluster, kind, job_id), (cluster, group), (cluster, group, job_id)


def _remove(shelves: dict[_Key, dict[str, _T]], key: _Key, name: str) -> None:
    """Take an action from one shelf."""
    found = shelves.get(key)
    if found is not None:
        found.pop(name, None)
        if not found:
            del shelves[key]
