"""What a job controller checks before it believes an action: the reference for docs/job-controller.md.

It starts and stops nothing. It says what an action that was posted means for one job; whoever runs the job does it and
reports back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tocsin.pipeline.actions.executors.job_controller import KINDS, JobActionState, JobAnswer
from tocsin.pipeline.actions.executors.reasons import ExecutorReason
from tocsin.pipeline.identity.action_signatures import ActionChecker
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action
from tocsin.schemas.errors import IdentityError, SchemaError
from tocsin.schemas.job_key import JobKey
from tocsin.schemas.verdicts import ActionKind

OK: Final = 200
BAD_REQUEST: Final = 400
FORBIDDEN: Final = 403
LOWER_EPOCH: Final = "lower_epoch"
NOT_BEGUN: Final = "not_begun"
NO_SUCH_JOB: Final = "no_such_job"
ANOTHER_IN_HAND: Final = "another_in_hand"
"""Another action on the job was taken, and is not complete."""


@dataclass(frozen=True, slots=True)
class RunningJob:
    """The attempt that runs now.

    Attributes:
        job: cluster, job and attempt.
        hosts: its machines.
    """

    job: JobKey
    hosts: frozenset[str]


class JobDesk:
    """Checks the actions that are posted to a job controller of one job."""

    def __init__(self, checker: ActionChecker, running: Callable[[], RunningJob]) -> None:
        """Know no action yet.

        Args:
            checker: checks signatures against the controllers' public keys.
            running: returns the attempt that runs now.
        """
        self._checker = checker
        self._running = running
        self._epoch = 0
        self._answers: dict[str, JobAnswer] = {}
        self._kinds: dict[str, ActionKind] = {}

    @property
    def answers(self) -> Mapping[str, JobAnswer]:
        """What is said of each action that was not refused."""
        return self._answers

    def state(self, action_id: str) -> JobAnswer | None:
        """Return how far an action is, None if it was never taken."""
        return self._answers.get(action_id)

    def on_post(self, value: bytes, signature: bytes, now_ns: int) -> tuple[int, JobAnswer, Action | None]:
        """Take what was posted.

        Args:
            value: the body.
            signature: the signature header, empty for none.
            now_ns: the present time.

        Returns:
            HTTP status, what is said, and the action if it is to be begun or taken back now, else None.
        """
        try:
            action = self._checker.admit(value, signature or None, now_ns)
        except IdentityError as error:
            return FORBIDDEN, JobAnswer(JobActionState.REFUSED, str(error.reason), str(error)), None
        except SchemaError as error:
            return BAD_REQUEST, JobAnswer(JobActionState.REFUSED, error.reason, str(error)), None
        if action.epoch < self._epoch:
            return OK, JobAnswer(JobActionState.REFUSED, LOWER_EPOCH), None
        self._epoch = action.epoch
        if action.state is ActionState.UNDOING:
            return OK, *self._taken_back(action)
        known = self._answers.get(action.action_id)
        if known is not None:
            return OK, known, None
        wrong = self.check(action, now_ns) or self._in_hand()
        if wrong is not None:
            return OK, wrong, None
        answer = self._answers[action.action_id] = JobAnswer(JobActionState.RUNNING)
        self._kinds[action.action_id] = action.kind
        return OK, answer, action

    def on_end(self, action_id: str, answer: JobAnswer) -> None:
        """Take what became of an action that was begun."""
        self._answers[action_id] = answer

    def _taken_back(self, action: Action) -> tuple[JobAnswer, Action | None]:
        """Return what is said of an action that is taken back, and the action if its machines come back by it."""
        known = self._answers.get(action.action_id)
        if known is None or self._kinds.get(action.action_id) is not ActionKind.EVICT:
            return JobAnswer(JobActionState.UNDONE, ExecutorReason.NOTHING_TO_UNDO.value), None
        if known.state not in {JobActionState.DONE, JobActionState.FAILED}:
            return known, None
        answer = self._answers[action.action_id] = JobAnswer(JobActionState.UNDONE)
        return answer, action

    def _in_hand(self) -> JobAnswer | None:
        """Return why no other action is taken now, None where none is in hand."""
        for action_id, answer in self._answers.items():
            if answer.state is JobActionState.RUNNING:
                return JobAnswer(JobActionState.REFUSED, ANOTHER_IN_HAND, f"action {action_id} is not complete")
        return None

    def check(self, action: Action, now_ns: int) -> JobAnswer | None:
        """Return what is against an action now, None for nothing.

        Whoever runs the job asks once more right before the job is touched: since the action was taken its time may
        have run out, and the job may have started anew.

        Args:
            action: an action whose signature was checked.
            now_ns: the present time.
        """
        running, job = self._running(), action.target.job
        if action.kind not in KINDS:
            return JobAnswer(JobActionState.REFUSED, ExecutorReason.KIND_NOT_DONE_HERE.value)
        if action.state is not ActionState.STARTED:
            return JobAnswer(JobActionState.REFUSED, NOT_BEGUN, f"it is {action.state.value}")
        if now_ns >= action.deadline_ns or now_ns >= action.lease_ns:
            return JobAnswer(JobActionState.EXPIRED, ExecutorReason.DEADLINE_PASSED.value)
        if (job.cluster, job.job_id) != (running.job.cluster, running.job.job_id):
            return JobAnswer(JobActionState.REFUSED, NO_SUCH_JOB)
        if job.attempt != running.job.attempt:
            detail = f"attempt {running.job.attempt} runs"
            return JobAnswer(JobActionState.EXPIRED, ExecutorReason.NEW_ATTEMPT.value, detail)
        gone = [host for host in action.target.hosts if host not in running.hosts]
        if gone:
            return JobAnswer(JobActionState.EXPIRED, ExecutorReason.HOST_LEFT_JOB.value, f"{gone[0]} is not used")
        return None
