"""C1, C2, C6: records that break or fill whoever judges them."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

from tests.attacks.registry import Outcome, attack
from tests.conftest import ROOT
from tests.hostile_records import HOSTILE_RECORDS, exit_of_400_digits
from tests.pipeline.runtime.flink.test_poison import dead_letters
from tocsin.collectors.agent.datagrams import parse_datagram
from tocsin.pipeline.core.slices import SliceBundle
from tocsin.pipeline.runtime.job_pipeline import JobConfig, JobPipeline
from tocsin.schemas.errors import SchemaError
from tocsin.schemas.records import (
    NS_PER_SECOND,
    CollectiveBatch,
    CollectiveRecord,
    CommGroup,
    GroupKind,
    Groups,
    JobKey,
    JobRecord,
    RankPlace,
    Slice,
    Topology,
)
from tocsin.schemas.wire.codec import decode, encode
from tocsin.schemas.wire.validate import MAX_RANKS

_MAX_BYTES = 50_000_000
_NOW_NS = 1_800_000_000 * NS_PER_SECOND
_DATAGRAMS = {
    "world of 2^31-1": '"t":"hello","rank":0,"pid":1,"world_size":2147483647',
    "world of 1,000,001": '"t":"hello","rank":0,"pid":1,"world_size":1000001',
    "rank 2^31-1": '"t":"hello","rank":2147483647,"pid":1',
    "rank 1,000,000": '"t":"beat","rank":1000000,"step":1',
    "group of rank 2^31-1": '"t":"groups","rank":0,"groups":[{"comm_id":"w","kind":"world","ranks":[2147483647]}]',
    "group of the same rank twice": '"t":"groups","rank":0,"groups":[{"comm_id":"w","kind":"world","ranks":[0,0]}]',
    "step 2^62": f'"t":"step","rank":0,"step":{2**62},"dur":1.0',
    "step of 1e300 s": '"t":"step","rank":0,"step":1,"dur":1e300',
    "step of 10^400 s": f'"t":"step","rank":0,"step":1,"dur":1{"0" * 400}',
    "code 10^400": f'"t":"exit","rank":0,"pid":1,"code":1{"0" * 400}',
    "code of 5,000 digits": f'"t":"exit","rank":0,"pid":1,"code":{"9" * 5000}',
    "version 10^400": f'"t":"bye","rank":0,"v":1{"0" * 400}',
    "version of brackets": '"t":"bye","rank":0,"v":' + "[" * 900 + "]" * 900,
}


@attack("C1", "records that an operator cannot calculate with")
def refused_records() -> Outcome:
    """Each is refused where it is read, and its field is named."""
    passed = []
    for name, (field, make) in HOSTILE_RECORDS.items():
        try:
            decode(make())
        except SchemaError as error:
            if str(error).startswith(field):
                continue
        passed.append(name)
    return Outcome(len(HOSTILE_RECORDS), f"accepted, or refused without their field: {passed}", not passed)


@attack("C2", "datagrams that announce a world of two thousand million ranks")
def refused_datagrams() -> Outcome:
    """The agent's door has the codec's bounds."""
    passed = []
    for name, body in _DATAGRAMS.items():
        data = f'{{"v":1,"job":["c","j",0],"ts":{_NOW_NS},{body}}}'.encode()
        try:
            parse_datagram(data, _NOW_NS)
        except SchemaError:
            continue
        passed.append(name)
    return Outcome(len(_DATAGRAMS), f"accepted: {passed}", not passed)


@attack("C2", "776 bytes of a job that stands, with the largest world that is accepted")
def largest_world() -> Outcome:
    """The report's records, with a world size at the bound: the operators build nothing of its size."""
    job = JobKey("evil", "x", 0)
    start_ns = _NOW_NS
    records: tuple[JobRecord, ...] = (
        Topology(
            job, "h", start_ns, (RankPlace(0, "h", world_size=MAX_RANKS), RankPlace(1, "h", world_size=MAX_RANKS))
        ),
        Groups(job, "h", start_ns, (CommGroup("w", GroupKind.WORLD, (0, 1, MAX_RANKS - 1)),)),
    )
    sent = sum(len(encode(record)) for record in records)
    pipeline = JobPipeline(JobConfig(), job)
    tracemalloc.start()
    for second in range(40):
        end_ns = start_ns + (second + 1) * NS_PER_SECOND
        states = [CollectiveRecord(end_ns - 1, "state", rank, "w", "all_reduce", 7, 8, start_ns) for rank in (0, 1)]
        batch = CollectiveBatch(job, "h", end_ns - 1, tuple(states))
        own = (*records, batch) if second % 30 == 0 else (batch,)
        fast = Slice(job, end_ns - NS_PER_SECOND, end_ns, own)
        pipeline.on_bundle(SliceBundle(job, end_ns, fast, ()))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    effect = f"{sent} bytes and two states a second: {peak_bytes / 1e6:.0f} MB at most in 40 s"
    return Outcome(1, effect, peak_bytes < _MAX_BYTES)


@attack("C6", "an exit code of 400 digits through the functions that Flink calls")
def poison_in_flink() -> Outcome:
    """An exit code of 400 digits, by both keys: the window's function and the driver make a dead letter of it."""
    found = [dead_letters([exit_of_400_digits()], group) for group in ("all", "")]
    reasons = [dead_letter.headers["reason"].decode() for some in found for dead_letter in some]
    return Outcome(2, f"dead letters: {reasons}", reasons == ["undecodable"] * 2)


@attack("C6", "poison and dumps on a real Flink", slow=True)
def poison_on_a_cluster() -> Outcome:
    """As the report did it: the job restarts never, and the job beside it is judged as ever."""
    test = "tests/cli/cluster/test_flink_poison.py"
    command = [sys.executable, "-m", "pytest", "-n0", "-q", "-m", "slow", test]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    return Outcome(3, f"pytest {test}: {done.stdout.strip()[-200:]}", done.returncode == 0)
