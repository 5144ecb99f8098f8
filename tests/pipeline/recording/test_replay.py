"""The same recording gives the same bytes, in whatever order its records arrive and whoever is restarted."""

from __future__ import annotations

import itertools
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.pipeline.recording.kit import START_NS, manifest, metric_rows, seconds, write_folder
from tocsin.pipeline.lab.simulation.case import draw_case
from tocsin.pipeline.recording.reader import read_recording
from tocsin.pipeline.recording.replay import ReplayConfig, replay, replay_folder, verdict_lines
from tocsin.pipeline.recording.stream import records_of
from tocsin.pipeline.recording.tables import Recording, Text
from tocsin.pipeline.recording.writer import write_recording
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.schemas.records import NS_PER_SECOND, Frame, StepBatch
from tocsin.schemas.verdicts import Verdict
from tocsin.schemas.wire.codec import encode

CASES = [
    ("cuda_execution_error", 2),
    ("power_cap", 2),
    ("nan_gradient", 1),
    ("machine_unreachable", 2),
    ("healthy", 1),
]
KEYS = ["id", "job_id", "fault", "cause", "suspects", "onset_ns", "detected_ns", "confidence", "action", "reason"]
KEYS += ["evidence", "state", "update"]
OWN = "disk_latency_seconds"
OWN_TOLD = {OWN: {"unit": "seconds", "min": 0.0, "max": 1.0, "bad": "high", "scope": "host"}}

all_cases = pytest.mark.parametrize(("kind", "seed"), CASES)


@cache
def case(kind: str, seed: int) -> Recording:
    return draw_case(seed, 5, kind, duration_seconds=400.0).recording()


def lines_of(recording: Recording, **config: Any) -> str:
    return verdict_lines(replay(recording, ReplayConfig(**config)))


@cache
def plain_lines(kind: str, seed: int) -> str:
    return lines_of(case(kind, seed))


def without(recording: Recording, *tables: str) -> Recording:
    left = {name: columns for name, columns in recording.tables.items() if name not in tables}
    return Recording(recording.manifest, left, recording.user_metrics, recording.truth)


class TestDeterminism:
    @all_cases
    def test_twice_the_same_bytes_from_memory_and_from_the_folder(self, tmp_path: Path, kind: str, seed: int) -> None:
        write_recording(tmp_path / "r", case(kind, seed))

        assert lines_of(case(kind, seed)) == plain_lines(kind, seed)
        assert verdict_lines(replay_folder(tmp_path / "r")) == plain_lines(kind, seed)

    @all_cases
    @pytest.mark.parametrize("shuffle_seed", [1, 2])
    def test_shuffled_within_the_lateness(self, kind: str, seed: int, shuffle_seed: int) -> None:
        assert lines_of(case(kind, seed), shuffle_seed=shuffle_seed) == plain_lines(kind, seed)

    @all_cases
    def test_every_record_twice(self, kind: str, seed: int) -> None:
        assert lines_of(case(kind, seed), repeat_count=2) == plain_lines(kind, seed)

    def test_shuffled_and_three_times(self) -> None:
        assert lines_of(case("power_cap", 2), shuffle_seed=9, repeat_count=3) == plain_lines("power_cap", 2)

    @all_cases
    @pytest.mark.parametrize("part", [0.33, 0.7])
    def test_killed_and_restored_in_the_middle(self, kind: str, seed: int, part: float) -> None:
        recording = case(kind, seed)
        duration = (recording.manifest.end_ns - recording.manifest.start_ns) // NS_PER_SECOND

        assert restarted_lines(recording, int(duration * part)) == plain_lines(kind, seed)

    def test_the_cases_say_something(self) -> None:
        """An empty text is equal to an empty text."""
        assert sum(bool(plain_lines(kind, seed)) for kind, seed in CASES) >= 3


def restarted_lines(recording: Recording, kill_after_seconds: int) -> str:
    """Feed an engine by hand; replace it with one that is restored from its snapshot."""
    config = EngineConfig(history=None)
    engine = EmbeddedEngine(config)
    records = records_of(recording)
    held = next(records, None)
    verdicts: list[Verdict] = []
    first = recording.manifest.start_ns // NS_PER_SECOND + 1
    last = -(-recording.manifest.end_ns // NS_PER_SECOND) + 1
    for second in range(first, last + 1):
        while held is not None and held.ts_ns < second * NS_PER_SECOND:
            engine.take_record(held)
            held = next(records, None)
        if second == first + kill_after_seconds:  # what is held back by the lateness is in the snapshot
            parts = engine.snapshot()
            engine = EmbeddedEngine(config)
            engine.restore(parts)
        verdicts.extend(engine.tick(second * NS_PER_SECOND).verdicts)
    return verdict_lines(verdicts)


class TestLines:
    @all_cases
    def test_keys_order_and_times(self, kind: str, seed: int) -> None:
        recording = case(kind, seed)
        lines = [json.loads(text) for text in plain_lines(kind, seed).splitlines()]

        for line in lines:
            assert [key for key in line if key not in ("common", "witnesses", "costs_ratio")] == KEYS
            assert list(line["evidence"][0])[:5] == ["detector", "metric", "score", "start_ns", "end_ns"]
            assert line["job_id"] == recording.manifest.job_id
            assert line["onset_ns"] <= line["detected_ns"] <= recording.manifest.end_ns
        assert all(a["detected_ns"] <= b["detected_ns"] for a, b in itertools.pairwise(lines))

    def test_without_a_topology_a_suspect_is_a_rank(self) -> None:
        recording = without(case("nan_gradient", 2), "topology", "groups", "host_metrics")
        events = dict(recording.tables["events"])
        events["host"] = Text.of([""] * len(events["host"]))
        bare = Recording(recording.manifest, {**recording.tables, "events": events})
        suspects = [s for text in lines_of(bare).splitlines() for s in json.loads(text)["suspects"]]

        assert suspects
        for suspect in suspects:
            assert suspect == {"kind": "rank", "name": suspect["name"]}
            assert suspect["name"].isdigit()

    @pytest.mark.parametrize("left_out", ["steps", "events", "host_metrics", "groups"])
    def test_a_stage_that_lacks_its_input_goes_on(self, left_out: str) -> None:
        lines_of(without(case("power_cap", 2), left_out))

    def test_half_a_surrogate_pair_does_not_stop_the_file(self, tmp_path: Path) -> None:
        """JSON can carry it, UTF-8 cannot."""
        payload = '{"code": 1, "signal": 0, "stderr_tail": "ValueError: \\ud800\\u2028 \\u0085"}'
        events = {
            "ts_ns": seconds(20),
            "host": pa.array(["a"]),
            "rank": pa.array([0], pa.int32()),
            "source": pa.array(["process"]),
            "name": pa.array(["exit"]),
            "severity": pa.array(["error"]),
            "payload": pa.array([payload]),
        }
        topology = {"rank": pa.array([0, 1], pa.int32()), "host": pa.array(["a", "b"])}
        write_folder(tmp_path, {"events": events, "topology": topology})
        try:
            verdict_lines(replay_folder(tmp_path)).encode()
        except Exception as error:  # noqa: BLE001  # it must be one that names the row
            assert str(error).startswith("events.parquet, column payload, row 0")  # noqa: PT017


def steady(hosts: int, times: np.ndarray[Any, Any], seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(0.01, 0.001, (len(times), hosts)).clip(0)


class TestUserMetrics:
    @pytest.mark.parametrize(("tick_seconds", "length"), [(1, 480), (5, 1200)])
    def test_a_metric_that_deviates_on_one_host_names_it(self, tmp_path: Path, tick_seconds: int, length: int) -> None:
        times = np.arange(0.3, length, tick_seconds)
        values = steady(6, times)
        values[times > length / 2, 3] += 0.5
        reported = manifest(length, tick_seconds=tick_seconds)
        rows = metric_rows([f"h{i}" for i in range(6)], times, {OWN: values})
        verdicts = replay_folder(write_folder(tmp_path, {"host_metrics": rows}, reported=reported, metrics=OWN_TOLD))
        names = {suspect.component.name for verdict in verdicts for suspect in verdict.suspects}

        assert names == {"h3"}
        assert any(evidence.metric == OWN for evidence in verdicts[0].evidence)

    def test_an_undeclared_column_is_ignored(self, tmp_path: Path) -> None:
        times = np.arange(0.3, 480)
        values = steady(6, times)
        values[240:, 3] += 0.5
        rows = metric_rows([f"h{i}" for i in range(6)], times, {OWN: values})

        assert replay_folder(write_folder(tmp_path, {"host_metrics": rows}, reported=manifest(480))) == []


class TestMetrics:
    def test_rows_without_any_sample_are_silence(self, tmp_path: Path) -> None:
        times = np.arange(0.3, 120)
        values = steady(4, times) * 10
        values[60:, 2] = np.nan
        rows = metric_rows("abcd", times, {"cpu_util_ratio": values})
        keep = np.flatnonzero(np.isfinite(values.ravel()))
        there = {name: column.take(pa.array(keep)) for name, column in rows.items()}
        with_nan = read_recording(write_folder(tmp_path / "nan", {"host_metrics": rows}))
        without_rows = read_recording(write_folder(tmp_path / "absent", {"host_metrics": there}))

        assert [encode(r) for r in records_of(with_nan)] == [encode(r) for r in records_of(without_rows)]
        assert not any(r.host == "c" and r.ts_ns > START_NS + 65e9 for r in records_of(with_nan))

    def test_nothing_but_nan(self, tmp_path: Path) -> None:
        rows = metric_rows("abcd", np.arange(60.0), {"cpu_util_ratio": np.full((60, 4), np.nan)})
        folder = write_folder(tmp_path, {"host_metrics": rows})

        assert list(records_of(read_recording(folder))) == []
        assert replay_folder(folder) == []

    @pytest.mark.parametrize("value", [np.inf, -np.inf, 1e300, -5.0])
    def test_an_absurd_sample_does_no_harm(self, tmp_path: Path, value: float) -> None:
        times = np.arange(0.3, 240)
        values = steady(4, times) * 10
        values[100, 1] = value
        rows = metric_rows("abcd", times, {})
        rows["cpu_util_ratio"] = pa.array(values.ravel())

        assert replay_folder(write_folder(tmp_path, {"host_metrics": rows}, reported=manifest(240))) == []

    def test_the_samples_of_a_host_keep_their_place_whatever_the_jitter(self, tmp_path: Path) -> None:
        jitter = np.random.default_rng(1).uniform(-0.2, 0.2, 120)
        values = np.arange(120.0)[:, None] / 1000
        rows = metric_rows("a", np.sort(np.arange(120) + 0.02 + jitter) + 1, {"cpu_util_ratio": values})
        recording = read_recording(write_folder(tmp_path, {"host_metrics": rows}, reported=manifest(130)))
        frames = [record for record in records_of(recording) if isinstance(record, Frame)]
        samples = np.concatenate(
            [np.frombuffer(frame.host_matrix, "<f4").reshape(-1, frame.tick_count)[0] for frame in frames]
        )

        assert np.isfinite(samples).sum() == 120

    def test_two_gpus_that_share_a_uuid_are_two_gpus(self, tmp_path: Path) -> None:
        """``unknown`` is no key."""
        gpus = pa.array([0, 1], pa.int8())
        names = pa.array(["a", "a"])
        topology = {"rank": pa.array([0, 1]), "host": names, "gpu": gpus, "gpu_uuid": pa.array(["unknown"] * 2)}
        rows = {"ts_ns": seconds(1, 1), "host": names, "gpu": gpus, "gpu_util_ratio": pa.array([0.1, 0.9])}
        recording = read_recording(write_folder(tmp_path, {"topology": topology, "host_metrics": rows}))
        frame = next(record for record in records_of(recording) if isinstance(record, Frame))

        assert frame.gpu_uuids == ("a/gpu0", "a/gpu1")
        assert encode(frame)


class TestTime:
    def test_what_lies_long_before_the_recording_is_left_out(self, tmp_path: Path) -> None:
        times = np.arange(0.3, 60)
        rows = metric_rows("abcd", times, {"cpu_util_ratio": steady(4, times)})
        early = metric_rows("abcd", [-40_000_000.0], {"cpu_util_ratio": np.full((1, 4), 0.5)})
        both = {name: pa.concat_arrays([early[name], rows[name]]) for name in rows}
        ticks: list[int] = []
        replay_folder(write_folder(tmp_path, {"host_metrics": both}), None, ticks.append)

        assert len(ticks) <= 62

    def test_it_ticks_to_the_end_of_the_manifest(self, tmp_path: Path) -> None:
        rows = metric_rows("abcd", [1.0], {"cpu_util_ratio": np.full((1, 4), 0.5)})
        ticks: list[int] = []
        replay_folder(write_folder(tmp_path, {"host_metrics": rows}, reported=manifest(300)), None, ticks.append)

        assert ticks[-1] == START_NS + 301 * NS_PER_SECOND

    def test_a_new_attempt_on_another_host(self, tmp_path: Path) -> None:
        """Steps belong to the host that the rank runs on at their time, and to their attempt."""
        ranks = [0, 1, 0, 1]
        topology = {
            "rank": pa.array(ranks, pa.int32()),
            "host": pa.array(["a", "b", "a", "z"]),
            "from_ns": seconds(0, 0, 100, 100),
            "attempt": pa.array([0, 0, 1, 1], pa.int32()),
        }
        steps = {
            "ts_ns": seconds(50, 50, 150, 150),
            "rank": pa.array(ranks, pa.int32()),
            "step": pa.array([5, 5, 5, 5]),
            "duration_seconds": pa.array([0.5] * 4),
        }
        events = {
            "ts_ns": seconds(160),
            "host": pa.array(["z"]),
            "rank": pa.array([1], pa.int32()),
            "source": pa.array(["process"]),
            "name": pa.array(["nan"]),
            "severity": pa.array(["error"]),
        }
        recording = read_recording(
            write_folder(tmp_path, {"topology": topology, "steps": steps, "events": events}, reported=manifest(200))
        )
        found = [(r.job.attempt, r.host) for r in records_of(recording) if isinstance(r, StepBatch)]

        assert found == [(0, "a"), (0, "b"), (1, "a"), (1, "z")]
        assert [r.job.attempt for r in records_of(recording) if r.ts_ns == START_NS + 160 * NS_PER_SECOND] == [1]
