"""A driver for played recordings gives the verdict lines of ``tocsin replay`` where ranks move to another host."""

from __future__ import annotations

import numpy as np
import pytest

from tests.pipeline.recording.kit import START_NS, manifest, write_folder
from tests.pipeline.recording.outside import Job, Tables, arrow, joined
from tests.pipeline.runtime.flink import stream
from tocsin.pipeline.recording.reader import read_recording
from tocsin.pipeline.recording.replay import ReplayConfig, replay, seconds_of
from tocsin.pipeline.recording.tables import Recording
from tocsin.pipeline.runtime.embedded.engine import EngineConfig, played
from tocsin.pipeline.runtime.flink.driver import DriverConfig
from tocsin.schemas.cloudevents import encode_verdict

END_SECONDS, MOVE_SECONDS = 60, 35


def moved() -> Tables:
    """Three hosts with one rank each; the first process of h2 ends, and h9 takes over its ranks."""
    first = Job(hosts=("h0", "h1", "h2"), bad="h2", gpus=1, seconds=MOVE_SECONDS - 10)
    second = Job(hosts=("h0", "h1", "h9"), gpus=1, begin=MOVE_SECONDS, seconds=END_SECONDS - MOVE_SECONDS, seed=2)
    one, two = first.tables(), second.tables()
    tables = {name: joined(one[name], two[name]) for name in ("topology", "host_metrics", "steps")}
    tables["topology"]["from_ns"] = np.repeat(np.array([START_NS, second.ns(-5)], np.int64), len(first.ranks))
    return tables | {"groups": one["groups"], "events": first.crash(MOVE_SECONDS - 11, victims=True)}


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """A recording whose rank 2 moves from h2 to h9."""
    folder = tmp_path_factory.mktemp("moved")
    return read_recording(write_folder(folder, arrow(moved()), reported=manifest(END_SECONDS)))


@pytest.mark.parametrize("is_player_allowed", [True, False])
def test_moved_ranks_in_a_shuffled_stream(
    recording: Recording, is_player_allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = played(EngineConfig()) if is_player_allowed else EngineConfig()
    config = DriverConfig(engine=engine, snapshot_seconds=20)
    monkeypatch.setattr(stream, "KEY", b"default/job")
    shuffled = ReplayConfig(shuffle_seed=3, repeat_count=2)
    records = [record for _, records in seconds_of(recording, shuffled) for record in records]

    found = stream.Stream(records, config=config).run().verdicts()

    wanted = [encode_verdict(one) for one in replay(recording, ReplayConfig())]
    assert wanted
    assert (found == wanted) is is_player_allowed  # a live engine hears the new host once the old one was silent
