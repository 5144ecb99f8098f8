"""Actions on jobs, done by the site's own job controller over HTTP (docs/job-controller.md).

The job controller is given the bytes that tocsin's controller signed and checks the signature itself: this executor is
a messenger, and whoever takes its place can restart nothing. An action is named by its id, so posting it twice does it
once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Protocol

import urllib3
from urllib3.exceptions import HTTPError

from tocsin.pipeline.actions.executors import job_facts
from tocsin.pipeline.actions.executors.job_facts import SignedFact
from tocsin.pipeline.actions.executors.reasons import ExecutorReason
from tocsin.pipeline.actions.executors.signed_actions import SignedActions
from tocsin.pipeline.actions.executors.target import Look, Stage
from tocsin.schemas.actions import Action
from tocsin.schemas.errors import TargetAnswerError, TargetAwayError, TargetRefusedError
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import ActionKind

KINDS: Final = frozenset({ActionKind.RESTART, ActionKind.EVICT, ActionKind.ROLLBACK})
"""What a job controller is asked for."""
PATH: Final = "/v1/actions"
SIGNATURE_HEADER: Final = "Tocsin-Signature"
MAX_ANSWER_BYTES: Final = 65_536
MAX_FACTS_BYTES: Final = 1 << 20
FACTS_NS: Final = 5 * NS_PER_SECOND
"""Distance of two questions for facts; the controller believes a fact for a minute."""
_POST: Final = "post"
_NOT_FOUND: Final = 404
_TOO_MANY: Final = 429
_SERVER_ERROR: Final = 500


class JobActionState(StrEnum):
    """How far an action is, as a job controller says."""

    RUNNING = "running"
    """Taken, and not complete yet."""
    DONE = "done"
    REFUSED = "refused"
    """It will not be done; nothing was changed."""
    EXPIRED = "expired"
    """The job or its attempt is not that of the action any more; nothing was changed."""
    FAILED = "failed"
    """Something was changed, and the rest cannot be done."""
    UNDONE = "undone"
    """The machines that it left out may be used again."""


_STAGES: Final[Mapping[JobActionState, Stage]] = MappingProxyType(
    {
        JobActionState.RUNNING: Stage.WAITING,
        JobActionState.DONE: Stage.DONE,
        JobActionState.REFUSED: Stage.REFUSED,
        JobActionState.EXPIRED: Stage.EXPIRED,
        JobActionState.FAILED: Stage.FAILED,
        JobActionState.UNDONE: Stage.DONE,
    }
)
_REASONS: Final[Mapping[JobActionState, ExecutorReason]] = MappingProxyType(
    {
        JobActionState.RUNNING: ExecutorReason.JOB_CONTROLLER_WORKS,
        JobActionState.DONE: ExecutorReason.DONE_BY_JOB_CONTROLLER,
        JobActionState.REFUSED: ExecutorReason.TARGET_REFUSED,
        JobActionState.EXPIRED: ExecutorReason.JOB_NOT_RUNNING,
        JobActionState.FAILED: ExecutorReason.TARGET_REFUSED,
        JobActionState.UNDONE: ExecutorReason.GIVEN_BACK,
    }
)


@dataclass(frozen=True, slots=True)
class JobAnswer:
    """What a job controller says of an action.

    Attributes:
        state: how far it is.
        reason: its named reason, "" = none; one of ``ExecutorReason`` is passed on.
        detail: one sentence for people.
    """

    state: JobActionState
    reason: str = ""
    detail: str = ""


class JobController(Protocol):
    """Asks a job controller. Tests give a fake."""

    def state(self, action_id: str) -> JobAnswer | None:
        """Return how far an action is, None if it was never posted.

        Raises:
            TargetError: no answer, or none that can be read.
        """
        ...

    def post(self, value: bytes, signature: bytes) -> JobAnswer:
        """Hand over a signed action; the same one again changes nothing.

        Raises:
            TargetError: no answer, a refusal, or an answer that cannot be read.
        """
        ...

    def facts(self) -> Sequence[SignedFact]:
        """Return what it says of its jobs now; empty where it says nothing.

        Raises:
            TargetError: no answer, a refusal, or an answer that cannot be read.
        """
        ...


class HttpJobController:
    """A job controller at an address."""

    def __init__(self, url: str, *, ca_file: str = "", limit_seconds: float = 10.0) -> None:
        """Connect at the first request.

        Args:
            url: where it listens, ``http://HOST:PORT`` or ``https://HOST:PORT``, perhaps with a path.
            ca_file: PEM file of the authorities to trust, "" for the system's.
            limit_seconds: time that connecting, and again answering, may take.
        """
        self._url = url.rstrip("/") + PATH
        self._facts_url = url.rstrip("/") + job_facts.PATH
        self._pool = urllib3.PoolManager(num_pools=1, cert_reqs="CERT_REQUIRED", ca_certs=ca_file or None)
        self._timeout = urllib3.Timeout(connect=limit_seconds, read=limit_seconds)

    def state(self, action_id: str) -> JobAnswer | None:
        """See ``JobController.state``."""
        status, body = self._ask("GET", f"{self._url}/{action_id}")
        return None if status == _NOT_FOUND else _answer_of(status, body)

    def post(self, value: bytes, signature: bytes) -> JobAnswer:
        """See ``JobController.post``."""
        headers = {"Content-Type": "application/cloudevents+json", SIGNATURE_HEADER: signature.decode("ascii")}
        status, body = self._ask("POST", self._url, value, headers)
        return _answer_of(status, body)

    def facts(self) -> Sequence[SignedFact]:
        """See ``JobController.facts``. Status 404: this job controller says nothing of its jobs."""
        status, body = self._ask("GET", self._facts_url, most_bytes=MAX_FACTS_BYTES)
        if status == _NOT_FOUND:
            return ()
        _check_status(status, body)
        return job_facts.read_facts(body)

    def _ask(
        self,
        method: str,
        url: str,
        body: bytes = b"",
        headers: Mapping[str, str] = MappingProxyType({}),
        most_bytes: int = MAX_ANSWER_BYTES,
    ) -> tuple[int, bytes]:
        try:
            answer = self._pool.request(
                method,
                url,
                body=body or None,
                headers=dict(headers),
                retries=False,
                redirect=False,
                preload_content=False,
                timeout=self._timeout,
            )
            try:
                return answer.status, answer.read(most_bytes)
            finally:
                answer.close()
        except (HTTPError, OSError) as error:
            raise TargetAwayError(f"the job controller does not answer: {str(error)[:300]}") from error


def _answer_of(status: int, body: bytes) -> JobAnswer:
    """Return the answer in a body; raise the target's error for any other status than 200."""
    _check_status(status, body)
    try:
        found = json.loads(body)
        return JobAnswer(
            JobActionState(found["state"]), str(found.get("reason", "")), str(found.get("detail", ""))[:300]
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TargetAnswerError(f"the job controller's answer cannot be read: {_words(body)}") from error


def _check_status(status: int, body: bytes) -> None:
    """Raise the target's error for any other status than 200."""
    if status == _TOO_MANY or status >= _SERVER_ERROR:
        raise TargetAwayError(f"the job controller answers {status}: {_words(body)}")
    if status != 200:  # OK
        raise TargetRefusedError(f"the job controller answers {status}: {_words(body)}")


def _words(body: bytes) -> str:
    """Return the beginning of a body as one line of text."""
    return " ".join(body[:300].decode(errors="replace").split())


class JobControllerTarget:
    """A site's job controller as a target of actions.

    Attributes:
        kinds: kinds of actions that it can do.
    """

    kinds = KINDS

    def __init__(self, controller: JobController, signed: SignedActions) -> None:
        """Ask nothing yet.

        Args:
            controller: asks the job controller.
            signed: the actions as they were signed.
        """
        self._controller = controller
        self._signed = signed
        self._asked_ns = -FACTS_NS

    def signed_facts(self, now_ns: int) -> Sequence[SignedFact]:
        """See ``HandsOnFacts.signed_facts``; the job controller is asked every five seconds."""
        if now_ns - self._asked_ns < FACTS_NS:
            return ()
        self._asked_ns = now_ns
        return self._controller.facts()

    def look(self, action: Action) -> Look:
        """See ``TargetSystem.look``."""
        if action.kind not in self.kinds:
            return Look(Stage.REFUSED, ExecutorReason.KIND_NOT_DONE_HERE)
        answer = self._controller.state(action.action_id)
        if answer is None:
            return Look(Stage.UNTOUCHED, ExecutorReason.FIRST_EFFECT_DUE, _POST)
        effects = (action.kind.value,) if answer.state in {JobActionState.DONE, JobActionState.FAILED} else ()
        return Look(_STAGES[answer.state], _reason_of(answer), detail=answer.detail, effects=effects)

    def look_back(self, action: Action) -> Look:
        """See ``TargetSystem.look_back``. A job that started again stays as it is: its machines are given back."""
        if action.kind is not ActionKind.EVICT:
            return Look(Stage.DONE, ExecutorReason.NOTHING_TO_UNDO)
        answer = self._controller.state(action.action_id)
        if answer is None or answer.state in {JobActionState.REFUSED, JobActionState.EXPIRED}:
            return Look(Stage.DONE, ExecutorReason.NOTHING_TO_UNDO)
        if answer.state is JobActionState.UNDONE:
            return Look(Stage.DONE, ExecutorReason.GIVEN_BACK)
        return Look(Stage.BEGUN, ExecutorReason.NEXT_EFFECT_DUE, _POST, effects=(action.kind.value,))

    def make(self, action: Action, look: Look) -> None:
        """See ``TargetSystem.make``."""
        del look
        one = self._signed.of(action)
        if one is None:
            raise TargetAwayError(f"the signed bytes of action {action.action_id} are not known yet")
        self._controller.post(one.value, one.signature)


def _reason_of(answer: JobAnswer) -> ExecutorReason:
    """Return the job controller's own reason where it is one of ours, else that of the state."""
    try:
        return ExecutorReason(answer.reason)
    except ValueError:
        return _REASONS[answer.state]
