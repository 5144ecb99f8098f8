"""Which host announced which communication groups: one host makes the engine remember so many, and no more.

A group counts for the first two hosts that announce it, and stays while it counts for one of them: no host can make a
group go that two others know. Its members are those that more hosts name; one that says otherwise alone is not heard.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tocsin.schemas.records import CommGroup, GroupKind, Groups

_OWNER_COUNT = 2
_VOTER_COUNT = 64
"""Of so many hosts it is known who a group's members are by each, where they do not all say the same."""


@dataclass(frozen=True, slots=True)
class GroupBounds:
    """Bounds of what one host of a job announces; the group that it announced longest ago goes first.

    Attributes:
        group_count: groups of a host; an agent speaks of 256 ranks at most, and each is in some tens of groups that
            its neighbours announce, too.
        member_count: members of these groups together.
    """

    group_count: int = 4_096
    member_count: int = 2_000_000


class GroupBook:
    """The groups of one job."""

    def __init__(self, bounds: GroupBounds | None) -> None:
        """Know none.

        Args:
            bounds: the bounds; None: what is announced comes from a recording, one host speaks for all.
        """
        self._bounds = bounds
        self.groups: dict[str, CommGroup] = {}
        self._owners: dict[str, tuple[str, ...]] = {}
        """Group -> the hosts for which it counts."""
        self._owned: dict[str, OrderedDict[str, None]] = {}
        """Host -> the groups that count for it, the one that it announced longest ago first."""
        self._members: Counter[str] = Counter()
        """Host -> the members of its groups."""
        self._gone: Counter[str] = Counter()
        self._votes: dict[str, dict[str, CommGroup]] = {}
        """Group of which two hosts said different things -> host -> what it said last."""

    def take(self, record: Groups) -> None:
        """Remember what a host announces; of its own the oldest go where it announces too much."""
        if self._bounds is None:
            self.groups.update({group.comm_id: group for group in record.groups})
            return
        for group in record.groups:
            if not self._is_heard(record.host, group):
                continue
            self._own(record.host, group)
            self.groups[group.comm_id] = group
            self._bound(record.host, self._bounds)

    def _is_heard(self, host: str, group: CommGroup) -> bool:
        """Whether a group is now as this host announces it: it always was, or more hosts say so than what is known."""
        known = self.groups.get(group.comm_id)
        votes = self._votes.get(group.comm_id)
        if known is None or (known == group and votes is None):
            return True  # nearly always so
        if votes is None:
            votes = dict.fromkeys(self._owners.get(group.comm_id, ()), known)
            self._votes[group.comm_id] = votes
        if host in votes or len(votes) < _VOTER_COUNT:
            votes[host] = group
        told = list(votes.values())
        if told.count(group) == len(told):
            del self._votes[group.comm_id]
        return known == group or told.count(group) > told.count(known)

    def take_gone(self) -> Sequence[tuple[str, int]]:
        """Host -> how many of its groups went because it announced too much, since the last call."""
        gone, self._gone = sorted(self._gone.items()), Counter()
        return gone

    def _own(self, host: str, group: CommGroup) -> None:
        name, owners, known = group.comm_id, self._owners.get(group.comm_id, ()), self.groups.get(group.comm_id)
        if known is not None and len(known.ranks) != len(group.ranks):
            for owner in owners:  # who says how large it is now pays for it
                self._disown(owner, known)
            owners = ()
        if host in owners:
            self._owned[host].move_to_end(name)
        elif len(owners) < _OWNER_COUNT:
            self._owners[name] = (*owners, host)
            self._owned.setdefault(host, OrderedDict())[name] = None
            self._members[host] += len(group.ranks)

    def _disown(self, host: str, group: CommGroup) -> None:
        owned = self._owned[host]
        del owned[group.comm_id]
        self._members[host] -= len(group.ranks)
        if not owned:
            del self._owned[host], self._members[host]
        rest = tuple(owner for owner in self._owners[group.comm_id] if owner != host)
        if rest:
            self._owners[group.comm_id] = rest
        else:
            del self._owners[group.comm_id]

    def _bound(self, host: str, bounds: GroupBounds) -> None:
        owned = self._owned.get(host, OrderedDict())
        while len(owned) > bounds.group_count or self._members[host] > bounds.member_count:
            name = next(iter(owned))
            self._disown(host, self.groups[name])
            self._gone[host] += 1
            if name not in self._owners:
                del self.groups[name]
                self._votes.pop(name, None)

    def to_state(self) -> dict[str, Any]:
        """State: the groups by name, and for each host the numbers of those that count for it, oldest first."""
        number = {name: at for at, name in enumerate(sorted(self.groups))}
        return {
            "groups": [[g.comm_id, g.kind.value, list(g.ranks)] for _, g in sorted(self.groups.items())],
            "group_votes": [[name, _ballot_state(votes)] for name, votes in sorted(self._votes.items())],
            "group_owners": [[host, [number[name] for name in owned]] for host, owned in sorted(self._owned.items())],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take back what ``to_state`` gave."""
        self.groups = {
            comm_id: CommGroup(comm_id, GroupKind(kind), tuple(ranks)) for comm_id, kind, ranks in state["groups"]
        }
        self._votes = {name: _ballot_from(name, ballot) for name, ballot in state["group_votes"]}
        names = list(self.groups)
        self._owners, self._owned, self._members, self._gone = {}, {}, Counter(), Counter()
        for host, numbers in state["group_owners"]:
            self._owned[host] = OrderedDict.fromkeys(names[number] for number in numbers)
            for name in self._owned[host]:
                self._owners[name] = (*self._owners.get(name, ()), host)
                self._members[host] += len(self.groups[name].ranks)


def _ballot_state(votes: Mapping[str, CommGroup]) -> list[Any]:
    """What hosts say of one group: each version once, and which host says which."""
    versions = sorted(set(votes.values()), key=lambda group: (group.kind.value, group.ranks))
    number = {group: at for at, group in enumerate(versions)}
    told = [[host, number[group]] for host, group in sorted(votes.items())]
    return [[[group.kind.value, list(group.ranks)] for group in versions], told]


def _ballot_from(name: str, ballot: Sequence[Any]) -> dict[str, CommGroup]:
    """Take back what ``_ballot_state`` gave."""
    versions = [CommGroup(name, GroupKind(kind), tuple(ranks)) for kind, ranks in ballot[0]]
    return {host: versions[number] for host, number in ballot[1]}
