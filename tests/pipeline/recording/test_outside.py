"""Recordings that outside programs write: the right host is named, or the reader says what is wrong and where."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.recording.kit import START_NS, manifest, write_folder
from tests.pipeline.recording.outside import (
    MOVE_SECONDS,
    Job,
    S,
    Tables,
    arrow,
    event_table,
    idle_host,
    joined,
    metric_table,
    moved,
    picked,
    rows_of,
)
from tocsin.pipeline.recording.import_warnings import notes_of
from tocsin.pipeline.recording.reader import read_recording
from tocsin.pipeline.recording.replay import replay_folder
from tocsin.pipeline.recording.stream import records_of
from tocsin.schemas.errors import RecordingError
from tocsin.schemas.records import StepBatch
from tocsin.schemas.verdicts import Verdict

FAULTS = ("slow", "stop", "unreachable")


@cache
def _drawn(fault: str) -> Tables:
    return Job(fault).tables()


def drawn(fault: str) -> Tables:
    """A job's tables, free to be changed."""
    return deepcopy(_drawn(fault))


def accused(verdicts: list[Verdict]) -> list[tuple[str, str]]:
    """(host, fault) of each verdict whose last line accuses somebody, as the format's ``score`` reads it."""
    last = {verdict.verdict_id: verdict for verdict in verdicts}.values()
    return sorted(
        (suspect.component.name, verdict.fault.value)
        for verdict in last
        if verdict.state.value != "cancelled" and verdict.fault.value != "degraded"
        for suspect in verdict.suspects
    )


def judged(folder: Path, tables: Tables, seconds: float = 240, **reported: Any) -> list[tuple[str, str]]:
    return accused(replay_folder(write_folder(folder, arrow(tables), reported=manifest(seconds, **reported))))


def wanted(fault: str, host: str = "h4") -> list[tuple[str, str]]:
    return [] if fault == "none" else [(host, "fail_slow" if fault == "slow" else "fail_stop")]


# -- what the format leaves open -----------------------------------------------------------


def least(tables: Tables) -> None:
    """Nothing but the required columns (and the metrics)."""
    keep = {
        "topology": ("rank", "host"),
        "groups": ("comm_id", "kind", "rank"),
        "steps": ("ts_ns", "rank", "step", "duration_seconds"),
    }
    for name, columns in keep.items():
        tables[name] = {column: tables[name][column] for column in columns}


def wide(tables: Tables) -> None:
    """Every integer int64, every float float64, texts as pandas categories write them."""
    for table in tables.values():
        for name, column in table.items():
            if isinstance(column, np.ndarray):
                table[name] = column.astype(np.int64 if column.dtype.kind == "i" else np.float64)
            elif name != "payload":
                table[name] = pa.array(column).dictionary_encode()


def narrow(tables: Tables) -> None:
    for name, column in tables["steps"].items():
        if column.dtype == np.float64:
            tables["steps"][name] = column.astype(np.float32)
    tables["steps"]["step"] = tables["steps"]["step"].astype(np.int32)
    tables["host_metrics"]["gpu_power_watts"] = pa.array(
        np.nan_to_num(tables["host_metrics"]["gpu_power_watts"]).astype(np.int32),
        mask=np.isnan(tables["host_metrics"]["gpu_power_watts"]),
    )


def extra(tables: Tables) -> None:
    """What pandas, and a program with needs of its own, adds."""
    for table in tables.values():
        count = len(next(iter(table.values())))
        table["__index_level_0__"] = np.arange(count)
        table["labels"] = [{"a": [1, 2]}] * count


def twice(tables: Tables) -> None:
    """Every row stands there two times."""
    for name in tables:
        tables[name] = picked(tables[name], np.repeat(np.arange(len(next(iter(tables[name].values())))), 2))


def holes(tables: Tables) -> None:
    """Lost samples, gaps of ten to thirty seconds, NaN and null at random."""
    rng = np.random.default_rng(5)
    metrics, hosts = tables["host_metrics"], np.array(tables["host_metrics"]["host"])
    keep = rng.random(len(hosts)) > 0.1
    for host, begin, end in (("h2", 40, 50), ("h3", 90, 120), ("h0", 200, 210)):
        seconds = (metrics["ts_ns"] - START_NS) / S
        keep &= ~((hosts == host) & (begin < seconds) & (seconds < end))
    tables["host_metrics"] = picked(metrics, keep)
    for name in ("data_seconds", "forward_seconds", "loss", "grad_norm"):
        column = tables["steps"][name]
        tables["steps"][name] = pa.array(column, mask=rng.random(len(column)) < 0.1)


def late_and_mute(tables: Tables) -> None:
    """h5 joins after 50 s, h1 never reports a metric."""
    metrics, hosts = tables["host_metrics"], np.array(tables["host_metrics"]["host"])
    late = (hosts == "h5") & (metrics["ts_ns"] < START_NS + 50 * S)
    tables["host_metrics"] = picked(metrics, ~late & (hosts != "h1"))


def other_events(tables: Tables) -> None:
    """Names that nobody knows accuse nobody, however loud."""
    rows = event_table(
        [
            (START_NS + 30 * S, "h2", -1, "job", "my_own_thing", "fatal", '{"a": 1}'),
            (START_NS + 60 * S, "h3", 6, "kernel", "weird", "error", ""),
        ]
    )
    tables["events"] = joined(rows, tables["events"]) if "events" in tables else rows


def empty_tables(tables: Tables) -> None:
    """Tables without rows beside those that have some; ``ops`` is none that replay reads."""
    texts, ints = {"record", "comm_id", "op_name"}, {"rank": pa.int32(), "channel": pa.int16()}
    names = ["ts_ns", "record", "rank", "comm_id", "op_name", "op_seq", "msg_bytes", "start_ns", "end_ns", "channel"]
    tables["collectives"] = {n: pa.array([], pa.string() if n in texts else ints.get(n, pa.int64())) for n in names}
    tables["ops"] = {"dp_rank": np.zeros(3)}


def no_groups(tables: Tables) -> None:
    del tables["groups"]


def spare(tables: Tables) -> None:
    """A machine that reports and belongs to nobody."""
    rows = [*rows_of(tables["host_metrics"]), *idle_host("spare", 0, 240)]
    tables["host_metrics"] = metric_table(rows)


def far_ranks(tables: Tables) -> None:
    """Numbers that neither begin at 0 nor are dense, and steps that go on from a checkpoint."""
    for name in ("topology", "groups", "steps", "events"):
        if name in tables:
            tables[name]["rank"] = tables[name]["rank"] * 7 + 1000
    tables["steps"]["step"] = tables["steps"]["step"] + 2**40


def history(tables: Tables) -> None:
    """Where h4's ranks were long before, written behind where they are."""
    now = tables["topology"]
    before = picked(now, [host == "h4" for host in now["host"]]) | {"host": ["old", "old"]}
    tables["topology"] = joined(now, before)
    tables["topology"]["from_ns"] = np.array([START_NS - 10 * S] * len(now["rank"]) + [START_NS - 999 * S] * 2)


VARIANTS: list[Callable[[Tables], None]] = [
    least,
    wide,
    narrow,
    extra,
    twice,
    holes,
    late_and_mute,
    other_events,
    empty_tables,
    no_groups,
    spare,
    far_ranks,
    history,
]


def quick_and_slow(rows: list[tuple[Any, ...]], quick: Callable[[int, tuple[Any, ...]], bool]) -> list[Any]:
    """Half a second each is too much for all of them: the others run with ``make test-slow``."""
    names = ["-".join(getattr(value, "__name__", str(value)) for value in row) for row in rows]
    marks = [() if quick(number, row) else (pytest.mark.slow,) for number, row in enumerate(rows)]
    return [pytest.param(*row, id=name, marks=mark) for row, name, mark in zip(rows, names, marks, strict=True)]


ALL = [*FAULTS, "none"]
GRID = quick_and_slow(
    [(change, fault) for change in VARIANTS for fault in ALL],
    lambda number, _: number % len(ALL) == number // len(ALL) % len(ALL),
)
MOVES = quick_and_slow(
    [(fault, attempt, crash) for fault in ALL for attempt in (False, True) for crash in (False, True)],
    lambda _, row: row[0] in ("slow", "none") and row[1:] == (False, True),
)


@pytest.mark.parametrize(("change", "fault"), GRID)
def test_the_right_host_is_named(tmp_path: Path, change: Callable[[Tables], None], fault: str) -> None:
    tables = drawn(fault)
    change(tables)

    assert judged(tmp_path, tables) == wanted(fault)


@pytest.mark.parametrize("fault", FAULTS)
def test_row_groups_and_compression_of_other_writers(tmp_path: Path, fault: str) -> None:
    write_folder(tmp_path, {}, reported=manifest(240))
    for name, table in arrow(drawn(fault)).items():
        pq.write_table(
            pa.table(table),
            tmp_path / f"{name}.parquet",
            row_group_size=777,
            compression="gzip",
            data_page_version="2.0",
        )

    assert accused(replay_folder(tmp_path)) == wanted(fault)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ALL)
@pytest.mark.parametrize(("tick", "seconds"), [(0.5, 240), (10, 900)])
def test_other_sampling_periods(tmp_path: Path, fault: str, tick: float, seconds: int) -> None:
    tables = Job(fault, tick=tick, seconds=seconds, onset=seconds - 200 if tick > 1 else 150).tables()

    assert judged(tmp_path, tables, seconds, tick_seconds=tick) == wanted(fault)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("without", ["steps", "host_metrics"])
def test_a_table_that_is_missing_leaves_what_the_others_tell(tmp_path: Path, fault: str, without: str) -> None:
    tables = drawn(fault)
    del tables[without]
    blind = fault == "unreachable" and without == "host_metrics"  # everybody just stops

    assert judged(tmp_path, tables) == ([] if blind else wanted(fault))


def test_without_a_topology_an_exit_names_what_broke(tmp_path: Path) -> None:
    """The exit is known by its rank, the broken card by its host: the same event speaks of both."""
    tables = drawn("stop")
    del tables["topology"], tables["groups"]
    write_folder(tmp_path, arrow(tables), reported=manifest(240))
    last = replay_folder(tmp_path)[-1]

    assert [suspect.component.name for suspect in last.suspects] in (["8"], ["h4"])
    assert last.cause == "gpu_card_drop"


def test_exits_that_know_only_their_host(tmp_path: Path) -> None:
    """Rank -1, no code: the severity says that it failed."""
    tables = drawn("stop")
    exits = event_table([(START_NS + 150 * S, "h4", -1, "scheduler", "exit", "fatal", '{"code": null}')])
    tables["events"] = exits

    assert judged(tmp_path, tables) == wanted("stop")


def test_a_phase_that_is_announced_for_no_rank_in_particular(tmp_path: Path) -> None:
    """A rank that stands for 40 s in an announced checkpoint of the whole job holds up nobody."""
    tables = drawn("none")
    steps = tables["steps"]
    stood = (steps["ts_ns"] > START_NS + 150 * S) & (steps["ts_ns"] < START_NS + 195 * S)
    tables["steps"] = picked(steps, ~stood)
    states = {
        "ts_ns": np.array([START_NS + second * S for second in range(153, 195, 3) for _ in range(11)]),
        "record": ["state"] * 14 * 11,
        "rank": np.array([rank for _ in range(14) for rank in range(12) if rank != 5], np.int32),
        "comm_id": ["world"] * 14 * 11,
        "op_name": ["all_reduce"] * 14 * 11,
        "op_seq": np.full(14 * 11, 150),
        "msg_bytes": np.full(14 * 11, 4),
        "start_ns": np.full(14 * 11, START_NS + 151 * S),
        "end_ns": np.zeros(14 * 11, np.int64),
    }
    tables["collectives"] = states

    assert judged(tmp_path / "untold", tables) == [("h2", "hang")]

    edges = [
        (START_NS + second * S, "h0", -1, "job", "phase", "info", edge)
        for second, edge in ((150, "begin"), (196, "end"))
    ]
    tables["events"] = event_table([(*row[:6], json.dumps({"phase": "checkpoint", "edge": row[6]})) for row in edges])
    assert judged(tmp_path / "reported", tables) == []


# -- the topology changes ------------------------------------------------------------------


@pytest.mark.parametrize(("fault", "attempt", "crash"), MOVES)
class TestMoves:
    def test_a_fault_after_the_move_names_the_new_host(
        self, tmp_path: Path, fault: str, *, attempt: bool, crash: bool
    ) -> None:
        """And the crash before it named the old one; the spare is not accused of it."""
        tables = moved(fault, attempt=attempt, crash=crash)
        before = [("h4", "fail_stop")] if crash else []

        assert judged(tmp_path, tables, MOVE_SECONDS + 240) == [*before, *wanted(fault, "h9")]

    def test_a_fault_on_a_host_that_stayed(self, tmp_path: Path, fault: str, *, attempt: bool, crash: bool) -> None:
        tables = moved(fault, attempt=attempt, crash=crash, bad="h2")
        before = [("h4", "fail_stop")] if crash else []

        assert sorted(judged(tmp_path, tables, MOVE_SECONDS + 240)) == sorted([*before, *wanted(fault, "h2")])

    def test_old_and_new_host_report_all_the_time(
        self, tmp_path: Path, fault: str, *, attempt: bool, crash: bool
    ) -> None:
        """The spare was idle before, the replaced one is idle afterwards: neither differs from its peers."""
        tables = moved(fault, attempt=attempt, crash=crash)
        rows = [*idle_host("h9", 0, MOVE_SECONDS), *idle_host("h4", MOVE_SECONDS - 15, MOVE_SECONDS + 240)]
        tables["host_metrics"] = metric_table([*rows_of(tables["host_metrics"]), *rows])
        before = [("h4", "fail_stop")] if crash else []

        assert judged(tmp_path, tables, MOVE_SECONDS + 240) == [*before, *wanted(fault, "h9")]


@pytest.mark.parametrize("fault", FAULTS)
def test_attempts_without_times_begin_where_the_steps_say(tmp_path: Path, fault: str) -> None:
    tables = moved(fault, attempt=True, crash=True)
    del tables["topology"]["from_ns"], tables["groups"]["from_ns"]
    folder = write_folder(tmp_path, arrow(tables), reported=manifest(MOVE_SECONDS + 240))
    batches = [record for record in records_of(read_recording(folder)) if isinstance(record, StepBatch)]
    places = {(record.job.attempt, record.host) for record in batches}

    assert {host for attempt, host in places if attempt == 0} == {f"h{index}" for index in range(6)}
    assert {host for attempt, host in places if attempt == 1} == {"h0", "h1", "h2", "h3", "h5", "h9"}
    assert accused(replay_folder(folder)) == [("h4", "fail_stop"), *wanted(fault, "h9")]


@pytest.mark.parametrize("fault", FAULTS)
def test_step_numbers_that_begin_again(tmp_path: Path, fault: str) -> None:
    """The second part of ``moved`` counts from 1 as the first did; here the host stays the same, too."""
    tables = moved(fault, crash=True, spare="h4", bad="h3")
    del tables["topology"]["from_ns"]
    tables["topology"] = picked(tables["topology"], slice(0, 12))

    assert judged(tmp_path, tables, MOVE_SECONDS + 240) == [*wanted(fault, "h3"), ("h4", "fail_stop")]


def test_a_swap_of_two_hosts(tmp_path: Path) -> None:
    """Each row of steps belongs to the host that its rank runs on then."""
    tables = drawn("none")
    now = tables["topology"]
    swap = {"h4": "h5", "h5": "h4"}
    tables["topology"] = joined(now, now | {"host": [swap.get(host, host) for host in now["host"]]})
    tables["topology"]["from_ns"] = np.repeat(np.array([START_NS, START_NS + 120 * S]), 12)
    folder = write_folder(tmp_path, arrow(tables), reported=manifest(240))
    hosts: dict[tuple[int, bool], str] = {}
    for record in records_of(read_recording(folder)):
        if isinstance(record, StepBatch):
            hosts |= {(row.rank, row.ts_ns > START_NS + 120 * S): record.host for row in record.rows}

    assert (hosts[8, False], hosts[8, True], hosts[10, False], hosts[10, True]) == ("h4", "h5", "h5", "h4")


def test_a_rank_in_two_places_at_once(tmp_path: Path) -> None:
    tables = drawn("none")
    tables["topology"]["rank"][3] = 4
    with pytest.raises(RecordingError, match=r"topology\.parquet, column host, row 4: rank 4 is on 'h1' and on 'h2'"):
        judged(tmp_path, tables)


# -- what is wrong, or out of place --------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "payload", "key"),
    [
        ("exit", {"code": "1"}, "code"),
        ("exit", {"code": 1, "signal": []}, "signal"),
        ("nan", {"step": {}}, "step"),
        ("stopped", {"edge": "begin", "stopped_ratio": True}, "stopped_ratio"),
        ("stall", {"edge": "begin", "beat_age_seconds": "old"}, "beat_age_seconds"),
        ("ib_port", {"state": 7}, "state"),
        ("ib_port", {"port": "mlx5_0/1", "state": "down", "rate_gbps": "400"}, "rate_gbps"),
        ("loader", {"rows": "x"}, "rows"),
    ],
)
def test_a_payload_whose_value_is_of_another_type(tmp_path: Path, name: str, payload: dict[str, Any], key: str) -> None:
    """It used to end the replay with a traceback, and a running engine with it."""
    rows = [(START_NS + S, "h1", 2, "process", name, "error", json.dumps(payload))]
    with pytest.raises(RecordingError, match=rf"events\.parquet, column payload, row 0: event\.payload\.{key} = "):
        judged(tmp_path, {**drawn("none"), "events": event_table(rows)})


@pytest.mark.parametrize("name", ["exit", "stopped", "stall", "xid", "ecc", "phase", "clocks_event", "ib_port"])
@pytest.mark.parametrize(
    "payload", ["", "{}", '{"code": null, "step": null, "count": null, "edge": null, "state": null}']
)
def test_a_payload_that_says_nothing_does_no_harm(tmp_path: Path, name: str, payload: str) -> None:
    rows = [(START_NS + 30 * S, "h1", 2, "process", name, "info", payload)]
    tables = {**drawn("none"), "events": event_table(rows)}

    assert judged(tmp_path, tables) == []


@pytest.mark.parametrize("name", ["steps.parquet", "topology.parquet", "metrics.json", "truth.json", "manifest.json"])
def test_something_else_in_the_place_of_a_file(tmp_path: Path, name: str) -> None:
    """A dataset of parts, a link whose target was not copied: not the same as a table that is absent."""
    for kind in ("folder", "link"):
        folder = write_folder(tmp_path / kind, arrow(drawn("none")), truth={"faults": []})
        (folder / name).unlink(missing_ok=True)
        if kind == "folder":
            (folder / name).mkdir()
        else:
            (folder / name).symlink_to("elsewhere")
        with pytest.raises(RecordingError, match=f"{name}: is a {kind}.*must be one file"):
            read_recording(folder)


class TestNotes:
    def notes(self, folder: Path, tables: Tables, **reported: Any) -> str:
        return "\n".join(
            notes_of(read_recording(write_folder(folder, arrow(tables), reported=manifest(240, **reported))))
        )

    def test_a_recording_without_oddities_has_none(self, tmp_path: Path) -> None:
        assert self.notes(tmp_path, drawn("none")) == ""

    def test_a_metric_that_is_declared_otherwise_than_it_is_written(self, tmp_path: Path) -> None:
        tables = drawn("none")
        tables["host_metrics"]["disk_latency"] = tables["host_metrics"]["cpu_util_ratio"]
        slow_disk = {
            "disk_latency_seconds": {"unit": "seconds", "min": 0.0, "max": 1.0, "bad": "high", "scope": "host"}
        }
        folder = write_folder(tmp_path, arrow(tables), reported=manifest(240), metrics=slow_disk)
        found = "\n".join(notes_of(read_recording(folder)))

        assert "metrics.json, disk_latency_seconds: host_metrics.parquet has no such column" in found
        assert "host_metrics.parquet, column disk_latency: no built-in metric, nor in metrics.json: left out" in found

    @pytest.mark.parametrize(("second", "since"), [(0, ""), (100, " from 99 s on"), (200, None)])
    def test_a_host_whose_rows_hold_no_sample(self, tmp_path: Path, second: int, since: str | None) -> None:
        tables = drawn("none")
        metrics = tables["host_metrics"]
        silent = np.array([host == "h1" for host in metrics["host"]]) & (metrics["ts_ns"] >= START_NS + second * S)
        assert silent.any()
        for name, values in metrics.items():
            if np.issubdtype(np.asarray(values).dtype, np.floating):
                metrics[name] = np.where(silent, np.nan, values)
        found = self.notes(tmp_path, tables)

        reported = f"host_metrics.parquet: h1 has rows and not one sample{since} (monitoring_lost)"
        assert (reported in found) if since is not None else "not one sample" not in found

    def test_rows_after_the_end(self, tmp_path: Path) -> None:
        tables = drawn("none")
        late = int((tables["steps"]["ts_ns"] >= START_NS + 100 * S).sum())
        first = len(tables["steps"]["ts_ns"]) - late
        found = self.notes(tmp_path, tables, end_ns=START_NS + 100 * S)

        assert f"steps.parquet, column ts_ns, row {first}: {tables['steps']['ts_ns'][first]} lies after end_ns" in found
        assert f"; {late} of {len(tables['steps']['ts_ns'])} rows do and are left out" in found

    def test_times_in_milliseconds(self, tmp_path: Path) -> None:
        tables = drawn("none")
        tables["steps"]["ts_ns"] = tables["steps"]["ts_ns"] // 1_000_000

        assert "steps.parquet, column ts_ns, row 0: 17000000" in self.notes(tmp_path, tables)
        assert judged(tmp_path, tables) == []

    @pytest.mark.parametrize(
        ("tick", "words"),
        [
            (0.1, "come every 1 s and tick_seconds says 0.1: the ticks between count as missing"),
            (10.0, "come every 1 s and tick_seconds says 10: of several in a tick the last is taken"),
        ],
    )
    def test_a_sampling_period_that_is_not_so(self, tmp_path: Path, tick: float, words: str) -> None:
        assert words in self.notes(tmp_path, drawn("none"), tick_seconds=tick)

    def test_two_values_for_one_tick(self, tmp_path: Path) -> None:
        tables = drawn("none")
        twice(tables)

        assert "rows share a tick with another: the last is taken" in self.notes(tmp_path, tables)

    def test_a_metric_in_rows_where_it_does_not_belong(self, tmp_path: Path) -> None:
        """A host's mean of its GPUs, a GPU's share of the host's traffic."""
        tables = drawn("none")
        metrics = tables["host_metrics"]
        of_host = metrics["gpu"] < 0
        metrics["gpu_util_ratio"] = np.where(of_host, 0.9, metrics["gpu_util_ratio"])
        metrics["cpu_util_ratio"] = np.full(len(of_host), 0.3)
        found = self.notes(tmp_path, tables)

        assert f"column gpu_util_ratio: {of_host.sum()} values stand in rows whose gpu is not from 0 on" in found
        assert f"column cpu_util_ratio: {(~of_host).sum()} values stand in rows whose gpu is not -1" in found

    def test_samples_that_cannot_be(self, tmp_path: Path) -> None:
        """A driver's error number, a counter that wrapped: no sample, and nobody is accused of them."""
        tables = drawn("none")
        metrics = tables["host_metrics"]
        of_host = np.flatnonzero(metrics["gpu"] < 0)
        metrics["rdma_bytes_per_second"] = metrics["rdma_bytes_per_second"].copy()
        metrics["rdma_bytes_per_second"][of_host[300]] = 1.8446744e19
        metrics["cpu_util_ratio"] = metrics["cpu_util_ratio"].copy()
        metrics["cpu_util_ratio"][of_host[[200, 400]]] = 255.0
        known = {name: int(np.isfinite(metrics[name]).sum()) for name in ("cpu_util_ratio", "rdma_bytes_per_second")}
        found = self.notes(tmp_path, tables)

        assert (
            f"column cpu_util_ratio, row {of_host[200]}: 255 cannot be (0 to 2); 2 of {known['cpu_util_ratio']} samples"
            in found
        )
        assert f"1.84467e+19 cannot be (0 to 1e+14); 1 of {known['rdma_bytes_per_second']} samples" in found
        assert judged(tmp_path, tables) == []

    def test_steps_without_duration(self, tmp_path: Path) -> None:
        tables = drawn("none")
        tables["steps"]["duration_seconds"] = tables["steps"]["duration_seconds"].copy()
        tables["steps"]["duration_seconds"][:5] = np.nan

        assert "duration_seconds: 5 steps without a duration are left out" in self.notes(tmp_path, tables)

    def test_names_that_the_topology_does_not_know(self, tmp_path: Path) -> None:
        tables = drawn("none")
        tables["host_metrics"]["host"] = [f"{host}.example" for host in tables["host_metrics"]["host"]]
        tables["steps"]["rank"] = tables["steps"]["rank"] + 1
        found = self.notes(tmp_path, tables)

        assert "column host: h0.example, h1.example, h2.example (of 6) are not in topology.parquet" in found
        assert "steps.parquet, column rank: 12 is not in topology.parquet" in found
