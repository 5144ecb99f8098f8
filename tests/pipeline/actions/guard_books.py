"""What a world remembers for those guards that look at several actions, at spares, or at who lives.

Each book counts only what certainly counts: an action that the controller may have forgotten, or a class that it may
have seen otherwise, is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from tocsin.pipeline.actions.config import ControllerConfig
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import HARD_KINDS, REMOVING_KINDS, STOPPING_KINDS, Action
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import ActionKind

S = ActionState
HOUR_NS = 3600 * NS_PER_SECOND
_KEPT_NS = 7 * 24 * HOUR_NS
_HELD = frozenset({S.APPROVED, S.CLAIMED, S.STARTED})
_UNBEGUN = frozenset({S.PROPOSED, S.WAITING, S.WAITING_APPROVAL, S.APPROVED, S.CLAIMED})


class GuardBooks:
    """Books of wrong verdicts, floods, proofs, spares and living executors.

    Attributes:
        heard_ns: when an executor said last that it lives.
        means: job -> its spare machines, and whether it can shrink.
    """

    def __init__(self, config: ControllerConfig, job_names: Iterable[str]) -> None:
        """Nothing happened yet; all jobs can shrink."""
        self._config = config
        self.heard_ns = 0
        self.means: dict[str, tuple[int, bool]] = dict.fromkeys(job_names, (0, True))
        self._wrong: dict[tuple[str, int], set[str]] = defaultdict(set)
        self._struck: dict[str, dict[str, int]] = defaultdict(dict)
        self._flooded: dict[str, int] = {}
        """Class -> when more hosts than allowed had shown it for the first time; until an hour is over."""
        self._proven: set[str] = set()

    def on_new(self, action: Action, now_ns: int) -> None:
        """Note that an action was proposed: its machines show its class."""
        if action.kind not in HARD_KINDS or action.target.is_leaf():
            return
        struck = self._struck[action.budget_class]
        is_known = len(struck) > self._config.breaker.host_count
        struck |= dict.fromkeys(action.target.hosts, now_ns)
        is_within = all(0 <= now_ns - one < HOUR_NS for one in struck.values())
        if not is_known and is_within and len(struck) > self._config.breaker.host_count:
            self._flooded[action.budget_class] = now_ns

    def on_time(self, now_ns: int) -> None:
        """Forget floods after which the breaker may have let one action through."""
        self._flooded = {name: at for name, at in self._flooded.items() if now_ns - at < HOUR_NS}

    def on_wrong(self, actions: Iterable[Action], now_ns: int) -> None:
        """Note that a person called the verdict of some actions wrong."""
        for one in actions:
            is_kept = one.state is S.DONE or 0 <= now_ns - one.changed_ns < HOUR_NS
            if is_kept and (one.kind in HARD_KINDS or one.state in _UNBEGUN):
                self._wrong[one.target.job.job_id, one.target.job.attempt].add(one.verdict_id)

    def on_proven(self, actions: Iterable[Action]) -> None:
        """Note that a check or a person may have proved some actions right."""
        self._proven |= {one.action_id for one in actions}

    def check_granted(self, action: Action, latest: Mapping[str, Action], now_ns: int) -> None:
        """Check an action that is given to an executor now; ``latest``: id -> each action as it is."""
        what, job = f"{action.kind} {action.target.hosts}", action.target.job
        others = [one for one in latest.values() if one.action_id != action.action_id]
        assert len(self._wrong[job.job_id, job.attempt]) < self._config.wrong_count, f"{what}: its detector was wrong"
        silent_seconds = self._config.executor_silence_seconds
        assert now_ns - self.heard_ns <= silent_seconds * NS_PER_SECOND, f"{what}: no executor lives"
        if action.kind is ActionKind.EVICT:
            spare_count, may_shrink = self.means[job.job_id]
            assert may_shrink or spare_count >= len(action.target.hosts), f"{what}: no spare"
        is_flooded = action.kind in HARD_KINDS and action.budget_class in self._flooded
        assert not is_flooded, f"{what}: in a flood of {action.budget_class}"
        self._check_conflicts(action, others)

    def check_unproven(
        self, action: Action, latest: Mapping[str, Action], done: Mapping[str, int], now_ns: int
    ) -> None:
        """Check an action that nobody approved: at most so many others of its class were carried out unproven.

        Args:
            action: the action.
            latest: id -> each action as it is.
            done: id -> when executors changed something.
            now_ns: the present time.
        """
        if action.kind not in REMOVING_KINDS or action.target.is_leaf():
            return
        unproven = [
            name
            for name, at_ns in done.items()
            if name not in self._proven
            and name != action.action_id
            and latest[name].kind in REMOVING_KINDS
            and not latest[name].target.is_leaf()
            and latest[name].budget_class == action.budget_class
            and 0 <= now_ns - at_ns < _KEPT_NS
        ]
        assert len(unproven) < self._config.unproven_count, f"{action.target.hosts}: {len(unproven)} unproven before it"

    def _check_conflicts(self, action: Action, others: Iterable[Action]) -> None:
        """Check that no other action has a machine or the job."""
        hosts, job = set(action.target.hosts), action.target.job
        for one in others:
            is_hard = action.kind in HARD_KINDS and one.kind in HARD_KINDS
            if is_hard and hosts & set(one.target.hosts):
                assert one.state not in _HELD | {S.UNDOING}, f"{action.kind} {hosts}: {one.kind} has it"
                is_stronger = action.kind is not ActionKind.DRAIN and one.kind is ActionKind.DRAIN
                is_taking = action.kind in {ActionKind.DRAIN, ActionKind.EVICT}
                assert one.state is not S.DONE or is_stronger or not is_taking, f"{action.kind} {hosts}: out already"
            is_of_job = one.target.job.job_id == job.job_id and {action.kind, one.kind} <= STOPPING_KINDS
            assert not (is_of_job and one.state in _HELD), f"{action.kind} {hosts}: {one.kind} ends the job"
