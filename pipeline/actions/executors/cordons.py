"""Who keeps new work off the machines of actions, as an executor reads it from its system, and when people change it.

A system forgets who gave a machine back. So a machine that one of our actions took away, and that takes work again
while nobody undoes the action, was given back by a person.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final, Protocol, runtime_checkable

from tocsin.schemas.action_events import CordonOwner, CordonSeen, HumanChange, HumanChangeKind
from tocsin.schemas.action_states import FINAL_STATES, ActionState
from tocsin.schemas.actions import REMOVING_KINDS, Action
from tocsin.schemas.errors import TargetError
from tocsin.schemas.records import NS_PER_SECOND

_LOG = logging.getLogger("tocsin.executor")
LOOK_SECONDS: Final = 10.0
"""Distance of two looks at the machines."""
_MOST_LOOKS: Final = 32
"""Most machines of one look; those that were not looked at for longest come first."""
_SOMEBODY: Final = "somebody"


@runtime_checkable
class CordonReader(Protocol):
    """A system that can say who keeps new work off a machine."""

    def cordon_of(self, host: str) -> CordonOwner | None:
        """Return who keeps new work off a machine, None for a machine that the system does not know.

        Args:
            host: the machine's name in verdicts.

        Raises:
            TargetError: the system is away, or its answer cannot be read.
        """
        ...


class CordonWatch:
    """Looks at the machines of all actions that take machines away, and tells what changed."""

    def __init__(self, cluster: str, reader: CordonReader) -> None:
        """Know no machine.

        Args:
            cluster: the cluster whose actions count.
            reader: asks the system.
        """
        self._cluster = cluster
        self._reader = reader
        self._actions: dict[str, Action] = {}
        self._looked_ns: dict[str, int] = {}
        self._told: dict[str, CordonOwner] = {}
        self._free: dict[str, frozenset[tuple[str, int]]] = {}
        """Machine -> id and revision of the actions that had taken it away when it was seen to take work."""
        self._given_back: set[str] = set()
        """Machines of which it was told that a person gave them back; until an action takes them away anew."""
        self._next_ns = 0

    def on_action(self, action: Action) -> None:
        """Take one change of an action."""
        if action.target.job.cluster != self._cluster or action.kind not in REMOVING_KINDS:
            return
        known = self._actions.get(action.action_id)
        if known is not None and (action.epoch, action.revision) < (known.epoch, known.revision):
            return
        if action.state in FINAL_STATES or action.state is ActionState.PROPOSED:
            self._actions.pop(action.action_id, None)
            self._forget(action.target.hosts)
            return
        self._actions[action.action_id] = action

    def look(self, now_ns: int) -> list[CordonSeen | HumanChange]:
        """Look at the machines if it is time; return what is to be told.

        Args:
            now_ns: the present time.
        """
        if now_ns < self._next_ns:
            return []
        self._next_ns = now_ns + int(LOOK_SECONDS * NS_PER_SECOND)
        hosts = sorted({host for one in self._actions.values() for host in one.target.hosts})
        hosts.sort(key=lambda host: self._looked_ns.get(host, 0))
        found: list[CordonSeen | HumanChange] = []
        for host in hosts[:_MOST_LOOKS]:
            self._looked_ns[host] = now_ns
            try:
                owner = self._reader.cordon_of(host)
            except TargetError as error:
                _LOG.info("who keeps work off %s cannot be read", host, extra={"reason": error.reason})
                continue
            if owner is not None:
                found += self._changes(host, owner, now_ns)
        return found

    def _changes(self, host: str, owner: CordonOwner, now_ns: int) -> Iterable[CordonSeen | HumanChange]:
        """Yield what is to be told of one machine. That it was given back is believed when it is seen twice."""
        taking = frozenset((one.action_id, one.revision) for one in self._of(host) if one.state is ActionState.DONE)
        is_still = all(one.state is ActionState.DONE or not one.holder for one in self._of(host))
        if owner is CordonOwner.NOBODY and taking and is_still:
            if self._free.get(host) == taking and host not in self._given_back:
                self._given_back.add(host)
                self._told[host] = owner
                yield HumanChange(self._cluster, host, HumanChangeKind.UNCORDONED, _SOMEBODY, now_ns)
            self._free[host] = taking
            return
        self._free.pop(host, None)
        self._given_back.discard(host)
        if self._told.get(host) is owner:
            return
        self._told[host] = owner
        yield CordonSeen(self._cluster, host, owner, now_ns)

    def _of(self, host: str) -> list[Action]:
        return [one for one in self._actions.values() if host in one.target.hosts]

    def _forget(self, hosts: Iterable[str]) -> None:
        """Forget machines that no action concerns any more."""
        for host in hosts:
            if not self._of(host):
                for book in (self._looked_ns, self._told, self._free):
                    book.pop(host, None)
                self._given_back.discard(host)
