"""Repeated codes of hosts, held back for a time in which a verdict may tell of the same failure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tocsin.pipeline.actions.policy.proposal import RepeatedCode
from tocsin.pipeline.actions.policy.reasons import PolicyReason
from tocsin.schemas.records import NS_PER_SECOND, JobKey
from tocsin.schemas.verdicts import ActionKind, Evidence, FaultKind, Suspect, Verdict, VerdictState, verdict_id_of

WAIT_SECONDS: Final = 120.0
"""How long a verdict about the failure is waited for; hangs are found within it."""
_WAIT_NS: Final = int(WAIT_SECONDS * NS_PER_SECOND)
_AGAIN_NS: Final = 3600 * NS_PER_SECOND
"""Shortest distance of two findings about one host."""
_EXPIRES_NS: Final = 600 * NS_PER_SECOND
_MOST_HOSTS: Final = 10_000


class UnexplainedCodes:
    """The repeated codes that no verdict has told of yet; the oldest are forgotten first."""

    def __init__(self) -> None:
        """Start without codes."""
        self._waiting: dict[str, RepeatedCode] = {}
        self._found_ns: dict[str, int] = {}

    def add(self, code: RepeatedCode, now_ns: int) -> None:
        """Hold a repeated code back, unless one of its host and rule waits, or was found within the hour."""
        key = f"{code.rule}/{code.job.cluster}/{code.host}"
        found_ns = self._found_ns.get(key)
        if key in self._waiting or (found_ns is not None and now_ns - found_ns < _AGAIN_NS):
            return
        self._waiting[key] = code
        if len(self._waiting) > _MOST_HOSTS:
            del self._waiting[next(iter(self._waiting))]

    def due_ns(self) -> int | None:
        """Return when the first wait is over, None if no code waits."""
        return min((one.at_ns + _WAIT_NS for one in self._waiting.values()), default=None)

    def due(self, now_ns: int) -> list[RepeatedCode]:
        """Return the codes whose wait is over; they are not returned again."""
        ripe = [key for key, one in self._waiting.items() if now_ns - one.at_ns >= _WAIT_NS]
        found = [self._waiting.pop(key) for key in ripe]
        if ripe:
            old = {key: at_ns for key, at_ns in self._found_ns.items() if now_ns - at_ns < _AGAIN_NS}
            self._found_ns = {**old, **dict.fromkeys(ripe, now_ns)}
        return found

    def to_state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        waiting = [[*_key_of(one.job), one.host, one.kind.value, one.rule, one.at_ns] for one in self._waiting.values()]
        return {"waiting": waiting, "found_ns": self._found_ns}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the state by what ``to_state`` returned; an empty one means that nothing waits."""
        self._waiting = {}
        for cluster, job_id, attempt, host, kind, rule, at_ns in state.get("waiting", ()):
            code = RepeatedCode(JobKey(cluster, job_id, attempt), host, ActionKind(kind), rule, at_ns)
            self._waiting[f"{rule}/{cluster}/{host}"] = code
        self._found_ns = dict(state.get("found_ns", {}))


def finding_of(code: RepeatedCode, now_ns: int) -> Verdict:
    """Return a repeated code as a verdict of the policy's own, on which an action can rest; it is no incident.

    Args:
        code: the code.
        now_ns: the present time; the action may be begun for ten minutes.
    """
    reason = PolicyReason.CODE_REPEATED.value
    suspects = (Suspect(code.target, ()),)
    text = f"{code.host} reported codes of user programs again and again, and no verdict tells of it"
    return Verdict(
        verdict_id=verdict_id_of(code.job, suspects, FaultKind.DEGRADED, code.at_ns),
        job=code.job,
        fault=FaultKind.DEGRADED,
        cause="unknown",
        suspects=suspects,
        onset_ns=code.at_ns,
        detected_ns=now_ns,
        confidence=0.5,
        action=code.kind,
        reason=reason,
        evidence=(Evidence("policy", reason, 1.0, code.at_ns, code.at_ns, text),),
        state=VerdictState.CONFIRMED,
        update=0,
        expires_ns=now_ns + _EXPIRES_NS,
    )


def _key_of(job: JobKey) -> tuple[str, str, int]:
    return job.cluster, job.job_id, job.attempt
