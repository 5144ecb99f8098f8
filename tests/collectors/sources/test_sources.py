"""The agent's flags choose the hardware sources; what they say arrives in frames and events of the right job."""

import argparse
from pathlib import Path

import pytest

from tests.collectors.agent.core_bench import Bench, events, of
from tocsin.cli import agent as command
from tocsin.collectors.agent.runner import checked
from tocsin.collectors.api import Collector, NothingHere
from tocsin.collectors.sources.nvml import NvmlCollector, NvmlConfig
from tocsin.collectors.sources.registry import make_collectors
from tocsin.collectors.testing.fake_nvml import fake_host
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.hardware import cause_of_event
from tocsin.schemas.records import Frame

A, B = ("c", "a", 0), ("c", "b", 0)


def sources(*flags: str) -> list[Collector]:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    made = make_collectors(command.source_settings(parser.parse_args(flags)))
    return [
        collector for collector in made if collector.name not in {"host", "host_facts", "pose_process_tree", "disk"}
    ]


def names(*flags: str) -> list[str]:
    return [collector.name for collector in sources(*flags)]


def test_sources_are_on_where_they_exist_and_can_be_switched_off() -> None:
    assert names() == ["nvml", "rdma", "kernel_log"]
    assert names("--nvml=off", "--rdma=off", "--kmsg-path=") == []
    assert names("--nvml=off", "--prometheus=http://a/", "--prometheus=http://b/") == [
        "rdma", "kernel_log", "prometheus", "prometheus_2",
    ]  # fmt: skip


def test_an_agent_that_poses_has_only_what_was_asked_for() -> None:
    assert names("--as-process-tree=1") == []
    assert names("--as-process-tree=1", "--nvml=fake:2", "--prometheus=http://a/") == ["nvml", "prometheus"]


def test_the_environment_sets_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOCSIN_NVML", "off")
    monkeypatch.setenv("TOCSIN_RDMA", "off")
    monkeypatch.setenv("TOCSIN_KMSG_PATH", "")
    monkeypatch.setenv("TOCSIN_PROMETHEUS", "http://a/ http://b/")
    assert names() == ["prometheus", "prometheus_2"]


@pytest.mark.parametrize("flag", ["--nvml=fake:", "--nvml=on", "--rdma=no", "--prometheus-seconds=0", "--nvml=fake:-1"])
def test_wrong_flags_are_said_at_start(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        sources(flag)
    assert "must be" in capsys.readouterr().err


def test_a_wrong_mapping_file_or_address_is_said_at_start(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text('{"columns": {"gpu_powr": {"names": ["x"]}}}')
    with pytest.raises(ConfigError, match=r"m\.json: gpu_powr"):
        sources("--prometheus=http://a/", f"--prometheus-mapping={tmp_path / 'm.json'}")
    with pytest.raises(ConfigError, match="can be read"):
        sources("--prometheus=http://a/", f"--prometheus-mapping={tmp_path / 'none.json'}")
    with pytest.raises(ConfigError, match="begins with http"):
        sources("--prometheus=file:///etc/passwd")


def test_where_nothing_is_every_source_says_so(tmp_path: Path) -> None:
    flags = (f"--sys-root={tmp_path}", f"--kmsg-path={tmp_path / 'none'}")
    for collector in sources(*flags):
        if collector.name != "nvml":  # this machine may have one
            with pytest.raises(NothingHere):
                collector.collect(10**9)


def test_from_nvml_to_the_frames_and_events_of_two_jobs(bench: Bench) -> None:
    fake = fake_host(4)
    collector = NvmlCollector(NvmlConfig(library=fake))
    bench.hello(0, A, gpu=1)
    bench.hook("hello", 0, B, pid=8, world_size=1, gpu_uuid=fake.gpus[2].uuid)

    def tick() -> None:
        bench.core.on_reading(bench.ts, checked(collector.collect(bench.ts)), bench.clock.read()[0])

    tick()
    frames = {frame.job.job_id: frame for frame in of(bench.runs(6), Frame)}
    assert frames["a"].gpu_uuids == (fake.gpus[1].uuid,)
    assert frames["b"].gpu_uuids == (fake.gpus[2].uuid,)

    fake.raise_xid(2, 94)
    fake.gpus[1].lost = True
    tick()
    found = bench.take()
    (xid,), (lost,) = events(found, "xid"), events(found, "gpu_lost")
    assert (xid.job.job_id, xid.rank, lost.job.job_id, lost.rank) == ("b", 0, "a", 0)
    meanings = [cause_of_event(event) for event in (xid, lost)]
    assert [meaning and (meaning.cause, meaning.accuses) for meaning in meanings] == [
        ("ecc_error", True),
        ("gpu_card_drop", True),
    ]
