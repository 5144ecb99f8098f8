"""What a job controller signs of its jobs reaches the controller unchanged, through an executor that believes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.actions.kit import CLUSTER, JOB, verdict_on
from tests.pipeline.runtime.embedded.actions.acting import EXECUTOR_KEY, PUBLIC, SCHEDULER_KEY, Acting
from tocsin.pipeline.actions.executors.client import ExchangeTrouble, ExecutorClient, ExecutorKeys
from tocsin.pipeline.actions.executors.core import ExecutorConfig
from tocsin.pipeline.actions.executors.job_controller import JobActionState, JobAnswer, JobControllerTarget
from tocsin.pipeline.actions.executors.job_facts import MOST_BYTES, SignedFact, facts_body, read_facts, signed_fact
from tocsin.pipeline.actions.executors.signed_actions import SignedActions
from tocsin.pipeline.identity.action_signatures import AckSigner, ActionChecker
from tocsin.pipeline.identity.message_signatures import new_signing_key
from tocsin.pipeline.runtime.embedded.control_socket import ACTOR
from tocsin.schemas.action_events import EngineHeartbeat, EngineWay, JobFacts
from tocsin.schemas.credentials import Role
from tocsin.schemas.errors import TargetAnswerError, TargetAwayError
from tocsin.schemas.verdicts import ActionKind

HOSTS = ("n1", "n2", "n3", "n4")


class JobSite:
    """An engine, an executor, and a job controller that has spares and knows signed actions only.

    Attributes:
        spares: number of its spares, None: it does not answer.
        posted: how many actions were posted to it.
        key: with what it signs.
    """

    def __init__(self, folder: Path) -> None:
        self.acting = Acting(folder)
        self.spares: int | None = 0
        self.posted = 0
        self.key = SCHEDULER_KEY
        self._done: dict[str, JobAnswer] = {}
        signed = SignedActions()
        keys = ExecutorKeys(AckSigner(EXECUTOR_KEY), ActionChecker(PUBLIC))
        target = JobControllerTarget(self, signed)
        config = ExecutorConfig(CLUSTER, "slurm", target.kinds)
        self.client = ExecutorClient([config], self, keys, target, lambda: self.acting.now_ns, signed)
        self.acting.follower.tell(JobFacts(JOB, self.acting.now_ns, hosts=HOSTS))
        self.run(10)

    def call(self, cmd: str, **args: object) -> dict[str, Any]:
        answer = self.acting.requests.for_executors()[cmd]({**args, ACTOR: "executor:slurm"})
        assert isinstance(answer, dict)
        return answer

    def facts(self) -> list[SignedFact]:
        if self.spares is None:
            raise TargetAwayError("nobody answers")
        told = JobFacts(JOB, self.acting.now_ns, spare_count=self.spares, may_shrink=False)
        return read_facts(facts_body([signed_fact(AckSigner(self.key), told)]))

    def state(self, action_id: str) -> JobAnswer | None:
        return self._done.get(action_id)

    def post(self, value: bytes, signature: bytes) -> JobAnswer:
        action = ActionChecker(PUBLIC).admit(value, signature, self.acting.now_ns)
        self.posted += 1
        self._done[action.action_id] = JobAnswer(JobActionState.DONE)
        assert self.spares
        self.spares -= len(action.target.hosts)
        return self._done[action.action_id]

    def run(self, seconds: int) -> None:
        """Let time pass, with an engine that judges."""
        for _ in range(seconds):
            self.acting.tick()
            self.acting.follower.tell(EngineHeartbeat(CLUSTER, EngineWay.EMBEDDED, self.acting.now_ns))
            self.client.step()

    def accuse(self, host: str, at_seconds: float) -> None:
        self.acting.tick(verdict_on(host, name=f"v-{host}", at_seconds=at_seconds))

    def found(self) -> list[tuple[str, str, str]]:
        """Machine, state and reason of each eviction."""
        wanted = [one for one in self.acting.wanted() if one.kind is ActionKind.EVICT]
        return sorted((one.target.hosts[0], one.state.value, one.reason) for one in wanted)

    def pages(self) -> list[str]:
        return [one.reason for one in self.acting.follower.shown if one.kind is ActionKind.NOTIFY]


def test_an_eviction_waits_for_a_spare_and_goes_on_with_it(tmp_path: Path) -> None:
    site = JobSite(tmp_path)
    site.accuse("n1", at_seconds=10)
    site.run(20)
    assert site.found() == [("n1", "waiting", "no_spare")]
    assert (site.pages(), site.posted) == (["no_spare"], 0)

    site.spares = 1
    site.run(12)
    assert (site.found(), site.posted) == ([("n1", "done", "done")], 1)

    site.accuse("n2", at_seconds=40)
    site.run(20)
    assert site.found()[1] == ("n2", "waiting", "no_spare")
    assert (site.spares, site.posted) == (0, 1), "one spare is one eviction"


def test_a_job_controller_that_does_not_answer_is_counted_and_its_word_ends(tmp_path: Path) -> None:
    site = JobSite(tmp_path)
    site.spares = 1
    site.run(10)
    site.spares = None
    site.run(70)
    assert site.client.troubles[ExchangeTrouble.NO_FACTS] == 14
    site.accuse("n1", at_seconds=90)
    site.run(5)
    assert site.found() == [("n1", "waiting", "no_spare")], "the policy has no spare"


def test_facts_with_an_unknown_key_have_no_effect(tmp_path: Path) -> None:
    site = JobSite(tmp_path)
    site.key = new_signing_key(Role.SCHEDULER, "launcher", 2)
    site.spares = 5
    site.run(10)
    site.accuse("n1", at_seconds=20)
    site.run(20)
    assert site.found() == [("n1", "waiting", "no_spare")]
    assert {one.reason for one in site.acting.letters} == {"unknown_key"}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"[]", "cannot be read"),
        (b'{"facts": 1}', "facts = 1"),
        (b'{"facts": [{"value": "AA=="}]}', "signature"),
        (b'{"facts": [{"value": "AA==", "signature": 7}]}', "facts[0]"),
        (b'{"facts": [{"value": "%", "signature": "k 0"}]}', "cannot be read"),
        (facts_body([SignedFact(b"x" * (MOST_BYTES + 1), b"k 0")]), "facts[0].value"),
        (json.dumps({"facts": [{}] * 101}).encode(), "at most 100"),
    ],
)
def test_facts_that_cannot_be_read_say_why(body: bytes, words: str) -> None:
    with pytest.raises(TargetAnswerError) as error:
        read_facts(body)
    assert words in str(error.value)
