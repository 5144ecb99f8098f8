"""Planned work on hosts, leaf switches and jobs, and which verdicts it covers.

An incident under planned work is seen and stored, never paged, and nothing acts on it. A verdict is covered if the work
concerns its job, its ``common`` leaf, or the hosts of all its suspects. One suspect outside makes it an incident as any
other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.schemas.operator_notes import Maintenance, note_from, note_object
from tocsin.schemas.reasons import NamedReason
from tocsin.schemas.records import NS_PER_SECOND, JobKey
from tocsin.schemas.verdicts import Component, ComponentKind, Verdict

KEPT_AFTER_END_NS: Final = 3600 * NS_PER_SECOND
"""Time for which ended work is remembered, because an engine that starts again judges up to ten minutes once more."""
_PART: Final = "maintenance"


class MaintenanceReason(NamedReason):
    """Reason for which an incident is neither paged nor acted on, or planned work is refused."""

    UNDER_MAINTENANCE = "under_maintenance", "Work on its machines or its job is planned for now."
    TOO_MANY = "too_many", "More work is planned than is remembered: end some of it."
    NOT_FOUND = "not_found", "No work that is planned or goes on has this id."
    AMBIGUOUS = "ambiguous", "The beginning of an id, or a name, means several things."
    UNKNOWN_TARGET = "unknown_target", "No host, leaf or job of this name was ever heard of: name its kind."
    IN_THE_PAST = "in_the_past", "Work is planned from now on: what was told before is not taken back."
    TOO_LONG = "too_long", "Planned work lasts at most 30 days: plan it again when it lasts longer."
    TOO_FAR = "too_far", "Planned work begins within 90 days."
    NOT_KEPT = "not_kept", "The disk refuses it: nothing has changed."


@dataclass(frozen=True, slots=True)
class MaintenanceConfig:
    """Bounds of planned work.

    Attributes:
        kept_count: how many works are remembered at most.
        longest_seconds: longest time of one work.
        ahead_seconds: how far ahead a work may begin at most.
    """

    kept_count: int = 1000
    longest_seconds: int = 30 * 86_400
    ahead_seconds: int = 90 * 86_400


@dataclass(frozen=True, slots=True)
class Scope:
    """Job and components that a verdict or its actions concern.

    Attributes:
        job: the job.
        suspects: the accused components.
        common: what several suspects share, None for nothing.
    """

    job: JobKey
    suspects: tuple[Component, ...]
    common: Component | None


def scope_of(verdict: Verdict) -> Scope:
    """Return what a verdict concerns."""
    return Scope(verdict.job, tuple(suspect.component for suspect in verdict.suspects), verdict.common)


LeafOf = Callable[[JobKey, str], str]
"""Function (job, host) -> the host's leaf switch, "" if it is not known."""


class MaintenanceBook:
    """The planned work of one engine."""

    def __init__(self, leaf_of: LeafOf, config: MaintenanceConfig | None = None) -> None:
        """Start without planned work.

        Args:
            leaf_of: returns the leaf switch of a host.
            config: bounds, None: the default ones.
        """
        self._leaf_of = leaf_of
        self.config = config or MaintenanceConfig()
        self._works: dict[str, Maintenance] = {}
        self._by_target: dict[tuple[str, Component], tuple[Maintenance, ...]] = {}

    def take(self, work: Maintenance) -> bool:
        """Take one work, or a later word on a known one; of two words on one the later counts.

        Returns:
            Whether it is remembered; False: too much work is planned that has not ended.
        """
        known = self._works.get(work.maintenance_id)
        if known is not None and known.ts_ns > work.ts_ns:
            return True
        self.forget_before(work.ts_ns - KEPT_AFTER_END_NS)
        if known is None and len(self._works) >= self.config.kept_count:
            return False
        self.replace([*self._works.values(), work])
        return True

    def forget_before(self, at_ns: int) -> None:
        """Forget the work that ended before a time."""
        kept = [work for work in self._works.values() if work.end_ns >= at_ns]
        if len(kept) < len(self._works):
            self.replace(kept)

    @property
    def has_works(self) -> bool:
        """Whether any work is known, whenever it is."""
        return bool(self._works)

    def works(self) -> tuple[Maintenance, ...]:
        """Return the remembered work, by begin."""
        return tuple(sorted(self._works.values(), key=lambda one: (one.begin_ns, one.maintenance_id)))

    def active(self, now_ns: int) -> frozenset[str]:
        """Return the ids of the work that goes on."""
        return frozenset(name for name, work in self._works.items() if work.is_on(now_ns))

    def covering(self, verdict: Verdict, now_ns: int) -> Maintenance | None:
        """Return the work that covers a verdict at this time, None: none does.

        A verdict is covered by work on its job, on its ``common`` leaf, or on all its suspects: on each host itself or
        its leaf. If several works cover it together, the one that ends first is returned.
        """
        return self.covering_scope(scope_of(verdict), now_ns)

    def covering_scope(self, scope: Scope, now_ns: int) -> Maintenance | None:
        """Return the work that covers what a verdict concerns, like ``covering``."""
        if not self._by_target:
            return None
        whole = [Component(ComponentKind.JOB, scope.job.job_id)]
        if scope.common is not None:
            whole.append(scope.common)
        found = self._on(scope.job.cluster, whole, now_ns)
        if found is not None or not scope.suspects:
            return found
        covering = [self._on(scope.job.cluster, self._places(scope.job, one), now_ns) for one in scope.suspects]
        works = [one for one in covering if one is not None]
        return min(works, key=lambda one: one.end_ns) if len(works) == len(covering) else None

    def silence(self, verdict: Verdict, now_ns: int) -> str:
        """Return the named reason for which nobody is told of a verdict at this time, "" = none."""
        return "" if self.covering(verdict, now_ns) is None else MaintenanceReason.UNDER_MAINTENANCE.value

    def hold(self, scope: Scope, now_ns: int) -> str:
        """Return the named reason for which the actions of a verdict wait at this time, "" = none."""
        return "" if self.covering_scope(scope, now_ns) is None else MaintenanceReason.UNDER_MAINTENANCE.value

    def ended(self, work: Maintenance, actor: str, now_ns: int) -> Maintenance:
        """Return the word that ends a work now; one that has not begun never does."""
        return replace(work, begin_ns=min(work.begin_ns, now_ns), end_ns=now_ns, actor=actor, ts_ns=now_ns)

    def snapshot(self) -> dict[str, bytes]:
        """Return the state as named parts."""
        return {_PART: pack_state([note_object(one) for one in self.works()])}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace the state by parts that ``snapshot`` returned.

        Raises:
            SnapshotError: the part is missing, damaged or of another version.
        """
        self.replace(one for one in map(note_from, unpack_state(parts, _PART)) if isinstance(one, Maintenance))

    def replace(self, works: Iterable[Maintenance]) -> None:
        """Replace the remembered work; of two with one id the last counts.

        The new state replaces the old one at once, so that other threads may ask meanwhile.
        """
        self._works = {one.maintenance_id: one for one in works}
        by_target: dict[tuple[str, Component], tuple[Maintenance, ...]] = {}
        for work in self.works():
            key = work.cluster, work.target
            by_target[key] = (*by_target.get(key, ()), work)
        self._by_target = by_target

    def _places(self, job: JobKey, suspect: Component) -> list[Component]:
        """Return the components whose work covers a suspect: itself, and the leaf switch of a host."""
        if suspect.kind is not ComponentKind.HOST:
            return [suspect]
        leaf = self._leaf_of(job, suspect.name)
        return [suspect, Component(ComponentKind.LEAF, leaf)] if leaf else [suspect]

    def _on(self, cluster: str, targets: Sequence[Component], now_ns: int) -> Maintenance | None:
        """Return the work on one of these targets that goes on and ends last, None: none goes on."""
        found = [
            work for target in targets for work in self._by_target.get((cluster, target), ()) if work.is_on(now_ns)
        ]
        return max(found, key=lambda one: (one.end_ns, one.maintenance_id), default=None)
