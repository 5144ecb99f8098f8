"""Checks under load of machines that an action keeps out, so that those that are well come back (docs/actions.md).

A check is proposed for a machine of ours alone: not while planned work covers it, not while somebody else keeps work
off it, and not while a job uses it. How often follows one principle: each check of a machine within a week doubles the
wait before its next one. A fault that a minute of load does not show comes back with the machine and costs a job each
time, so a machine that was let back, or failed, again and again is asked less and less.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from tocsin.pipeline.actions.config import WEEK_SECONDS, ns
from tocsin.pipeline.actions.desk import Desk
from tocsin.pipeline.actions.guards.return_checks import RETURN_RULE, why_unchecked
from tocsin.pipeline.actions.intake import ProposalIntake
from tocsin.pipeline.actions.ladder import Proposal
from tocsin.pipeline.actions.reasons import ActionReason
from tocsin.pipeline.actions.tracked import TrackedAction
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.job_key import FLEET_JOB_ID, JobKey
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import (
    ActionKind,
    Component,
    ComponentKind,
    Evidence,
    FaultKind,
    Suspect,
    Verdict,
    VerdictState,
    verdict_id_of,
)

EXPIRES_SECONDS: Final = 600.0
"""How long a check may be begun; shorter than the time after which what is held up pages."""
_LOOK_NS: Final = 10 * NS_PER_SECOND
_OUT: Final = frozenset({ActionState.DONE, ActionState.FAILED})
_MOST_HOSTS: Final = 100_000


class ReturnChecks:
    """Proposes checks of machines that are out, and remembers when each was checked last."""

    def __init__(self, desk: Desk, intake: ProposalIntake) -> None:
        """Look at the actions of a desk, and open checks through its intake."""
        self._desk = desk
        self._intake = intake
        self._looked_ns = -_LOOK_NS
        self._checked: dict[tuple[str, str], list[int]] = {}
        """Machine -> when a check of it was proposed, within a week, oldest first."""

    def on_time(self, now_ns: int) -> None:
        """Open the checks that are due, looking at most every ten seconds."""
        wait_seconds = self._desk.config.return_check_seconds
        if not wait_seconds or abs(now_ns - self._looked_ns) < _LOOK_NS:
            return
        self._looked_ns = now_ns
        for tracked in self._desk.book.keeping_out():
            hosts = self._due(tracked, now_ns)
            if hosts and self._intake.open_if_free(self._proposal(tracked, hosts, now_ns), now_ns):
                self._note(tracked.action.target.job.cluster, hosts, now_ns)

    def to_state(self) -> list[Any]:
        """Return the state as JSON-able values."""
        return [[*key, times] for key, times in self._checked.items()]

    def load_state(self, state: Sequence[Any]) -> None:
        """Replace the state by what ``to_state`` returned."""
        self._checked = {(cluster, host): list(times) for cluster, host, times in state}

    def _due(self, tracked: TrackedAction, now_ns: int) -> tuple[str, ...]:
        """Return the machines of an action that are to be checked now."""
        if tracked.state not in _OUT or not tracked.done_ns:
            return ()
        cluster = tracked.action.target.job.cluster
        ripe = [host for host in tracked.hosts if host not in tracked.cleared and self._is_ripe(tracked, host, now_ns)]
        book, facts = self._desk.book, self._desk.facts
        free = [host for host in ripe if not why_unchecked(book, facts, cluster, host)]
        return tuple(host for host in free if not self._is_checked_now(cluster, host))

    def _is_ripe(self, tracked: TrackedAction, host: str, now_ns: int) -> bool:
        """Return whether a machine has waited for long enough since it was taken away, and since its last check."""
        key = tracked.action.target.job.cluster, host
        week_ns = now_ns - ns(WEEK_SECONDS)
        times = [at_ns for at_ns in self._checked.get(key, ()) if at_ns > week_ns]
        wait_ns = ns(self._desk.config.return_check_seconds) << len(times)
        return now_ns - max([tracked.done_ns, *times[-1:]]) >= wait_ns

    def _is_checked_now(self, cluster: str, host: str) -> bool:
        """Return whether a check of a machine is open or runs, whoever asked for it."""
        actions = self._desk.book.of_host(cluster, host)
        return any(one.kind is ActionKind.PROBE and (one.is_unbegun or one.is_running) for one in actions)

    def _proposal(self, tracked: TrackedAction, hosts: tuple[str, ...], now_ns: int) -> Proposal:
        """Return the check of machines that an action keeps out."""
        component = Component(ComponentKind.HOST, hosts[0]) if len(hosts) == 1 else None
        note = f"action {tracked.action.action_id} keeps it out"
        verdict = finding_of(tracked.action.target.job.cluster, hosts, note, now_ns)
        return Proposal(verdict, ActionKind.PROBE, component, hosts, RETURN_RULE, RETURN_RULE, note=note)

    def _note(self, cluster: str, hosts: Iterable[str], now_ns: int) -> None:
        """Remember that machines are checked now."""
        for host in hosts:
            times = self._checked.pop((cluster, host), [])
            self._checked[cluster, host] = [*(one for one in times if one > now_ns - ns(WEEK_SECONDS)), now_ns]
        while len(self._checked) > _MOST_HOSTS:
            del self._checked[next(iter(self._checked))]


def finding_of(cluster: str, hosts: Sequence[str], text: str, now_ns: int) -> Verdict:
    """Return the controller's own verdict on which a check of machines rests; it is no incident.

    Args:
        cluster: cluster of the machines.
        hosts: the machines.
        text: one sentence for people.
        now_ns: the present time.
    """
    job = JobKey(cluster, FLEET_JOB_ID, 0)
    suspects = tuple(Suspect(Component(ComponentKind.HOST, host), ()) for host in hosts)
    reason = ActionReason.RETURN_CHECK.value
    return Verdict(
        verdict_id=verdict_id_of(job, suspects, FaultKind.DEGRADED, now_ns),
        job=job,
        fault=FaultKind.DEGRADED,
        cause="unknown",
        suspects=suspects,
        onset_ns=now_ns,
        detected_ns=now_ns,
        confidence=0.5,
        action=ActionKind.PROBE,
        reason=reason,
        evidence=(Evidence("controller", reason, 1.0, now_ns, now_ns, text),),
        state=VerdictState.CONFIRMED,
        update=0,
        expires_ns=now_ns + ns(EXPIRES_SECONDS),
    )
