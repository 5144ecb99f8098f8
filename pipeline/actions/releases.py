"""When what was taken away comes back, and what keeps it from coming back (docs/actions.md).

After a machine was taken away, nothing that the engine says of the verdict brings it back: neither a recovery nor the
job's end, a new attempt, a restart of the engine or an expiry. Only these do: a passed check under load, many quiet
steps on that machine, a person's word that the verdict was wrong, a person's cancel, or a person who gives it back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tocsin.pipeline.actions.desk import Desk
from tocsin.pipeline.actions.gpu_matters import is_about_gpu
from tocsin.pipeline.actions.reasons import ActionReason
from tocsin.pipeline.actions.tracked import TrackedAction
from tocsin.schemas.action_events import CheckResult, HumanChange, HumanChangeKind, QuietSteps
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import HARD_KINDS
from tocsin.schemas.operator_notes import Feedback


class Releases:
    """Applies checks, quiet steps and people's words to actions that took machines away, or are about to."""

    def __init__(self, desk: Desk) -> None:
        """Apply them to the actions of a desk."""
        self._desk = desk
        self._life = desk.life

    def take_check(self, check: CheckResult, now_ns: int) -> None:
        """Apply the result of a check: the newest of a machine counts.

        One at rest proves nothing, and one of an earlier boot is another machine's. One that did not load every GPU
        proves nothing of an action that is about a GPU.
        """
        known = self._desk.facts.machine(check.cluster, check.host)
        is_other = known is not None and known.boot_id and check.boot_id and known.boot_id != check.boot_id
        if (
            not check.is_under_load
            or is_other
            or not self._desk.facts.take_check(check.cluster, check.host, check.ts_ns)
        ):
            self._life.leave_out(ActionReason.FACT_OLD, f"check {check.check} of {check.host}")
            return
        seen = max(check.gpu_count, check.known_gpu_count)
        most = self._desk.facts.take_gpu_count(check.cluster, check.host, seen)
        if check.is_passed:
            self._passed(check, max(1, most), now_ns)
        else:
            self._failed(check, now_ns)

    def _failed(self, check: CheckResult, now_ns: int) -> None:
        """Keep a machine out that failed, and take it as proof of the actions on it."""
        for tracked in self._desk.book.of_host(check.cluster, check.host):
            if tracked.kind in HARD_KINDS and check.ts_ns >= tracked.action.issued_ns:
                self._proved_right(tracked)
            tracked.cleared.discard(check.host)
        for tracked in self._desk.book.standing(check.cluster, check.host):
            if tracked.done_ns and check.ts_ns >= tracked.done_ns:
                self._life.page(tracked, ActionReason.CHECK_FAILED, now_ns, f"{check.host}: {check.detail}")

    def _passed(self, check: CheckResult, wanted: int, now_ns: int) -> None:
        """Let a machine come back that passed, and cancel what was not begun on it, as far as that was checked."""
        narrow = self._too_narrow(check, wanted, now_ns)
        for tracked in self._desk.book.of_host(check.cluster, check.host):
            if tracked.action.action_id in narrow:
                continue
            if tracked.kind in HARD_KINDS and tracked.action.verdict_id == check.verdict_id and not tracked.is_proven:
                self._desk.chain.wrong_detectors.proved_wrong(tracked)
            is_newer = check.ts_ns >= tracked.verdict.detected_ns
            if tracked.kind in HARD_KINDS and tracked.is_unbegun and is_newer:
                self._desk.end(tracked, ActionState.CANCELLED, ActionReason.CHECK_PASSED, now_ns, check.check)
        self._clear(check.cluster, check.host, ActionReason.CHECK_PASSED, check.ts_ns, now_ns, narrow)

    def take_quiet_steps(self, quiet: QuietSteps, now_ns: int) -> None:
        """Let a machine come back after enough steps on it without a sign of a fault."""
        if quiet.step_count >= self._desk.config.quiet_step_count:
            self._clear(quiet.job.cluster, quiet.host, ActionReason.QUIET_STEPS, quiet.ts_ns, now_ns)

    def take_feedback(self, told: Feedback, now_ns: int) -> None:
        """Apply a person's judgement of a verdict to all its actions; the newest counts."""
        if not self._desk.facts.take_word(told.cluster, told.verdict_id, told.ts_ns):
            self._life.leave_out(ActionReason.FACT_OLD, f"word of {told.actor} about verdict {told.verdict_id}")
            return
        for tracked in self._desk.book.of_verdict(told.cluster, told.verdict_id):
            if tracked.kind not in HARD_KINDS and not tracked.is_unbegun:
                continue
            if told.is_true:
                self._proved_right(tracked)
                continue
            self._desk.chain.wrong_detectors.proved_wrong(tracked)
            self._desk.chain.vetoes.veto(tracked, tracked.hosts, now_ns)
            if tracked.is_unbegun:
                self._desk.end(tracked, ActionState.CANCELLED, ActionReason.FEEDBACK_FALSE, now_ns, told.note)
            elif self._is_standing(tracked):
                self.release([tracked], ActionReason.FEEDBACK_FALSE, now_ns)

    def take_human_change(self, told: HumanChange, now_ns: int) -> None:
        """Note that a person gave a machine back: what takes it away for the same cause is vetoed."""
        if told.kind is not HumanChangeKind.UNCORDONED:
            return
        for tracked in self._desk.book.of_host(told.cluster, told.host):
            if tracked.kind not in HARD_KINDS:
                continue
            if tracked.is_unbegun:
                if told.ts_ns >= tracked.action.issued_ns:
                    self._desk.chain.vetoes.veto(tracked, (told.host,), now_ns)
                    self._desk.end(tracked, ActionState.CANCELLED, ActionReason.RETURNED_BY_PERSON, now_ns, told.actor)
            elif tracked.is_standing and told.ts_ns >= tracked.done_ns:
                self._desk.chain.vetoes.veto(tracked, (told.host,), now_ns)
                tracked.cleared.add(told.host)
                self._returned(tracked, now_ns, told.actor)

    def release(self, chosen: Sequence[TrackedAction], reason: ActionReason, now_ns: int) -> None:
        """Have executors take back what some actions changed, unless others keep the same machines out."""
        for tracked in chosen:
            if self._is_held(tracked, chosen):
                self._life.move(tracked, ActionState.UNDONE, ActionReason.HELD_BY_OTHER_ACTION, now_ns, reason.value)
            else:
                self._life.move(tracked, ActionState.UNDOING, reason, now_ns)

    def release_left(self, now_ns: int) -> None:
        """Have executors take back what was kept out by others only, where no other action keeps it out any more."""
        for tracked in self._desk.book.waiting_for_others():
            if not self._is_held(tracked, [tracked]):
                self._life.move(tracked, ActionState.UNDOING, ActionReason.OTHERS_LET_GO, now_ns)

    def _is_held(self, tracked: TrackedAction, but: Sequence[TrackedAction]) -> bool:
        """Return whether actions other than some keep out each machine of an action."""
        cluster = tracked.action.target.job.cluster
        return all(self._desk.book.is_held_by_others(cluster, host, but) for host in tracked.hosts)

    def _too_narrow(self, check: CheckResult, wanted: int, now_ns: int) -> frozenset[str]:
        """Return the actions about a GPU of which a passed check proves nothing, and tell people of those done."""
        if check.gpu_count >= wanted:
            return frozenset()
        actions = self._desk.book.of_host(check.cluster, check.host)
        found = [one for one in actions if one.kind in HARD_KINDS and is_about_gpu(one)]
        for tracked in found:
            if tracked.is_standing and tracked.done_ns and check.ts_ns >= tracked.done_ns:
                detail = f"{check.host}: {check.gpu_count} of at least {wanted} GPUs worked in the check that it passed"
                self._life.page(tracked, ActionReason.CHECK_TOO_NARROW, now_ns, detail)
        return frozenset(one.action.action_id for one in found)

    def _clear(
        self,
        cluster: str,
        host: str,
        reason: ActionReason,
        ts_ns: int,
        now_ns: int,
        but: Collection[str] = (),
    ) -> None:
        """Let one machine come back, as far as actions that were done before this time are concerned, but for some."""
        ready = []
        for tracked in self._desk.book.standing(cluster, host):
            if not tracked.done_ns or ts_ns < tracked.done_ns or tracked.action.action_id in but:
                continue
            tracked.cleared.add(host)
            if tracked.cleared >= set(tracked.hosts):
                ready.append(tracked)
        self.release(ready, reason, now_ns)

    def _returned(self, tracked: TrackedAction, now_ns: int, actor: str) -> None:
        """End an action whose machines were all given back, at least one of them by a person."""
        if not tracked.cleared >= set(tracked.hosts):
            return
        if len(tracked.hosts) == 1 and tracked.state is not ActionState.FAILED:
            self._life.move(tracked, ActionState.UNDONE, ActionReason.RETURNED_BY_PERSON, now_ns, actor)
        elif tracked.state is not ActionState.UNDOING:
            self.release([tracked], ActionReason.CANCELLED_BY_PERSON, now_ns)

    def _is_standing(self, tracked: TrackedAction) -> bool:
        return tracked.is_standing and tracked.state is not ActionState.UNDOING

    def _proved_right(self, tracked: TrackedAction) -> None:
        """Note that a check or a person proved an action right: its class needs no approval for it."""
        tracked.is_proven = True
        action = tracked.action
        self._desk.chain.classes.forgotten(action.budget_class, action.action_id)
