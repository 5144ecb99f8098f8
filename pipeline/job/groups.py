"""Track which host announced which communication groups, with a bound per host.

A group is counted for the first two hosts that announce it, and kept while it is counted for one of them. So no host
can remove a group that two others announce. Where hosts disagree about a group's members, the majority decides.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tocsin.schemas.records import CommGroup, GroupKind, Groups

_OWNER_COUNT = 2
_VOTER_COUNT = 64
"""Maximum number of hosts whose version of a disputed group is remembered."""


@dataclass(frozen=True, slots=True)
class GroupBounds:
    """Bounds on the groups that one host of a job announces; beyond them its least recently announced group is dropped.

    Attributes:
        group_count: maximum number of groups of a host. An agent covers at most 256 ranks; each is in some tens of
            groups, which neighbouring hosts announce too.
        member_count: maximum number of members of these groups together.
    """

    group_count: int = 4_096
    member_count: int = 2_000_000


class GroupBook:
    """Communication groups of one job, by name."""

    def __init__(self, bounds: GroupBounds | None) -> None:
        """Start without groups.

        Args:
            bounds: bounds per host; None: the groups come from a recording and are all accepted.
        """
        self._bounds = bounds
        self.groups: dict[str, CommGroup] = {}
        self._owners: dict[str, tuple[str, ...]] = {}
        """Group name -> the hosts for which it is counted, at most two."""
        self._owned: dict[str, OrderedDict[str, None]] = {}
        """Host -> names of the groups counted for it, least recently announced first."""
        self._members: Counter[str] = Counter()
        """Host -> number of members of its groups together."""
        self._dropped: Counter[str] = Counter()
        """Host -> number of its groups dropped because of its bounds, since ``take_gone`` was last called."""
        self._votes: dict[str, dict[str, CommGroup]] = {}
        """Name of a disputed group -> host -> the version that this host announced last."""

    def take(self, record: Groups) -> None:
        """Store the groups that a host announces, and drop its least recently announced groups beyond the bounds."""
        if self._bounds is None:
            self.groups.update({group.comm_id: group for group in record.groups})
            return
        for group in record.groups:
            if not self._is_accepted(record.host, group):
                continue
            self._own(record.host, group)
            self.groups[group.comm_id] = group
            self._bound(record.host, self._bounds)

    def _is_accepted(self, host: str, group: CommGroup) -> bool:
        """Return whether a host's version of a group is accepted.

        Nobody disagrees, or more hosts announce it than the known one.
        """
        known = self.groups.get(group.comm_id)
        votes = self._votes.get(group.comm_id)
        if known is None or (known == group and votes is None):
            return True  # nearly always so
        if votes is None:
            votes = dict.fromkeys(self._owners.get(group.comm_id, ()), known)
            self._votes[group.comm_id] = votes
        if host in votes or len(votes) < _VOTER_COUNT:
            votes[host] = group
        reported = list(votes.values())
        if reported.count(group) == len(reported):
            del self._votes[group.comm_id]
        return known == group or reported.count(group) > reported.count(known)

    def take_gone(self) -> Sequence[tuple[str, int]]:
        """Return (host, number of its groups dropped because of its bounds) since the last call."""
        dropped, self._dropped = sorted(self._dropped.items()), Counter()
        return dropped

    def _own(self, host: str, group: CommGroup) -> None:
        """Count a group for a host, unless two hosts count it already.

        A group of new size is first removed from all hosts.
        """
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
        """Stop counting a group for a host."""
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
        """Drop a host's least recently announced groups until it is within its bounds."""
        owned = self._owned.get(host, OrderedDict())
        while len(owned) > bounds.group_count or self._members[host] > bounds.member_count:
            name = next(iter(owned))
            self._disown(host, self.groups[name])
            self._dropped[host] += 1
            if name not in self._owners:
                del self.groups[name]
                self._votes.pop(name, None)

    def to_state(self) -> dict[str, Any]:
        """Return the state.

        Groups by name, disputed versions, and for each host the indexes of its groups, oldest first.
        """
        number = {name: at for at, name in enumerate(sorted(self.groups))}
        return {
            "groups": [[g.comm_id, g.kind.value, list(g.ranks)] for _, g in sorted(self.groups.items())],
            "group_votes": [[name, _ballot_state(votes)] for name, votes in sorted(self._votes.items())],
            "group_owners": [[host, [number[name] for name in owned]] for host, owned in sorted(self._owned.items())],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the state by what ``to_state`` returned."""
        self.groups = {
            comm_id: CommGroup(comm_id, GroupKind(kind), tuple(ranks)) for comm_id, kind, ranks in state["groups"]
        }
        self._votes = {name: _ballot_from(name, ballot) for name, ballot in state["group_votes"]}
        names = list(self.groups)
        self._owners, self._owned, self._members, self._dropped = {}, {}, Counter(), Counter()
        for host, numbers in state["group_owners"]:
            self._owned[host] = OrderedDict.fromkeys(names[number] for number in numbers)
            for name in self._owned[host]:
                self._owners[name] = (*self._owners.get(name, ()), host)
                self._members[host] += len(self.groups[name].ranks)


def _ballot_state(votes: Mapping[str, CommGroup]) -> list[Any]:
    """Return the versions of one disputed group, each once, and for each host the index of its version."""
    versions = sorted(set(votes.values()), key=lambda group: (group.kind.value, group.ranks))
    number = {group: at for at, group in enumerate(versions)}
    reported = [[host, number[group]] for host, group in sorted(votes.items())]
    return [[[group.kind.value, list(group.ranks)] for group in versions], reported]


def _ballot_from(name: str, ballot: Sequence[Any]) -> dict[str, CommGroup]:
    """Rebuild the host -> version dict that ``_ballot_state`` encoded."""
    versions = [CommGroup(name, GroupKind(kind), tuple(ranks)) for kind, ranks in ballot[0]]
    return {host: versions[number] for host, number in ballot[1]}
