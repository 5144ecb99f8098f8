"""The life of verdicts: one incident for one fault, from open to resolved.

``diagnose`` says each second what explanations hold. ``decide`` turns them into
verdicts with ids fixed at opening, asks for patience before a hard action is
proposed, and closes what is no longer true. Nothing is executed here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.pipeline.incidents.flapping import FlappingConfig, FlappingTracker
from tocsin.pipeline.incidents.incident import (
    SLOWER,
    STANDSTILL,
    Incident,
    action_of,
    components,
    explains_better,
    is_by_silence,
    is_hard,
    is_slow_still,
    is_spell,
    is_weaker_repeat,
    lacks_impact,
    names_fewer_machines,
    repeated_action,
    same_fault,
    same_suspects,
    throttles,
    with_known_host,
)
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, JobKey
from tocsin.schemas.verdicts import ActionKind, Component, FaultKind, Verdict, VerdictState, verdict_id_of

_LIVE = (VerdictState.OPEN, VerdictState.CONFIRMED)
_KEPT_CLOSED_COUNT = 256
_TOLD_BY_ONE = (Reason.HARDWARE_EVENT.value, Reason.SILENT_AND_PEERS_STALLED.value)
_SHOWN_EVIDENCE_COUNT = 7


@dataclass(frozen=True, slots=True)
class DecideConfig:
    """Settings.

    Attributes:
        confirm_ns: how long an explanation must hold before its full action is proposed. A daemon
            that eats CPU for 10 s slows a rank for 10 s: fail_slow waits 15 s.
        hard_ns: how long it must hold before a machine is drained or evicted for it, where that takes
            longer: an excess alone (no event, no counter) may be the data of a few minutes.
        settle_ns: how long another cause must be seen before it replaces the one named.
        gone_ns: how long it must be gone before the verdict is closed.
        relapses: who is slow again and again.
        fresh_ns: evidence older than this renews nothing: the verdict expires.
        action_ttl_ns: a proposed action must not be executed after this.
    """

    confirm_ns: Mapping[FaultKind, int] = field(
        default_factory=lambda: {
            FaultKind.FAIL_STOP: 2 * NS_PER_SECOND,
            FaultKind.HANG: 5 * NS_PER_SECOND,
            FaultKind.FAIL_SLOW: 15 * NS_PER_SECOND,
            FaultKind.SILENT_CORRUPTION: 0,
            FaultKind.DEGRADED: 60 * NS_PER_SECOND,
        }
    )
    hard_ns: Mapping[FaultKind, int] = field(default_factory=lambda: {FaultKind.FAIL_SLOW: 45 * NS_PER_SECOND})
    settle_ns: int = 20 * NS_PER_SECOND
    gone_ns: int = 5 * NS_PER_SECOND
    relapses: FlappingConfig = field(default_factory=FlappingConfig)
    fresh_ns: int = 30 * NS_PER_SECOND
    action_ttl_ns: int = 600 * NS_PER_SECOND


class Decide:
    """Verdict life of one job."""

    def __init__(self, config: DecideConfig, job: JobKey) -> None:
        """Start without verdicts."""
        self._config = config
        self._job = job
        self._incidents: list[Incident] = []
        self._closed: dict[str, list[int]] = {}
        """id -> [last update, newest evidence, accused somebody, was confirmed]: an id never starts anew."""
        self._relapses = FlappingTracker(config.relapses)

    @property
    def live(self) -> tuple[Verdict, ...]:
        """Open and confirmed verdicts."""
        return tuple(incident.verdict for incident in self._incidents)

    def on_findings(self, now_ns: int, findings: Sequence[Finding]) -> list[Verdict]:
        """Take what holds at ``now_ns``; return the verdict lines that this changes."""
        lines: list[Verdict] = []
        findings = [with_known_host(finding, self.live) for finding in findings]
        named = {
            suspect.component
            for finding in findings
            if finding.fault in STANDSTILL and not finding.only_holds
            for suspect in finding.suspects
        }
        for finding in findings:
            lines.extend(self._take_back(finding, now_ns))
            if finding.only_holds:
                self._hold_those(finding, now_ns, named)
                continue
            incident = self._match(finding)
            if incident is None:
                lines.extend(self._open(finding, now_ns))
            else:
                lines.extend(self._hold(incident, finding, now_ns))
        lines.extend(self._age(now_ns))
        return lines

    def _take_back(self, finding: Finding, now_ns: int) -> list[Verdict]:
        """Whoever was said to be slow, or dead as it was silent, and is not, as this finding shows."""
        freed, lines = set(finding.exonerates), []
        for incident in list(self._incidents):
            verdict = incident.verdict
            is_slow, is_mute = verdict.fault is FaultKind.FAIL_SLOW, is_by_silence(verdict)
            if (is_slow or is_mute) and verdict.suspects and components(verdict.suspects) <= freed:
                reason = Reason.MONITORING_LOST if is_mute else finding.reason
                lines.append(self._close(incident, now_ns, VerdictState.CANCELLED, reason))
        return lines

    def close_all(self, now_ns: int, reason: Reason) -> list[Verdict]:
        """Close everything: the job ended, or a new attempt began.

        Who was said to be slow or to hold up all, for too short a time to be sure, is not: the job came to its end. Nor
        is who is said to hold it up for a line in its log alone: it stood because it was started again.
        """
        return [self._end(incident, now_ns, reason) for incident in list(self._incidents)]

    def close_what_ended(self, now_ns: int) -> list[Verdict]:
        """All processes of the job are gone: nobody is slow any more; what explains the end stays.

        Lost numbers explain it where nothing else does.
        """
        is_told = any(incident.verdict.fault in STANDSTILL for incident in self._incidents)
        over = (*SLOWER, FaultKind.SILENT_CORRUPTION) if is_told else SLOWER
        ended = [incident for incident in self._incidents if incident.verdict.fault in over]
        return [self._end(incident, now_ns, Reason.JOB_ENDED) for incident in ended]

    def explains_end(self, finding: Finding) -> bool:
        """Whether a finding may still hold when all processes of the job are gone."""
        if finding.fault is FaultKind.SILENT_CORRUPTION:
            return not any(incident.verdict.fault in STANDSTILL for incident in self._incidents)
        return finding.fault not in SLOWER

    def _end(self, incident: Incident, now_ns: int, reason: Reason) -> Verdict:
        verdict = incident.verdict
        unsure = not incident.was_confirmed and verdict.state is VerdictState.OPEN
        by_log = verdict.fault is FaultKind.HANG and verdict.reason == Reason.HARDWARE_EVENT.value
        ended = verdict.fault in (FaultKind.FAIL_SLOW, FaultKind.HANG) and reason is Reason.JOB_ENDED
        taken_back = unsure and (ended or by_log)
        return self._close(incident, now_ns, VerdictState.CANCELLED if taken_back else VerdictState.RESOLVED, reason)

    def abandon(self, now_ns: int, reason: Reason) -> list[Verdict]:
        """Close everything because the job begins anew: nobody knows any more whether it still holds."""
        lines = [self._close(one, now_ns, VerdictState.EXPIRED, reason) for one in list(self._incidents)]
        for line in lines:
            self._closed[line.verdict_id][1] = 0  # what is seen again was seen before, and is opened again
        return lines

    def follow(self, before: Decide) -> None:
        """Take over the ids of what a job that began anew had said: none starts anew."""
        self._closed = dict(before._closed)

    def _match(self, finding: Finding) -> Incident | None:
        for incident in self._incidents:
            if same_fault(incident, finding):
                return incident
        return None

    def _hold_those(self, finding: Finding, now_ns: int, named: Collection[Component]) -> None:
        """These suspects (none named: all that hurt, because the job stands) cannot be seen to be well again.

        Who was only said to be slow, and is not whom the job waits for now, is not held; nor what an event or a silence
        alone said and was never confirmed: the part is well again, the machine speaks, or it would be told still.
        """
        for incident in self._incidents:
            is_open = incident.verdict.state is VerdictState.OPEN
            if not finding.suspects and is_open and incident.verdict.reason in _TOLD_BY_ONE:
                continue
            stands = not finding.suspects and incident.verdict.fault in (*STANDSTILL, FaultKind.FAIL_SLOW)
            open_yet = incident.verdict.fault is FaultKind.FAIL_SLOW and incident.verdict.state is VerdictState.OPEN
            if named and open_yet and not components(incident.verdict.suspects) & set(named):
                continue
            if stands or same_suspects(finding, incident.verdict):
                incident.held_ns = now_ns
                incident.seen_ns = max(incident.seen_ns, finding.seen_ns)

    def _open(self, finding: Finding, now_ns: int) -> list[Verdict]:
        verdict_id = verdict_id_of(self._job, finding.suspects, finding.fault, finding.onset_ns)
        closed = self._closed.get(verdict_id)
        taken = any(incident.verdict.verdict_id == verdict_id for incident in self._incidents)
        is_rest = closed is not None and (finding.fault is FaultKind.DEGRADED or (closed[2] and not finding.suspects))
        if taken or is_rest:
            # An incident that became another story holds the id. Or: what is left of an incident that hurt, or named
            # somebody, is another one, and the old id keeps its last word.
            verdict_id = verdict_id_of(self._job, finding.suspects, finding.fault, now_ns)
        seen_ns = finding.seen_ns or now_ns
        closed = self._closed.pop(verdict_id, [-1, -1, 0, 0])
        if seen_ns <= closed[1]:
            self._closed[verdict_id] = closed
            return []
        action, evidence = action_of(finding, confirmed=finding.certain, hard=finding.certain)
        verdict = Verdict(
            verdict_id=verdict_id,
            job=self._job,
            fault=finding.fault,
            cause=finding.cause,
            suspects=finding.suspects,
            onset_ns=finding.onset_ns,
            detected_ns=now_ns,
            confidence=finding.confidence,
            action=action,
            reason=finding.reason.value,
            evidence=evidence,
            state=VerdictState.OPEN,
            update=closed[0] + 1,
            expires_ns=now_ns + self._config.action_ttl_ns,
            common=finding.common,
            witnesses=finding.witnesses,
        )
        was_confirmed = bool(closed[3])
        incident = Incident(verdict, now_ns, now_ns, finding.certain, seen_ns, was_confirmed, is_lone=finding.is_lone)
        self._incidents.append(incident)
        return [verdict]

    def _hold(self, incident: Incident, finding: Finding, now_ns: int) -> list[Verdict]:
        finding = incident.merge_witnesses(finding)
        verdict = incident.verdict
        alike = finding.fault is verdict.fault or {finding.fault, verdict.fault} <= set(STANDSTILL)
        if same_suspects(finding, verdict) and alike:
            # Why is not forgotten because it is not shown again.
            finding = replace(finding, cause=incident.settled_cause(finding, now_ns, self._config.settle_ns))
        if not explains_better(finding, incident):
            speaks = verdict.state is VerdictState.OPEN and verdict.reason == Reason.SILENT_AND_PEERS_STALLED.value
            same_standstill = finding.fault in STANDSTILL and not speaks  # it was silent for seconds
            stands = not finding.suspects and (same_standstill or is_slow_still(finding, incident))
            over = lacks_impact(finding, verdict) and finding.is_harmless
            same = (same_suspects(finding, verdict) and not over) or names_fewer_machines(finding, verdict)
            if same or stands:
                incident.hold(now_ns, self._config.gone_ns)
                if (
                    finding.suspects or finding.fault in STANDSTILL
                ):  # that all is slow still shows nothing of the machine
                    incident.seen_ns = max(incident.seen_ns, finding.seen_ns)
            return []
        moved = not same_suspects(finding, verdict)
        changed = moved or (finding.cause, finding.fault) != (verdict.cause, verdict.fault)
        if moved or lacks_impact(verdict, finding):  # that it hurts is another thing than that it differs
            incident.opened_ns = now_ns
            incident.was_confirmed = False
        elif verdict.state is VerdictState.CONFIRMED:
            incident.was_confirmed = True
        retold = not moved and is_weaker_repeat(finding, verdict)
        if retold and changed:
            new = [evidence for evidence in finding.evidence if evidence not in verdict.evidence]
            finding = replace(finding, evidence=(*verdict.evidence, *new)[:_SHOWN_EVIDENCE_COUNT])
        incident.hold(now_ns, self._config.gone_ns)
        incident.certain, incident.is_lone = finding.certain, finding.is_lone
        # Evidence that does not go on (a job that makes no steps now) confirms nothing.
        incident.seen_ns = finding.seen_ns or now_ns
        confirmed = verdict.state is VerdictState.CONFIRMED and (retold or not changed)
        confirm = confirmed or self._lasted(incident, finding)
        hard = finding.certain or self._lasted_for_hard(incident, finding)
        if retold:
            action, evidence = repeated_action(finding, verdict)
        else:
            action, evidence = action_of(finding, confirmed=confirm or finding.certain, hard=hard)
        if not changed and confirm == confirmed and action is verdict.action:
            return []
        incident.verdict = replace(
            verdict,
            fault=finding.fault,
            cause=finding.cause,
            suspects=finding.suspects,
            onset_ns=finding.onset_ns if changed else verdict.onset_ns,
            detected_ns=now_ns,
            confidence=max(
                min(0.99, finding.confidence + (0.05 if confirm else 0.0)), verdict.confidence if retold else 0.0
            ),
            action=action,
            reason=finding.reason.value,
            evidence=evidence,
            state=VerdictState.CONFIRMED if confirm else VerdictState.OPEN,
            update=verdict.update + 1,
            expires_ns=now_ns + self._config.action_ttl_ns,
            common=finding.common,
            witnesses=finding.witnesses,
        )
        return [incident.verdict]

    def _lasted(self, incident: Incident, finding: Finding) -> bool:
        """Whether it has been so for long enough to be confirmed: throttling that comes again need not last."""
        if finding.tentative and not finding.is_brief:
            return False
        throttled = finding.fault is FaultKind.FAIL_SLOW and throttles(finding)
        if throttled and self._relapses.is_flapping(finding.fault, finding.suspects, incident.opened_ns):
            return True
        return not finding.tentative and incident.seen_ns - incident.opened_ns >= self._config.confirm_ns[finding.fault]

    def _lasted_for_hard(self, incident: Incident, finding: Finding) -> bool:
        """Whether it has been so, without a break, for long enough to take a machine away."""
        hard_ns = max(self._config.hard_ns.get(finding.fault, 0), finding.hard_ns)
        return incident.seen_ns - incident.spell_began_ns >= hard_ns

    def _age(self, now_ns: int) -> list[Verdict]:
        lines = []
        for incident in list(self._incidents):
            gone = now_ns - incident.held_ns
            if gone >= max(self._config.gone_ns, self._relapse_ns(incident)):
                confirmed = incident.verdict.state is VerdictState.CONFIRMED or incident.was_confirmed
                state = VerdictState.RESOLVED if confirmed else VerdictState.CANCELLED
                lines.append(self._close(incident, now_ns, state, Reason.RECOVERED))
            elif gone >= self._config.gone_ns and is_hard(incident.verdict):
                lines.append(self._soften(incident, now_ns))
            elif now_ns >= incident.verdict.expires_ns:
                fresh = now_ns - incident.seen_ns <= self._config.fresh_ns
                lines.append(
                    self._renew(incident, now_ns)
                    if fresh
                    else self._close(incident, now_ns, VerdictState.EXPIRED, Reason.EXPIRED)
                )
        return lines

    def _soften(self, incident: Incident, now_ns: int) -> Verdict:
        """A machine that is well now, and will hardly stay so, is looked at and not taken away.

        That it is well prolongs no action.
        """
        incident.verdict = replace(
            incident.verdict,
            action=ActionKind.PROBE,
            detected_ns=now_ns,
            update=incident.verdict.update + 1,
            reason=Reason.FLAPPING.value,
        )
        return incident.verdict

    def _relapse_ns(self, incident: Incident) -> int:
        """For how long it must be gone as it comes again and again, 0: it does not, or was not sure this time."""
        verdict = incident.verdict
        named = verdict.fault is FaultKind.FAIL_SLOW and bool(verdict.suspects)
        unsure = named and verdict.state is VerdictState.OPEN
        return 0 if unsure else self._relapses.gone_ns(incident.verdict, incident.opened_ns)

    def _renew(self, incident: Incident, now_ns: int) -> Verdict:
        incident.verdict = replace(
            incident.verdict,
            detected_ns=now_ns,
            update=incident.verdict.update + 1,
            expires_ns=now_ns + self._config.action_ttl_ns,
            reason=Reason.STILL_TRUE.value,
        )
        return incident.verdict

    def _close(self, incident: Incident, now_ns: int, state: VerdictState, reason: Reason) -> Verdict:
        self._incidents.remove(incident)
        if reason is Reason.RECOVERED and is_spell(incident.verdict):
            self._relapses.end(incident.verdict, incident.opened_ns, incident.held_ns)
        confirmed = incident.was_confirmed or incident.verdict.state is VerdictState.CONFIRMED
        self._closed[incident.verdict.verdict_id] = [
            incident.verdict.update + 1,
            incident.seen_ns,
            int(bool(incident.verdict.suspects)),
            int(confirmed),
        ]
        while len(self._closed) > _KEPT_CLOSED_COUNT:
            del self._closed[next(iter(self._closed))]
        return replace(
            incident.verdict,
            detected_ns=now_ns,
            update=incident.verdict.update + 1,
            state=state,
            reason=reason.value,
            action=ActionKind.NONE,
            expires_ns=now_ns,
        )

    def snapshot(self) -> dict[str, bytes]:
        """State in one part."""
        state = [incident.to_state() for incident in self._incidents]
        spells = self._relapses.to_state()
        return {"decide": pack_state({"incidents": state, "closed": list(self._closed.items()), "spells": spells})}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Take back what ``snapshot`` gave."""
        state = unpack_state(parts, "decide")
        self._closed = dict(map(tuple, state["closed"]))
        self._relapses.load_state(state["spells"])
        self._incidents = [Incident.from_state(entry) for entry in state["incidents"]]
