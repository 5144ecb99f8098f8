"""Topics, a controller that acts, and two executors with their systems; each process can be killed."""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from kafka import KafkaProducer

from tests.chaos.action_stories import CLUSTERS, JOB, MACHINE_COUNT, PEERS, SLURM, ActionStory
from tests.chaos.job_stub import JobStub, job_stub
from tests.chaos.slurm_stub import SlurmServer, slurm_at, write_programs
from tests.conftest import ROOT
from tests.kafka_kit import make_topics
from tests.pipeline.actions.executors.fake_slurm import USER, FakeNode
from tests.pipeline.kafka.action_kit import status_of
from tocsin.cli.cluster.broker import Broker
from tocsin.cli.cluster.process import Child, Program
from tocsin.pipeline.actions.executors.job_desk import RunningJob
from tocsin.pipeline.identity.action_signatures import AckSigner, actor_of
from tocsin.pipeline.identity.message_signatures import new_signing_key, public_half
from tocsin.pipeline.identity.verdict_signatures import VerdictSigner, new_engine_key
from tocsin.pipeline.kafka.action_exchange import KafkaExchange
from tocsin.schemas.action_codec import decode_action, encode_event
from tocsin.schemas.action_events import ActionEvent, Cancel, MachineFacts
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action
from tocsin.schemas.cloudevents import encode_verdict
from tocsin.schemas.credential_store import write_credentials
from tocsin.schemas.credentials import Credential, Role
from tocsin.schemas.job_key import JobKey
from tocsin.schemas.kafka.settings import kafka_settings
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.signatures import SIGNATURE_HEADER
from tocsin.schemas.verdicts import ActionKind, Verdict

CONTROLLER: Final = "controller"
ACTORS: Final = (CONTROLLER, *CLUSTERS)
"""Who is killed."""
_BEAT_SECONDS: Final = 3.0
_ENGINE: Final = new_engine_key("fleet", 1)
_CONTROLLER: Final = new_signing_key(Role.CONTROLLER, CONTROLLER, 1)
_EXECUTORS: Final = {name: new_signing_key(Role.EXECUTOR, name, 1) for name in CLUSTERS}
_ANN: Final = new_signing_key(Role.OPERATOR, "ann", 1)
_KEYS: Final = tuple(map(public_half, (_ENGINE, _CONTROLLER, *_EXECUTORS.values(), _ANN)))


class ActionSite:
    """One installation.

    Attributes:
        children: role -> its process.
        slurm: the Slurm of cluster ``slurm``.
        jobs: the job controller of cluster ``job``.
        actions: id -> each action as it was published last, pages left out.
        states: id -> the states through which an action went.
    """

    def __init__(
        self, broker: Broker, prefix: str, folder: Path, slurm: SlurmServer, jobs: JobStub, *, without: str = ""
    ) -> None:
        self.broker, self.prefix, self.folder, self.slurm, self.jobs = broker, prefix, folder, slurm, jobs
        self._program = ["-m", "tests.chaos.broken", without] if without else ["-m", "tocsin"]
        self.children: dict[str, Child] = {}
        self.actions: dict[str, Action] = {}
        self.states: dict[str, list[ActionState]] = defaultdict(list)
        self._after, self._beat = 0, 0.0
        self._stories: dict[str, ActionStory] = {}
        self.producer = KafkaProducer(bootstrap_servers=broker.address, linger_ms=0)
        self.exchange = KafkaExchange(kafka_settings(broker.address), prefix)

    def start(self, programs: Path) -> None:
        """Make topics and credentials, tell of the machines, and start all processes."""
        make_topics(self.broker, self.prefix)
        keys = self._write("all", *_KEYS)
        flags = ["--kafka", self.broker.address, "--topic-prefix", self.prefix]
        acting = [
            "controller",
            "--act",
            "--may-shrink",
            "--controller-key",
            self._write(CONTROLLER, _CONTROLLER),
            "--credentials",
            keys,
        ]
        verbs = {CONTROLLER: [*acting, "--verdict-keys", keys]}
        for name, own in (
            (SLURM, ["--slurm-bin", str(programs), "--slurm-user", USER]),
            (JOB, ["--url", self.jobs.url]),
        ):
            token = ["--token-file", self._write(name, _EXECUTORS[name]), "--controller-keys", keys, "--cluster", name]
            verbs[name] = ["executor", name, *own, *token]
        for cluster in CLUSTERS:
            now_ns = time.time_ns()
            for number in range(MACHINE_COUNT):
                host = f"other{number}"
                self._tell(MachineFacts(cluster, host, now_ns, leaf=f"other{number // 8}"), _EXECUTORS[cluster])
        self.step()
        for role in ACTORS:
            command = [sys.executable, *self._program, *verbs[role], *flags]
            log = self.folder / f"{self.prefix}-{role}.log"
            self.children[role] = Child(Program(f"{self.prefix} {role}", command, log, folder=ROOT))
            self.children[role].start()

    def close(self) -> None:
        for child in self.children.values():
            child.kill()
        self.exchange.close()
        self.producer.close()

    def is_active(self, role: str) -> bool:
        """Whether a process works."""
        return self.children[role].said("active role=" if role == CONTROLLER else "exchanges actions")

    def begin(self, story: ActionStory) -> None:
        """Let a job run, and say the verdict about it."""
        self._stories[story.name] = story
        if story.cluster == SLURM:
            with self.slurm.lock:
                self.slurm.slurm.nodes[story.host] = FakeNode(story.host)
                self.slurm.slurm.add_job(story.slurm_job, story.host)
        else:
            self.jobs.add(RunningJob(story.job, frozenset(story.hosts)))
        for fact in story.facts():
            self._tell(fact, _EXECUTORS[story.cluster])
        self._status(story.job, story.hosts)
        self._judge(story.verdict())

    def withdraw(self, story: ActionStory) -> None:
        """The engine takes the verdict of a story back."""
        self._judge(story.withdrawal(time.time_ns()))

    def cancel(self, action: Action) -> None:
        """A person takes an action back."""
        command = Cancel(action.target.job.cluster, action.action_id, actor_of(_ANN), time.time_ns())
        self._tell(command, _ANN)

    def step(self) -> None:
        """The engine lives, and what the controller published is read."""
        if time.monotonic() - self._beat >= _BEAT_SECONDS:
            self._beat = time.monotonic()
            for cluster in CLUSTERS:
                self._status(JobKey(cluster, "pulse", 0), PEERS)
        for line in self.exchange.fetch(self._after):
            self._after = line.seq
            action = decode_action(line.value)
            if action.kind is not ActionKind.NOTIFY:
                self.actions[action.action_id] = action
                self.states[action.action_id].append(action.state)

    def action_of(self, story: ActionStory) -> Action | None:
        """The action of a story as it is now."""
        return next((one for one in self.actions.values() if one.verdict_id == story.name), None)

    def state_of(self, story: ActionStory) -> ActionState | None:
        found = self.action_of(story)
        return None if found is None else found.state

    def is_taken_back_in_hand(self, story: ActionStory) -> bool:
        """Whether an executor held the story's action and had not begun it when it was taken back."""
        found = self.action_of(story)
        states = [] if found is None else self.states[found.action_id]
        is_held = ActionState.CLAIMED in states and ActionState.STARTED not in states
        return is_held and states[-1] in {ActionState.CANCELLED, ActionState.EXPIRED}

    def effects(self) -> list[tuple[int, str, str]]:
        """Time in Unix ns, name of the story, and effect of all that was changed, in each cluster's order."""
        names = {f"NodeName={one.host}": one.name for one in self._stories.values()}
        names |= {f"JobId={one.slurm_job}": one.name for one in self._stories.values()}
        names |= {str(one.slurm_job): one.name for one in self._stories.values()}
        found = []
        for at_ns, effect in self.slurm.made:
            name = next((names[word] for word in effect.split() if word in names), "nobody")
            found.append((at_ns, name, effect))
        return found + [(at_ns, names[job_id], effect) for at_ns, job_id, effect in self.jobs.made]

    def effects_of(self, story: ActionStory) -> Counter[str]:
        return Counter(effect for _, name, effect in self.effects() if name == story.name)

    def _write(self, name: str, *credentials: Credential) -> str:
        path = self.folder / f"{self.prefix}-{name}.json"
        write_credentials(path, credentials)
        return str(path)

    def _tell(self, told: ActionEvent, signer: Credential) -> None:
        value = encode_event(told)
        self._send("action-acks", value, AckSigner(signer).header(value))

    def _status(self, job: JobKey, hosts: tuple[str, ...]) -> None:
        value = status_of(time.time_ns() // NS_PER_SECOND * NS_PER_SECOND, hosts, job)
        self._send("job-status", value, VerdictSigner(_ENGINE).header(value))

    def _judge(self, verdict: Verdict) -> None:
        value = encode_verdict(verdict)
        self._send("verdicts", value, VerdictSigner(_ENGINE).header(value))

    def _send(self, topic: str, value: bytes, signature: bytes) -> None:
        self.producer.send(f"{self.prefix}.{topic}", value, b"k", [(SIGNATURE_HEADER, signature)])
        self.producer.flush(30)


@contextmanager
def action_site_up(broker: Broker, prefix: str, folder: Path, *, without: str = "") -> Iterator[ActionSite]:
    """An installation during the block; ``without``: what is left out in it (``tests.chaos.broken``)."""
    with ExitStack() as open_:
        path = folder / f"{prefix}.sock"
        slurm, jobs = open_.enter_context(slurm_at(path)), open_.enter_context(job_stub(_KEYS))
        site = ActionSite(broker, prefix, folder, slurm, jobs, without=without)
        try:
            site.start(write_programs(folder / f"{prefix}-bin", path))
            yield site
        finally:
            site.close()
