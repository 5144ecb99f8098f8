"""``tocsin startup JOB``: the starts of a job from the database, and what starts took of a cluster's days."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.pipeline.stores.test_attempt_starts import BEGAN_NS, ENV, JOB, MIDNIGHT_NS, STARTED
from tocsin.cli.main import main
from tocsin.cli.paths import database_folder
from tocsin.pipeline.stores.attempt_times import AttemptTime, TimePart
from tocsin.pipeline.stores.chdb_store import ChdbStore
from tocsin.schemas.records import NS_PER_SECOND as NS

MODEL = replace(
    ENV,
    stage="model_init",
    begin_ns=BEGAN_NS + 200 * NS,
    end_ns=0,
    open_count=2,
    median_seconds=None,
    slowest_host="n1",
    slowest_begin_ns=BEGAN_NS + 200 * NS,
    slowest_end_ns=0,
    last_host="",
    saved_gpu_ns=0,
    own_gpu_ns=0,
    waiting_gpu_ns=0,
    cache_hit_ratio=None,
)


def run(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str]:
    status = main(["startup", *map(str, args)])
    captured = capsys.readouterr()
    return status, captured.out + captured.err


def test_a_waterfall_for_each_start_gpu_hours_by_cause_and_days(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ChdbStore(database_folder(tmp_path))
    store.migrate()
    try:
        status, text = run(capsys, "it's", "--data", tmp_path)
        assert (status, text.partition(":")[0]) == (1, "no start of job it's is known")
        assert run(capsys, "--days", "--data", tmp_path)[0] == 0
        began_ns = BEGAN_NS + 199 * NS
        running = replace(
            STARTED, job=replace(JOB, attempt=1), began_ns=began_ns, train_ns=0, told_ns=began_ns + 31 * NS
        )
        store.write_attempt_starts([STARTED, replace(running, stages=(MODEL,))])
        until_ns = MIDNIGHT_NS + 3600 * NS
        account = AttemptTime(JOB, BEGAN_NS, until_ns, until_ns, True, {TimePart.START_UP: 120 * NS}, gpu_count=16)
        store.write_attempt_times([account])
    finally:
        store.close()

    status, text = run(capsys, "it's", "--data", tmp_path)
    lines = text.splitlines()
    assert status == 0
    assert lines[0] == "attempt 0  2 hosts, 16 GPUs  120 s to training, 0.53 GPU-hours"
    assert lines[3].split() == [
        *("env_setup", "0.0", "s", "90.0", "s", "40.0", "s", "n2", "90.0", "s", "2", "0", "0", "50", "%", "hits"),
        *("0.29", "0.11", "n2", "(+0.22", "GPU-h)"),
    ]
    assert "in no stage: 0.13 GPU-h" in lines
    assert f"env_setup  {'#' * 45}" in lines
    [at] = [place for place, line in enumerate(lines) if line.startswith("attempt 1")]
    assert lines[at] == "attempt 1  2 hosts, 16 GPUs  starting for 31.0 s"
    assert lines[at + 3].split()[:9] == ["model_init", "1.0", "s", "30.0", "s", "…", "-", "n1", "30.0"]
    assert f"model_init  {' '}{'.' * 59}" in lines
    assert "all starts: 0.53 GPU-hours, 3.28 % of the 16.27 that the job has had" in lines
    assert [line.split(maxsplit=3)[-1] for line in lines[-3:]] == [
        *("env_setup", "in no stage", "waiting for the last host in env_setup"),
    ]

    found = json.loads(run(capsys, "it's", "--data", tmp_path, "--json")[1])
    assert [(one["attempt"], one["state"], one["start_up_seconds"]) for one in found["starts"]] == [
        (0, "trained", 120.0),
        (1, "starting", None),
    ]
    assert found["starts"][1]["stages"][0]["slowest_seconds"] == 30.0

    days = run(capsys, "--days", "--data", tmp_path)[1].splitlines()
    names = ["STARTS", "FAILED", "START-UP", "GPU-H", "FAILED", "GPU-H", "ALLOCATED", "GPU-H", "SHARE"]
    assert days[0].split() == ["DAY", "CLUSTER", *names]
    assert days[2].split() == ["2023-11-14", "c", "1", "0", "0.27", "0.00", "0.27", "100.00", "%"]
    told = json.loads(run(capsys, "--days", "--json", "--data", tmp_path)[1].splitlines()[1])
    assert (told["starts"], told["failed_starts"], told["failed_gpu_hours"]) == (1, 0, 0)


def test_a_start_that_failed_is_marked_and_counted_and_of_a_silent_job_only_what_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = replace(STARTED, train_ns=0, over_ns=STARTED.train_ns, is_failed=True)
    open_stage = replace(MODEL, begin_ns=BEGAN_NS + 100 * NS, slowest_begin_ns=BEGAN_NS + 100 * NS)
    untold = replace(STARTED, job=replace(JOB, job_id="untold"), train_ns=0, over_ns=BEGAN_NS + 90 * NS, stages=())
    account = AttemptTime(untold.job, BEGAN_NS, MIDNIGHT_NS, MIDNIGHT_NS, is_over=True, gpu_count=16)
    with closing(ChdbStore(database_folder(tmp_path))) as store:
        store.migrate()
        store.write_attempt_starts([replace(failed, told_ns=BEGAN_NS + 400 * NS, stages=(ENV, open_stage)), untold])
        store.write_attempt_times([account])

    lines = run(capsys, "it's", "--data", tmp_path)[1].splitlines()
    assert lines[0] == "attempt 0  2 hosts, 16 GPUs  failed after 120 s, 0.53 GPU-hours"
    assert lines[4].split()[:8] == ["model_init", "100", "s", "20.0", "s", "-", "n1", "20.0"]
    assert "all starts: 0.53 GPU-hours" in lines
    assert [line.split(maxsplit=3)[-1] for line in lines[-3:]] == [
        *("env_setup (failed)", "in no stage (failed)", "waiting for the last host in env_setup (failed)"),
    ]
    lines = run(capsys, "untold", "--data", tmp_path)[1].splitlines()
    assert lines[0].endswith(
        "never told a step; last heard of after 121 s; 90.0 s in stages that ended, 0.40 GPU-hours"
    )


def test_what_cannot_be_read_is_named_by_its_whole_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for missing in (tmp_path / "result_0", tmp_path / "result_0.txt"):
        status, text = run(capsys, missing)
        assert status != 0
        assert f"{missing}: cannot be read" in text
    for args in ((), ("job", "--days")):
        status, text = run(capsys, *args)
        assert status != 0
        assert "JOB|FILE" in text
