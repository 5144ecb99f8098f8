"""All actions that the controller remembers, and the questions that guards ask of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from tocsin.pipeline.actions.shelves import ActionShelves, Use, UseGroup
from tocsin.pipeline.actions.tracked import TrackedAction, state_of, tracked_of_state
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.verdicts import ActionKind

MOST_FORGOTTEN: Final = 20_000
"""Most ids of forgotten actions that are remembered, so that none of them is carried out once more."""


class ActionBook:
    """The actions by id, with indexes of those that matter to guards and to the passing of time.

    Whoever changes an action files it again: then no question costs more the more actions are open or remembered.
    """

    def __init__(self) -> None:
        """Start without actions."""
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._by_id: dict[str, TrackedAction] = {}
        self._by_host: dict[tuple[str, str], dict[str, None]] = {}
        self._by_verdict: dict[tuple[str, str], dict[str, None]] = {}
        self._shelves = ActionShelves()
        self._forgotten: dict[str, int] = {}
        """Forgotten action that an executor had -> its last revision."""
        self._lapsed: dict[str, int] = {}
        """The same of forgotten actions that nobody had."""

    def __len__(self) -> int:
        """Return the number of actions."""
        return len(self._by_id)

    def __iter__(self) -> Iterator[TrackedAction]:
        """Yield all actions, oldest first."""
        return iter(list(self._by_id.values()))

    def get(self, action_id: str) -> TrackedAction | None:
        """Return an action, None if it is not known."""
        return self._by_id.get(action_id)

    def add(self, tracked: TrackedAction) -> None:
        """Remember an action."""
        name = tracked.action.action_id
        self._by_id[name] = tracked
        self._shelves.file(tracked)
        for index, key in self._places(tracked):
            index.setdefault(key, {})[name] = None

    def file(self, tracked: TrackedAction) -> None:
        """Note that an action changed."""
        if tracked.action.action_id in self._by_id:
            self._shelves.file(tracked)

    def forget(self, tracked: TrackedAction) -> None:
        """Forget an action but for its id."""
        name = tracked.action.action_id
        names = self._forgotten if tracked.holders else self._lapsed
        names[name] = tracked.action.revision
        while len(names) > MOST_FORGOTTEN:
            del names[next(iter(names))]
        self._by_id.pop(name, None)
        self._shelves.take_out(tracked)
        for index, key in self._places(tracked):
            entries = index.get(key, {})
            entries.pop(name, None)
            if not entries:
                index.pop(key, None)

    def was_held(self, action_id: str) -> bool:
        """Return whether an action that is forgotten was in the hands of an executor."""
        return action_id in self._forgotten

    def next_revision(self, action_id: str) -> int:
        """Return the first revision of a new action: 0, or the one after the last of a forgotten one."""
        return max(self._forgotten.get(action_id, -1), self._lapsed.pop(action_id, -1)) + 1

    def uses(self, cluster: str, kind: ActionKind) -> Iterable[Use]:
        """Return the actions of a kind that use places of budgets in a cluster."""
        return self._shelves.uses(cluster, kind)

    def uses_of_job(self, cluster: str, job_id: str, kind: ActionKind) -> Iterable[Use]:
        """Return the actions of a kind on one job that use places of budgets."""
        return self._shelves.uses_of_job(cluster, job_id, kind)

    def uses_of_group(self, cluster: str, group: UseGroup, job_id: str | None = None) -> Iterable[Use]:
        """Return the actions that use places of one group of budgets in a cluster, or in it on one job."""
        return self._shelves.uses_of_group(cluster, group, job_id)

    def stopping(self, cluster: str, job_id: str) -> list[TrackedAction]:
        """Return the actions that are about to end an attempt of a job, or are ending it, oldest first."""
        return self._shelves.stopping(cluster, job_id)

    def in_the_way(self, cluster: str, host: str) -> list[TrackedAction]:
        """Return the hard actions that have a machine, will have it soon or ask for its whole leaf, oldest first."""
        return self._shelves.in_the_way(cluster, host)

    def live(self) -> list[TrackedAction]:
        """Return the actions that the passing of time may change, oldest first."""
        return self._shelves.live()

    def keeping_out(self) -> list[TrackedAction]:
        """Return the actions that took machines away, or may have, and were not undone, oldest first."""
        return self._shelves.keeping_out()

    def waiting_for_others(self) -> list[TrackedAction]:
        """Return the actions whose machines only other actions keep out, oldest first."""
        return self._shelves.waiting_for_others()

    def outdated(self, lapsed_ns: int, final_ns: int) -> Iterator[TrackedAction]:
        """Yield the finished actions whose last change and deadline are before a time, each once; forget them then.

        Args:
            lapsed_ns: the time for those that ended with their verdict, and that nobody ever had.
            final_ns: the time for the others.
        """
        return self._shelves.outdated(lapsed_ns, final_ns)

    def of_host(self, cluster: str, host: str) -> list[TrackedAction]:
        """Return the actions that concern a machine, oldest first."""
        return self._of(self._by_host, (cluster, host))

    def of_verdict(self, cluster: str, verdict_id: str) -> list[TrackedAction]:
        """Return the actions of a verdict, oldest first."""
        return self._of(self._by_verdict, (cluster, verdict_id))

    def is_held_by_others(self, cluster: str, host: str, but: Sequence[TrackedAction]) -> bool:
        """Return whether an action other than these took a machine away."""
        names = {one.action.action_id for one in but}
        return any(one.action.action_id not in names for one in self.standing(cluster, host))

    def standing(self, cluster: str, host: str) -> list[TrackedAction]:
        """Return the actions that took a machine away and were not undone."""
        found = self.in_the_way(cluster, host)
        return [one for one in found if one.is_standing and one.state is not ActionState.UNDOING]

    def has_room(self, most_count: int) -> bool:
        """Return whether fewer actions than this are not final, without pages."""
        return self._shelves.open_count < most_count

    def to_state(self) -> dict[str, Any]:
        """Return each action as JSON-able values, by id."""
        return {name: state_of(self._by_id[name]) for name in sorted(self._by_id)}

    def forgotten_state(self) -> dict[str, Any]:
        """Return the ids of forgotten actions as JSON-able values."""
        return {"held": list(self._forgotten.items()), "lapsed": list(self._lapsed.items())}

    def load_state(self, actions: Iterable[Mapping[str, Any]], forgotten: Mapping[str, Any]) -> None:
        """Replace the actions by what ``to_state`` and ``forgotten_state`` returned."""
        self.clear()
        known = map(tracked_of_state, actions)
        for tracked in sorted(known, key=lambda one: (one.action.issued_ns, one.action.action_id)):
            self.add(tracked)
        self._forgotten, self._lapsed = dict(forgotten["held"]), dict(forgotten["lapsed"])

    def _of(self, index: dict[tuple[str, str], dict[str, None]], key: tuple[str, str]) -> list[TrackedAction]:
        return [self._by_id[name] for name in index.get(key, ())]

    def _places(
        self, tracked: TrackedAction
    ) -> Iterator[tuple[dict[tuple[str, str], dict[str, None]], tuple[str, str]]]:
        """Yield each index with the key under which an action stands in it."""
        job = tracked.action.target.job
        yield self._by_verdict, (job.cluster, tracked.action.verdict_id)
        for host in tracked.hosts:
            yield self._by_host, (job.cluster, host)
