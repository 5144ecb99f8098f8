"""Controllers of actions over topics in memory, one after another, with an executor and a person."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tests.pipeline.actions.kit import CLUSTER, JOB, KINDS, T0, ScriptedLadder
from tocsin.pipeline.actions.config import ControllerConfig
from tocsin.pipeline.actions.controller import ActionController
from tocsin.pipeline.actions.ladder import Ladder
from tocsin.pipeline.identity.action_signatures import AckChecker, AckSigner, ActionChecker, ActionSigner
from tocsin.pipeline.identity.message_signatures import new_signing_key, public_half
from tocsin.pipeline.kafka.action_work import ActionParties, ActionWork
from tocsin.pipeline.lab.testing.seats import MemorySeat, MemorySeats
from tocsin.pipeline.runtime.flink.outputs import Output
from tocsin.pipeline.stores.base import JobStatus
from tocsin.pipeline.stores.report_codec import encode_status
from tocsin.schemas.action_codec import encode_ack, encode_event
from tocsin.schemas.action_events import Ack, AckKind, ActionEvent, ExecutorHeard, JobFacts
from tocsin.schemas.actions import Action
from tocsin.schemas.cloudevents import encode_verdict
from tocsin.schemas.credentials import Credential, Role
from tocsin.schemas.job_key import JobKey
from tocsin.schemas.kafka.topics import ACTION_ACKS, ACTIONS, DEAD_LETTER, EVENTS, JOB_STATUS, NOTES_TAKEN, VERDICTS
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import ActionKind, Verdict

CONTROLLER = new_signing_key(Role.CONTROLLER, "controller", 1)
EXECUTOR = new_signing_key(Role.EXECUTOR, "slurm", 1)
ANN = new_signing_key(Role.OPERATOR, "ann", 1)
KEYS = tuple(map(public_half, (CONTROLLER, EXECUTOR, ANN)))
HOSTS = tuple(f"n{index}" for index in range(40))
SPARED = ControllerConfig(is_dry_run=False, spare_count=8)


def status_of(ts_ns: int, hosts: Iterable[str] = HOSTS, job: JobKey = JOB, step: int = 5) -> bytes:
    """The state of an attempt, as the Flink job writes it."""
    found = {host: {"last_seen_seconds": 0.0} for host in hosts}
    state = {
        "host_count": len(found),
        "rank_count": 0,
        "stepping_rank_count": 0,
        "max_step": 5,
        "ended": False,
        "superseded": False,
        "verdicts": [],
        "abstained": {},
        "hosts": found,
        "ranks": {str(n): {"host": host, "step": step, "last_seen_seconds": 0.0} for n, host in enumerate(found)},
    }
    return encode_status(JobStatus(job, ts_ns, True, state))


class ActionWorld:
    """The topics, and the controllers on one seat.

    Attributes:
        now_ns: time of all clocks.
        step: the step that all ranks made last.
        is_judging: whether the Flink job writes the state of the job.
        sent: all messages that were committed.
    """

    def __init__(self, config: ControllerConfig = SPARED, ladder: Callable[[], Ladder] = ScriptedLadder) -> None:
        self.seats = MemorySeats((VERDICTS, JOB_STATUS, EVENTS, ACTION_ACKS, NOTES_TAKEN))
        self.ladder, self.step = ladder, 5
        self.config, self.now_ns, self.is_judging = config, T0, True
        self.sent: list[Output] = []
        self._seq = 0
        self.begin()

    def begin(self) -> None:
        """Another process takes over; what the former one did not commit never happened."""
        seat = self.seat = MemorySeat(self.seats)
        self.seats.holder, seat.poll_count = seat, 10_000
        parties = ActionParties(ActionSigner(CONTROLLER), lambda: AckChecker(KEYS))
        self.work = ActionWork(
            lambda: ActionController(self.config, self.ladder()), parties, clock_ns=lambda: self.now_ns
        )
        self.work.begin(*seat.take_over())

    def run(self, seconds: int = 1, *, is_killed: bool = False) -> None:
        """Let time pass, with one look of the controller in each second; a killed one dies before its commit."""
        for _ in range(seconds):
            self.now_ns += NS_PER_SECOND
            if self.is_judging and self.now_ns // NS_PER_SECOND % 10 == 0:
                self.seats.write(JOB_STATUS, status_of(self.now_ns, step=self.step), timestamp_ns=self.now_ns)
            self.work.take(self.seat.poll(0.0))
            if is_killed:
                self.work.changes()
                self.work.outputs()
                self.begin()
                return
            if self.work.is_due():
                changes, outputs = self.work.changes(), self.work.outputs()
                self.seat.commit(outputs, changes)
                self.work.committed()
                self.sent += outputs

    def tell(self, told: Ack | ActionEvent, signer: Credential | None = EXECUTOR) -> tuple[bytes, bytes | None]:
        """Somebody says something about an action; return the bytes and the signature."""
        value = encode_ack(told) if isinstance(told, Ack) else encode_event(told)
        header = None if signer is None else AckSigner(signer).header(value)
        self.seats.write(ACTION_ACKS, value, timestamp_ns=self.now_ns, signature=header)
        return value, header

    def ack(self, action: Action, kind: AckKind, signer: Credential | None = EXECUTOR) -> tuple[bytes, bytes | None]:
        """The executor says something of an action."""
        self._seq += 1
        lease_ns = self.now_ns + 30 * NS_PER_SECOND if kind is AckKind.CLAIMED else 0
        ids = (action.action_id, action.target.job, kind, "slurm", action.epoch, self._seq, self.now_ns, lease_ns)
        return self.tell(Ack(*ids), signer)

    def settle(self) -> None:
        """The engine and an executor have been heard, and what was to be read is read."""
        self.alive()
        self.tell(JobFacts(JOB, self.now_ns, hosts=HOSTS))
        self.run(15)

    def alive(self) -> None:
        """The executor says that it lives."""
        self.tell(ExecutorHeard(CLUSTER, "slurm", KINDS, self.now_ns))

    def judge(self, verdict: Verdict) -> None:
        """The job's operators tell a verdict line."""
        self.seats.write(VERDICTS, encode_verdict(verdict), timestamp_ns=self.now_ns)

    def actions(self) -> list[Action]:
        """All committed changes of actions that are no pages, with their signatures checked, in order."""
        checker = ActionChecker(KEYS)
        lines = self.seats.log.get(ACTIONS, [])
        found = [checker.admit(one.value or b"", one.signature, self.now_ns) for one in lines]
        return [one for one in found if one.kind is not ActionKind.NOTIFY]

    def states(self) -> list[str]:
        """The states through which the actions went, in order."""
        return [one.state.value for one in self.actions()]

    def told(self) -> list[Output]:
        """What the jobs' operators were told of actions."""
        return [one for one in self.sent if one.topic == EVENTS]

    def dead(self) -> list[str]:
        """Reasons of the dead letters."""
        return [one.headers["reason"].decode() for one in self.sent if one.topic == DEAD_LETTER]
