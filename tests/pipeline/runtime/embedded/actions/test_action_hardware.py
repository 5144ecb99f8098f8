"""What hosts report of their hardware reaches the policy inside a running engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.pipeline.actions.kit import CLUSTER, JOB, T0
from tests.pipeline.actions.policy.samples import START_NS, event, ladder, seen, verdict
from tests.pipeline.runtime.embedded.actions.acting import Acting
from tocsin.pipeline.actions.config import ControllerConfig
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.schemas.action_events import Ack, AckKind, ExecutorHeard, JobFacts
from tocsin.schemas.actions import Action
from tocsin.schemas.records import NS_PER_SECOND, Event, StepBatch, StepRecord
from tocsin.schemas.verdicts import ActionKind, Verdict, VerdictState

LIVE = ControllerConfig(is_dry_run=False, may_shrink=True)
KINDS = (ActionKind.RESTART, ActionKind.PROBE, ActionKind.EVICT, ActionKind.DRAIN)


class Host:
    """An engine with the shipped policy, and a host whose kernel reports to it."""

    def __init__(self, folder: Path, config: ControllerConfig = LIVE) -> None:
        self.acting = Acting(folder, config, ladder=ladder())
        self.steps_count = 0
        self.engine = EmbeddedEngine(EngineConfig())
        self.engine.taps.append(self.acting.follower.tap)
        self.engine.begin(T0)

    def run(self, seconds: int) -> None:
        """Let time pass."""
        for _ in range(seconds // 10):
            self._tick(seconds=10)
        for _ in range(seconds % 10):
            self._tick()

    def report(self, name: str, payload: dict[str, object]) -> None:
        """The host reports an event now."""
        told = _moved(event(name, payload), self.acting.now_ns)
        self.engine.take_record(replace(told, ts_ns=self.acting.now_ns))
        self.run(3)

    def judge(self, found: Verdict) -> None:
        """The engine tells a verdict of now."""
        now_ns = self.acting.now_ns
        self._tick(
            replace(found, job=JOB, onset_ns=now_ns, detected_ns=now_ns, expires_ns=now_ns + 600 * NS_PER_SECOND)
        )

    def close(self, found: Verdict) -> None:
        """The engine closes a verdict."""
        now_ns = self.acting.now_ns
        times = replace(found, job=JOB, onset_ns=now_ns, detected_ns=now_ns, expires_ns=now_ns)
        self._tick(replace(times, update=1, state=VerdictState.RESOLVED))

    def end_job(self) -> None:
        """The job ends."""
        self.acting.now_ns += NS_PER_SECOND
        self.acting.follower.tell(JobFacts(JOB, self.acting.now_ns, is_over=True))

    def step(self, count: int) -> None:
        """Rank 0 on the host makes a step each second."""
        for _ in range(count):
            self.steps_count += 1
            now_ns = self.acting.now_ns
            row = StepRecord(now_ns, 0, self.steps_count, 1.0)
            self.engine.take_record(StepBatch(JOB, "n1", now_ns, (row,)))
            self._tick()

    def found(self) -> list[tuple[str, str, str]]:
        """Kind, state and rule of all actions that are no pages."""
        return [(one.kind.value, one.state.value, one.rule) for one in self.acting.wanted()]

    def probes(self) -> list[Action]:
        return [one for one in self.acting.wanted() if one.kind is ActionKind.PROBE]

    def _tick(self, *verdicts: Verdict, seconds: int = 1) -> None:
        if seconds > 1:
            self.acting.exchange(ExecutorHeard(CLUSTER, "slurm", KINDS, self.acting.now_ns))
            self.acting.follower.tell(JobFacts(JOB, self.acting.now_ns, hosts=("n1", "n2")))
        self.acting.tick(*verdicts, seconds=seconds)
        self.engine.tick(self.acting.now_ns)


def _moved(told: Event, now_ns: int) -> Event:
    return replace(told, job=JOB, ts_ns=now_ns + told.ts_ns - START_NS)


def test_a_repeated_code_of_user_programs_leads_to_a_probe_and_takes_no_machine(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.run(20)
    host.report("xid", {"code": 31})
    host.run(200)
    assert host.found() == []
    host.report("xid", {"code": 31})
    host.run(130)
    assert host.found() == [("probe", "waiting_approval", "user_code")]
    [probe] = host.probes()
    assert (probe.target.hosts, probe.reason, probe.detail) == (
        ("n1",),
        "job_runs",
        f"n1: job {JOB.job_id} works on it",
    )
    host.end_job()
    host.run(10)
    assert host.found() == [("probe", "approved", "user_code")]
    assert host.probes()[0].target.hosts == ("n1",)


def test_a_code_that_a_verdict_tells_of_leads_to_no_second_probe(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.run(20)
    host.report("xid", {"code": 13})
    host.run(200)
    host.report("xid", {"code": 13})
    host.judge(verdict("ecc_error", evidence=(seen("xid", "n1: XID 13: x"), seen("steps"))))
    host.run(130)
    assert [one.verdict_id for one in host.probes()] == ["ecc_error-n1-0"]


def test_two_network_alerts_in_five_minutes_evict_and_one_does_not(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.run(20)
    host.judge(verdict("nic_dropout", hosts=("n2",)))
    assert host.found() == []
    host.report("ib_port", {"port": "mlx5_0/1", "state": "down"})
    host.run(100)
    host.judge(verdict("nic_dropout"))
    assert host.found() == [("evict", "approved", "network_alert")]


def test_what_waits_for_a_verdict_survives_a_restart(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.run(20)
    for _ in range(2):
        host.report("xid", {"code": 31})
        host.run(70)
    again = Host(tmp_path)
    again.acting.now_ns = host.acting.now_ns
    again.engine.begin(host.acting.now_ns)
    again.run(130)
    assert [kind for kind, _, _ in again.found()] == ["probe"]


def test_a_machine_comes_back_after_quiet_steps_that_its_agent_reported(tmp_path: Path) -> None:
    host = Host(tmp_path, replace(LIVE, quiet_step_count=20))
    host.run(20)
    host.report("xid", {"code": 79})
    host.judge(verdict("gpu_card_drop"))
    (action,) = host.acting.wanted()
    for seq, kind in enumerate((AckKind.CLAIMED, AckKind.STARTED, AckKind.DONE), 1):
        lease_ns = host.acting.now_ns + 30 * NS_PER_SECOND if kind is AckKind.CLAIMED else 0
        ids = action.action_id, action.target.job, kind, "slurm", action.epoch, seq, host.acting.now_ns, lease_ns
        host.acting.exchange(Ack(*ids))
        host.run(1)
    host.step(30)
    assert [state for _, state, _ in host.found()] == ["done"], "the verdict stands"
    host.close(verdict("gpu_card_drop"))
    host.step(25)
    (action,) = host.acting.wanted()
    assert (action.state.value, action.reason) == ("undoing", "quiet_steps")
