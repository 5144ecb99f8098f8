"""Rules for how many independent witnesses must have seen a fault before a hard action is proposed.

One agent's records are one host's word, true or not. So a machine is taken away only where other hosts were harmed by
exactly its ranks. A hardware event of its own driver or kernel is a second witness; program output is not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from tocsin.schemas.verdicts import MAX_WITNESSES, ActionKind, Witness, WitnessKind

NEEDS_FOLLOWERS: frozenset[ActionKind] = frozenset({ActionKind.RESTART, ActionKind.ROLLBACK})
"""Actions that cost all hosts of the job their work; not proposed while the other hosts still make progress."""
_OTHERS_NEEDED_COUNT = 2
_TWO_MACHINES = 2
FEW_MACHINES = 3
"""Largest job size, in machines, at which slowness against peers alone never justifies a hard action."""
_OWN_KINDS = (
    WitnessKind.CHECK,
    WitnessKind.HARDWARE_EVENT,
    WitnessKind.CONNECTION_LOST,
    WitnessKind.PEERS_WAIT,
    WitnessKind.STEPS,
)
_HARM_KINDS = (WitnessKind.PEERS_WAIT, WitnessKind.CONNECTION_LOST, WitnessKind.STEPS)
_STRENGTH_ORDER = (*_HARM_KINDS, WitnessKind.HARDWARE_EVENT, WitnessKind.CHECK)
"""Order of preference when one host saw several things; a hardware event of another machine is not harm to this one."""


def may_take_away(
    accused: Collection[str],
    witnesses: Iterable[Witness],
    machine_count: int | None,
    *,
    is_by_words: bool = False,
    is_slowness: bool = False,
) -> bool:
    """Return whether the witnesses suffice to drain or evict the accused machines.

    Args:
        accused: names of the machines.
        witnesses: the hosts that saw the fault, and what each saw.
        machine_count: number of machines of the job; None: the machines run no job (idle).
        is_by_words: only program output names the fault; then a machine's own hardware event (or failed check) is
            needed.
        is_slowness: the machine is only slower than its peers; with three or fewer machines its own event is needed
            too.

    Returns:
        True if for each machine one of these holds: a check under load failed on it; a hardware event on it and harm to
            another host; harm to two other hosts; a lost connection to it and harm to another host. With two machines
            only the first two count, with one machine none. An idle machine needs one event or failed check.
    """
    own: dict[str, set[WitnessKind]] = {name: set() for name in accused}
    others: set[str] = set()
    for one in witnesses:
        if one.host in own:
            own[one.host].add(one.kind)
        elif one.kind in _HARM_KINDS:
            others.add(one.host)
    if not own:
        return False
    needs_event = is_by_words or (is_slowness and machine_count is not None and machine_count <= FEW_MACHINES)
    return all(_is_enough(kinds, len(others), machine_count, needs_event=needs_event) for kinds in own.values())


def _is_enough(own: Collection[WitnessKind], other_count: int, machine_count: int | None, *, needs_event: bool) -> bool:
    """Return whether the witnesses suffice for one machine, by the rules of ``may_take_away``.

    Args:
        own: what was seen on the machine itself.
        other_count: number of other hosts that were harmed.
        machine_count: number of machines of the job, None = no job.
        needs_event: whether harm alone does not suffice.
    """
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


def harmed_hosts(witnesses: Iterable[Witness], accused: Collection[str]) -> frozenset[str]:
    """Return the harmed hosts among the witnesses that are not accused."""
    return frozenset(one.host for one in witnesses if one.host not in accused and one.kind in _HARM_KINDS)


def ordered_witnesses(own: Mapping[str, WitnessKind], others: Mapping[str, WitnessKind]) -> tuple[Witness, ...]:
    """Return witnesses in a verdict's order: the accused hosts, then other hosts, both by name.

    At most ``MAX_WITNESSES``. Two places are kept free for other hosts, so that their harm is never cut off.
    """
    found = [Witness(host, kind) for host, kind in sorted(own.items())][: MAX_WITNESSES - _OTHERS_NEEDED_COUNT]
    found += [Witness(host, kind) for host, kind in sorted(others.items()) if host not in own]
    return tuple(found[:MAX_WITNESSES])


def merged_witnesses(known: Iterable[Witness], new: Iterable[Witness], accused: Collection[str]) -> tuple[Witness, ...]:
    """Merge earlier and new witnesses: each host once, with the strongest thing that it ever saw."""
    own: dict[str, WitnessKind] = {}
    others: dict[str, WitnessKind] = {}
    for one in (*known, *new):
        kept, order = (own, _OWN_KINDS) if one.host in accused else (others, _STRENGTH_ORDER)
        before = kept.get(one.host)
        if before is None or order.index(one.kind) < order.index(before):
            kept[one.host] = one.kind
    return ordered_witnesses(own, others)
