"""The life of verdicts: one incident for one fault, from open to resolved.

``diagnose`` returns once a second the explanations that hold. ``Decide`` turns them into verdicts with fixed ids. It
waits before it proposes to take a machine away, and closes what no longer holds. Nothing is executed here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import count

from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.pipeline.incidents.closed_verdicts import ClosedVerdicts
from tocsin.pipeline.incidents.closing import said_by, state_at_end
from tocsin.pipeline.incidents.decide_config import DecideConfig
from tocsin.pipeline.incidents.flapping import FlappingTracker
from tocsin.pipeline.incidents.hearing import heard, is_source_mute, named_for_standstill
from tocsin.pipeline.incidents.incident import (
    SLOWER,
    Incident,
    components,
    is_by_silence,
    is_spell,
    same_suspects,
    throttles,
    with_evidence_of,
)
from tocsin.pipeline.incidents.matching import explains_better, is_taken_back, is_weaker_repeat, same_fault
from tocsin.pipeline.incidents.proposed_action import STANDSTILL, action_of, is_hard, repeated_action
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import Event, JobKey
from tocsin.schemas.verdicts import ActionKind, Component, FaultKind, Verdict, VerdictState, verdict_id_of

_TOLD_BY_ONE = (Reason.HARDWARE_EVENT.value, Reason.SILENT_AND_PEERS_STALLED.value)


class Decide:
    """The verdicts of one job, from open to resolved."""

    def __init__(self, config: DecideConfig, job: JobKey, graph: JobGraph | None = None) -> None:
        """Start without verdicts.

        Args:
            config: settings.
            job: the job whose verdicts these are.
            graph: tells which hosts still speak; None: all do.
        """
        self._graph = graph
        self._config = config
        self._job = job
        self._incidents: list[Incident] = []
        self._closed = ClosedVerdicts()
        self._flapping = FlappingTracker(config.flapping)

    @property
    def live(self) -> tuple[Verdict, ...]:
        """Open and confirmed verdicts."""
        return tuple(incident.verdict for incident in self._incidents)

    def on_findings(self, now_ns: int, findings: Sequence[Finding]) -> list[Verdict]:
        """Apply the findings of one slice, and return the verdict lines that change.

        Args:
            now_ns: the slice's end.
            findings: the explanations that hold then.
        """
        lines: list[Verdict] = []
        named = named_for_standstill(findings := heard(findings, self.live))
        for finding in findings:
            lines.extend(self._take_back(finding, now_ns))
            if finding.ends is not None:
                lines.extend(self._end_unnamed(finding, finding.ends, now_ns))
                continue
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
        """Cancel verdicts on slow or silent machines that a finding takes back; return the closing lines."""
        lines = []
        for incident in [one for one in self._incidents if is_taken_back(one.verdict, finding)]:
            reason = Reason.MONITORING_LOST if is_by_silence(incident.verdict) else finding.reason
            lines.append(self._close(incident, now_ns, VerdictState.CANCELLED, reason))
        return lines

    def _end_unnamed(self, finding: Finding, reason: Reason, now_ns: int) -> list[Verdict]:
        """Close the incidents that a finding belongs to and that name nobody; return the closing lines.

        Args:
            finding: the finding that says that they are over.
            reason: the reason on the closing lines.
            now_ns: the slice's end.
        """
        lines = []
        for incident in [one for one in self._incidents if not one.verdict.suspects and same_fault(one, finding)]:
            incident.verdict = replace(incident.verdict, evidence=finding.evidence)
            lines.append(self._end(incident, now_ns, reason))
        return lines

    def close_all(self, now_ns: int, reason: Reason) -> list[Verdict]:
        """Close all verdicts because the job ended or a new attempt began, and return the closing lines.

        Unconfirmed slowdowns and hangs are cancelled when the job ended. An unconfirmed hang that only a hardware event
        explains is always cancelled: the job stood because it was started again. All others are resolved.

        Args:
            now_ns: the time of the end.
            reason: the reason on the closing lines.
        """
        return [self._end(incident, now_ns, reason) for incident in list(self._incidents)]

    def close_what_ended(self, now_ns: int) -> list[Verdict]:
        """Close the verdicts that cannot hold without processes, and return the closing lines.

        Slowdowns are closed; verdicts that explain the end stay. Silent corruption explains it only where no
        standstill does.
        """
        is_reported = any(incident.verdict.fault in STANDSTILL for incident in self._incidents)
        over = (*SLOWER, FaultKind.SILENT_CORRUPTION) if is_reported else SLOWER
        ended = [one for one in self._incidents if one.verdict.fault in over]
        lines = [self._end(one, now_ns, Reason.JOB_ENDED) for one in ended]
        for incident in self._incidents:
            incident.held_ns = incident.seen_ns = now_ns  # a dead job recovers from nothing
        return lines

    def explains_end(self, finding: Finding) -> bool:
        """Return whether a finding can still hold when all processes of the job are gone."""
        if finding.fault is FaultKind.SILENT_CORRUPTION:
            return not any(incident.verdict.fault in STANDSTILL for incident in self._incidents)
        return finding.fault not in SLOWER and (finding.fault is not FaultKind.HANG or bool(finding.suspects))

    def close_by_human(self, closing: Event, now_ns: int) -> list[Verdict]:
        """Resolve the incident that a person closes; return its last line, nothing where it is not open."""
        for incident, verdict in [(one, one.verdict) for one in self._incidents]:
            if verdict.verdict_id == closing.payload.get("id"):
                incident.verdict = replace(verdict, evidence=(*verdict.evidence, said_by(closing)))
                line = self._close(incident, now_ns, VerdictState.RESOLVED, Reason.CLOSED_BY_HUMAN)
                self._closed.mark_by_human(verdict, now_ns)
                return [line]
        return []

    def _end(self, incident: Incident, now_ns: int, reason: Reason) -> Verdict:
        """Close an incident because its job ended or goes on in another attempt; return the closing line."""
        return self._close(incident, now_ns, state_at_end(incident, reason), reason)

    def abandon(self, now_ns: int, reason: Reason) -> list[Verdict]:
        """Expire all verdicts because the job's operators start without state; return the closing lines.

        Args:
            now_ns: the time of the start.
            reason: the reason on the closing lines.
        """
        lines = [self._close(one, now_ns, VerdictState.EXPIRED, reason) for one in list(self._incidents)]
        for line in lines:
            self._closed.forget_evidence(line.verdict_id)
        return lines

    def follow(self, before: Decide) -> None:
        """Take over the closed verdicts of the operator before this one, so that their updates go on.

        Args:
            before: the operator of the same job before it started without state.
        """
        self._closed.follow(before._closed)

    def _match(self, finding: Finding) -> Incident | None:
        """Return the open incident that a finding belongs to; None: there is none."""
        for incident in self._incidents:
            if same_fault(incident, finding):
                return incident
        return None

    def _hold_those(self, finding: Finding, now_ns: int, named: Collection[Component]) -> None:
        """Keep incidents alive by a finding that opens none: in a job that stands, no machine can show that it is well.

        Two kinds of unconfirmed incidents are not kept. One is a slow machine while other machines are named for the
        standstill. The other is a machine named only for a hardware event or its silence, which would be seen again.

        Args:
            finding: the finding; without suspects it keeps all standstills and slowdowns alive.
            now_ns: the slice's end.
            named: the components that findings name for a standstill now.
        """
        for incident in self._incidents:
            is_open = incident.verdict.state is VerdictState.OPEN
            if not finding.suspects and is_open and incident.verdict.reason in _TOLD_BY_ONE:
                continue
            holds = not finding.suspects and incident.verdict.fault in (*STANDSTILL, FaultKind.FAIL_SLOW)
            open_yet = incident.verdict.fault is FaultKind.FAIL_SLOW and incident.verdict.state is VerdictState.OPEN
            if named and open_yet and not components(incident.verdict.suspects) & set(named):
                continue
            if holds or same_suspects(finding, incident.verdict):
                incident.held_ns = now_ns
                incident.seen_ns = max(incident.seen_ns, finding.seen_ns)

    def _open(self, finding: Finding, now_ns: int) -> list[Verdict]:
        """Open an incident for a finding; return its first line, or none where its evidence closed a verdict before."""
        verdict_id = verdict_id_of(self._job, finding.suspects, finding.fault, finding.onset_ns)
        live = {incident.verdict.verdict_id for incident in self._incidents}
        if self._closed.is_silenced(finding, now_ns, self._config.closed_quiet_ns):
            return []
        if verdict_id in live or self._closed.is_rest(verdict_id, finding):
            # An incident that became another one holds the id; or the closed verdict with this id keeps its last line.
            # Two signs of a whole job may begin in one slice: the second one takes the next moment whose id is free.
            moments = (verdict_id_of(self._job, finding.suspects, finding.fault, now_ns + later) for later in count())
            verdict_id = next(one for one in moments if one not in live)
        seen_ns = finding.seen_ns or now_ns
        closed = self._closed.reopen(verdict_id, seen_ns)
        if closed is None:
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
            confidence=finding.told_confidence or finding.confidence,
            action=action,
            reason=finding.reason.value,
            evidence=evidence,
            state=VerdictState.OPEN,
            update=closed.update + 1,
            expires_ns=now_ns + self._config.action_ttl_ns,
            common=finding.common,
            witnesses=finding.witnesses,
            costs_ratio=finding.costs_ratio,
        )
        incident = Incident(verdict, now_ns, now_ns, finding.certain, seen_ns, bool(closed.was_confirmed))
        incident.is_lone, incident.is_wordless = finding.is_lone, finding.is_wordless
        incident.own_confidence = finding.confidence if finding.told_confidence else 0.0
        self._incidents.append(incident)
        return [verdict]

    def _hold(self, incident: Incident, finding: Finding, now_ns: int) -> list[Verdict]:
        """Apply a finding to the incident that it belongs to; return the verdict's new line, if there is one."""
        finding = incident.with_costs(incident.with_witnesses(finding))
        verdict, gone_ns = incident.verdict, self._config.gone_ns
        alike = finding.fault is verdict.fault or {finding.fault, verdict.fault} <= set(STANDSTILL)
        if same_suspects(finding, verdict) and alike:
            # Why is not forgotten because it is not shown again.
            finding = replace(finding, cause=incident.settled_cause(finding, now_ns, self._config.settle_ns))
        if not explains_better(finding, incident):
            incident.hold_if_same(finding, now_ns, gone_ns)
            return []
        moved = not same_suspects(finding, verdict)
        changed = moved or (finding.cause, finding.fault) != (verdict.cause, verdict.fault)
        retold = not moved and is_weaker_repeat(finding, verdict)
        if retold and changed:
            finding = with_evidence_of(finding, verdict)
        incident.follow(finding, now_ns, gone_ns, moved=moved)
        return self._update(incident, finding, now_ns, changed=changed, retold=retold)

    def _update(
        self, incident: Incident, finding: Finding, now_ns: int, *, changed: bool, retold: bool
    ) -> list[Verdict]:
        """Replace an incident's verdict where state, action or explanation change; return the new line, if any.

        Args:
            incident: the incident, with the finding's times taken.
            finding: the finding that speaks for it.
            now_ns: the slice's end.
            changed: whether the finding names other suspects, another cause or another fault than the verdict.
            retold: whether the finding only repeats a confirmed verdict.
        """
        verdict = incident.verdict
        confirmed = verdict.state is VerdictState.CONFIRMED and (retold or not changed)
        confirm = confirmed or self._lasted(incident, finding)
        hard = finding.certain or self._lasted_for_hard(incident, finding)
        if retold:
            action, evidence = repeated_action(finding, verdict)
        else:
            action, evidence = action_of(finding, confirmed=confirm or finding.certain, hard=hard)
        if not changed and confirm == confirmed and action is verdict.action:
            return []
        least = (verdict.confidence, incident.weighed_confidence) if retold else (0.0, 0.0)
        more = 0.05 if confirm else 0.0
        told = max(least[0], min(0.99, (finding.told_confidence or finding.confidence) + more))
        own = max(least[1], min(0.99, finding.confidence + more))
        incident.own_confidence = own if own != told else 0.0
        incident.verdict = replace(
            verdict,
            fault=finding.fault,
            cause=finding.cause,
            suspects=finding.suspects,
            onset_ns=finding.onset_ns if changed else verdict.onset_ns,
            detected_ns=now_ns,
            confidence=told,
            action=action,
            reason=finding.reason.value,
            evidence=evidence,
            state=VerdictState.CONFIRMED if confirm else VerdictState.OPEN,
            update=verdict.update + 1,
            expires_ns=now_ns + self._config.action_ttl_ns,
            common=finding.common,
            witnesses=finding.witnesses,
            costs_ratio=finding.costs_ratio,
        )
        return [incident.verdict]

    def _lasted(self, incident: Incident, finding: Finding) -> bool:
        """Return whether a finding has held long enough to be confirmed; throttling that comes again need not last."""
        if finding.tentative and not finding.is_brief:
            return False
        throttled = finding.fault is FaultKind.FAIL_SLOW and throttles(finding)
        if throttled and self._flapping.is_flapping(finding.fault, finding.suspects, incident.opened_ns):
            return True
        return not finding.tentative and incident.seen_ns - incident.opened_ns >= self._config.confirm_ns[finding.fault]

    def _lasted_for_hard(self, incident: Incident, finding: Finding) -> bool:
        """Return whether a finding has held, without a break, long enough to take a machine away."""
        hard_ns = max(self._config.hard_ns.get(finding.fault, 0), finding.hard_ns)
        return incident.seen_ns - incident.spell_began_ns >= hard_ns

    def _age(self, now_ns: int) -> list[Verdict]:
        """Close, soften or renew the incidents that were not held lately; return the lines that change."""
        lines = []
        for incident in list(self._incidents):
            gone = now_ns - incident.held_ns
            is_mute = gone >= self._config.gone_ns and self._is_mute(incident)
            if gone >= max(self._config.gone_ns, self._flapping_ns(incident)) and not (is_mute and incident.is_sure):
                state = VerdictState.RESOLVED if incident.is_sure else VerdictState.CANCELLED
                reason = Reason.MONITORING_LOST if is_mute else Reason.RECOVERED
                lines.append(self._close(incident, now_ns, state, reason))
            elif not is_mute and gone >= self._config.gone_ns and is_hard(incident.verdict):
                lines.append(incident.soften(now_ns))
            elif now_ns >= incident.verdict.expires_ns:
                fresh = now_ns - incident.seen_ns <= self._config.fresh_ns
                lines.append(
                    incident.renew(now_ns, self._config.action_ttl_ns)
                    if fresh
                    else self._close(incident, now_ns, VerdictState.EXPIRED, Reason.EXPIRED)
                )
        return lines

    def _is_mute(self, incident: Incident) -> bool:
        """Return whether the hosts that showed an incident's fault fell silent: nobody knows whether it is gone."""
        return self._graph is not None and is_source_mute(self._graph, incident.verdict, incident.held_ns)

    def _flapping_ns(self, incident: Incident) -> int:
        """Return how long a recurring fault must be gone before its verdict is closed, ns; 0: as long as others."""
        verdict = incident.verdict
        named = verdict.fault is FaultKind.FAIL_SLOW and bool(verdict.suspects)
        unsure = named and verdict.state is VerdictState.OPEN
        return 0 if unsure else self._flapping.gone_ns(incident.verdict, incident.opened_ns)

    def _close(self, incident: Incident, now_ns: int, state: VerdictState, reason: Reason) -> Verdict:
        """Close an incident with a state and a reason; return the closing line."""
        self._incidents.remove(incident)
        if reason is Reason.RECOVERED and is_spell(incident.verdict):
            self._flapping.end(incident.verdict, incident.opened_ns, incident.held_ns)
        self._closed.add(incident.verdict, incident.seen_ns, was_confirmed=incident.is_sure)
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
        """Return the state as one named part."""
        state = [incident.to_state() for incident in self._incidents]
        spells = self._flapping.to_state()
        return {"decide": pack_state({"incidents": state, "closed": self._closed.to_state(), "spells": spells})}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Restore the state that ``snapshot`` returned."""
        state = unpack_state(parts, "decide")
        self._closed.load_state(state["closed"])
        self._flapping.load_state(state["spells"])
        self._incidents = [Incident.from_state(entry) for entry in state["incidents"]]
