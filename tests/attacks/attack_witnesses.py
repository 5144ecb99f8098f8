"""C4 and H5: what one host says of itself, or its program prints, takes no machine away and stops no job."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tests.attacks.registry import Outcome, attack
from tests.timelines import build_scenario
from tocsin.pipeline.lab.testing import FakeJob
from tocsin.schemas import events
from tocsin.schemas.records import Severity
from tocsin.schemas.verdicts import Verdict

HARD = frozenset({"drain", "evict", "replay"})
STOPS_ALL = frozenset({"restart", "rollback"})
WORDS = (
    "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "ncclUnhandledCudaError: cudaErrorECCUncorrectable",
    "NVML: GPU is lost",
    "RuntimeError: No CUDA-capable device is detected",
    "NCCL WARN NET/IB : Got async event : port error",
    "CUDA error: cudaErrorNvlinkUncorrectable",
    "GPU execution failed",
)
PROGRAM_XIDS = (13, 31, 43, 45)
_SHAPE = {"rank_count": 6, "step_seconds": 0.5}


def _lose_gpu_and_exit(job: FakeJob, rank: int) -> None:
    """What an agent that lies sends: the driver lost a GPU, and its rank ended. The rank works on."""
    job.event(rank, events.GPU_LOST, Severity.FATAL, uuid=f"GPU-{rank}", text="NVML: lost")
    job.event(rank, events.EXIT, Severity.FATAL, code=1, signal=0, stderr_tail=WORDS[0])


def _proposed(verdicts: Iterable[Verdict], actions: frozenset[str]) -> list[str]:
    return sorted(
        {
            f"{verdict.action.value} {suspect.component.name}"
            for verdict in verdicts
            for suspect in verdict.suspects
            if verdict.action.value in actions
        }
    )


def _outcome(tries: int, found: list[str], what: str = "no machine was to be taken away") -> Outcome:
    return Outcome(tries, ", ".join(found) if found else what, held=not found)


@attack("C4", "two forged events of one host, once and again each second")
def two_events() -> Outcome:
    """A lost GPU and an exit, told by the host's own agent, while all steps go on."""
    found: list[str] = []
    for times in (1, 25):
        scenario, job = build_scenario(**_SHAPE)
        for second in range(times):
            scenario.at(20 + second).inject(_lose_gpu_and_exit, job, 5)
        found += _proposed(scenario.run(50).verdicts, HARD)
    return _outcome(26, found)


@attack("C4", "two forged events of host after host, 14 s apart")
def host_after_host() -> Outcome:
    """Each host lies in turn: six of eight healthy machines were to be evicted so."""
    scenario, job = build_scenario(**_SHAPE)
    for rank in range(6):
        scenario.at(20 + 14 * rank).inject(_lose_gpu_and_exit, job, rank)
    return _outcome(6, _proposed(scenario.run(115).verdicts, HARD))


@attack("C4", "one forged NaN rolls no job back")
def one_nan() -> Outcome:
    """A number that one host alone lost, while the others keep theirs; and what really dies after it is named."""
    scenario, job = build_scenario(**_SHAPE)
    scenario.at(20).inject(job.event, 5, events.NAN, Severity.ERROR, step=job.step + 30, what="local_grad", value="nan")
    scenario.at(40).inject(job.kill, 3)
    verdicts = scenario.run(50).verdicts
    found = _proposed([one for one in verdicts if one.fault.value == "silent_corruption"], HARD | STOPS_ALL)
    named = any("n03" in [suspect.component.name for suspect in one.suspects] for one in verdicts)
    return _outcome(1, found if named else [*found, "a rank that was killed later was not named"])


@attack("H5", "a program prints that its machine is broken and exits")
def printed_words() -> Outcome:
    """Its peers lose their connections: the job is restarted, and no machine is taken away."""
    found: list[str] = []
    for words in WORDS:
        scenario, job = build_scenario(**_SHAPE)
        scenario.at(10).inject(job.kill, 5, signal=0, code=1, stderr=words)
        found += _proposed(scenario.run(16).verdicts, HARD)
    return _outcome(len(WORDS), found)


@attack("H5", "a program prints it, then the next one")
def printed_by_one_after_another() -> Outcome:
    """Rank after rank prints the words and exits, and makes steps again."""
    scenario, job = build_scenario(**_SHAPE)
    for count, rank in enumerate((5, 2, 4)):
        scenario.at(10 + 12 * count).inject(
            job.event, rank, events.EXIT, Severity.FATAL, code=1, signal=0, stderr_tail=WORDS[0]
        )
    return _outcome(3, _proposed(scenario.run(50).verdicts, HARD))


def _program_xids(job: FakeJob, kill: Callable[..., None], code: int) -> None:
    job.event(5, events.XID, Severity.ERROR, code=code)
    kill(5, signal=0, code=1, stderr=WORDS[0])


@attack("H5", "XIDs that a program can cause")
def program_xids() -> Outcome:
    """13, 31, 43, 45 are no hardware event, though the kernel tells them: a bad kernel of the user's causes them."""
    found: list[str] = []
    for code in PROGRAM_XIDS:
        scenario, job = build_scenario(**_SHAPE)
        scenario.at(10).inject(_program_xids, job, job.kill, code)
        found += _proposed(scenario.run(16).verdicts, HARD)
    return _outcome(len(PROGRAM_XIDS), found)


@attack("H5", "one host's silence")
def one_silence() -> Outcome:
    """An agent is killed while its rank works on."""
    scenario, job = build_scenario(**_SHAPE)
    scenario.at(20).inject(job.kill_agent, 5)
    return _outcome(1, _proposed(scenario.run(90).verdicts, HARD | STOPS_ALL))
