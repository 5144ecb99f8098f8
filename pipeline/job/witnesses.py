"""Two witnesses for a hard action: who must have seen a fault before a machine may be taken away.

Whatever one agent sends is one host's word, true or not. So a machine is taken away only where others were harmed by
exactly its ranks; its own driver or kernel is a second witness, program text is none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from tocsin.schemas.verdicts import MAX_WITNESSES, ActionKind, Witness, WitnessKind

HARD: frozenset[ActionKind] = frozenset({ActionKind.DRAIN, ActionKind.EVICT, ActionKind.REPLAY})
"""Actions that take a machine away from whoever uses it."""
NEEDS_FOLLOWERS: frozenset[ActionKind] = frozenset({ActionKind.RESTART, ActionKind.ROLLBACK})
"""Actions that cost all hosts of the job their work: not on the word of one whom nobody followed."""
_OTHERS_NEEDED_COUNT = 2
_TWO_MACHINES = 2
FEW_MACHINES = 3
"""Of so few nobody can say that one is slower than machines usually are."""
_OWN = (
    WitnessKind.CHECK,
    WitnessKind.HARDWARE_EVENT,
    WitnessKind.CONNECTION_LOST,
    WitnessKind.PEERS_WAIT,
    WitnessKind.STEPS,
)
_OF_OTHERS = (WitnessKind.PEERS_WAIT, WitnessKind.CONNECTION_LOST, WitnessKind.STEPS)
_MOST_TELLING = (*_OF_OTHERS, WitnessKind.HARDWARE_EVENT, WitnessKind.CHECK)
"""Who says two things is one witness, by the first of them. That a part of another machine broke harms nobody here."""


def may_take_away(
    accused: Collection[str],
    witnesses: Iterable[Witness],
    machine_count: int | None,
    *,
    is_by_words: bool = False,
    is_slowness: bool = False,
) -> bool:
    """Whether these witnesses are enough to drain or evict the accused machines.

    Args:
        accused: names of the machines.
        witnesses: who saw it.
        machine_count: machines of the job; None: they have no job (idle).
        is_by_words: only a program's own text tells what broke: then only the machine's own event is believed.
        is_slowness: the machine is only slower than its peers: so it is where there are three machines, or fewer.

    Returns:
        True where one of these holds for each of them: a check under load failed on it; its own hardware event, and
        harm to another host; harm to two other hosts; its agent is silent, and harm to another host. In a job of two
        machines only the first two count, in a job of one nothing does; an idle machine needs one event or check.
    """
    own: dict[str, set[WitnessKind]] = {name: set() for name in accused}
    others: set[str] = set()
    for one in witnesses:
        if one.host in own:
            own[one.host].add(one.kind)
        elif one.kind in _OF_OTHERS:
            others.add(one.host)
    if not own:
        return False
    needs_event = is_by_words or (is_slowness and machine_count is not None and machine_count <= FEW_MACHINES)
    return all(_is_enough(kinds, len(others), machine_count, needs_event=needs_event) for kinds in own.values())


def _is_enough(own: Collection[WitnessKind], other_count: int, machine_count: int | None, *, needs_event: bool) -> bool:
    """As ``may_take_away``, of one machine."""
    has_event = WitnessKind.HARDWARE_EVENT in own
    if machine_count is None:
        return has_event or WitnessKind.CHECK in own
    if machine_count < _TWO_MACHINES:
        return False
    if WitnessKind.CHECK in own or (has_event and other_count > 0):
        return True
    if machine_count == _TWO_MACHINES or needs_event:
        return False
    is_dead = WitnessKind.CONNECTION_LOST in own
    return other_count >= _OTHERS_NEEDED_COUNT or (is_dead and other_count > 0)


def others_of(witnesses: Iterable[Witness], accused: Collection[str]) -> frozenset[str]:
    """The hosts that were harmed, beside those that are accused."""
    return frozenset(one.host for one in witnesses if one.host not in accused and one.kind in _OF_OTHERS)


def listed(own: Mapping[str, WitnessKind], others: Mapping[str, WitnessKind]) -> tuple[Witness, ...]:
    """Witnesses in the order of a verdict: the accused's own, then others, both by name; at most ``MAX_WITNESSES``.

    Of the accused's own two fewer: that two others saw it is never cut off.
    """
    found = [Witness(host, kind) for host, kind in sorted(own.items())][: MAX_WITNESSES - _OTHERS_NEEDED_COUNT]
    found += [Witness(host, kind) for host, kind in sorted(others.items()) if host not in own]
    return tuple(found[:MAX_WITNESSES])


def joined(known: Iterable[Witness], new: Iterable[Witness], accused: Collection[str]) -> tuple[Witness, ...]:
    """What was seen before and what is seen now: each host once, by the most telling that it ever saw."""
    own: dict[str, WitnessKind] = {}
    others: dict[str, WitnessKind] = {}
    for one in (*known, *new):
        kept, order = (own, _OWN) if one.host in accused else (others, _MOST_TELLING)
        before = kept.get(one.host)
        if before is None or order.index(one.kind) < order.index(before):
            kept[one.host] = one.kind
    return listed(own, others)
