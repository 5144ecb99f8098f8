"""The reader says exactly what is wrong: file, column, row; and takes everything that the format allows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline.recording.kit import START_NS, good_tables, manifest, seconds, write_folder
from tocsin.pipeline.recording.reader import read_recording
from tocsin.pipeline.recording.replay import replay_folder
from tocsin.pipeline.recording.stream import records_of
from tocsin.pipeline.recording.tables import TABLES, Text
from tocsin.schemas.errors import RecordingError
from tocsin.schemas.records import Event, StepBatch
from tocsin.schemas.wire.codec import encode

REQUIRED = [(name, column.name) for name, spec in TABLES.items() for column in spec.columns if column.required]
FLOATS_OF_INTS = [
    (name, column.name)
    for name, spec in TABLES.items()
    for column in spec.columns
    if column.kind.startswith("int") and column.name in good_tables()[name]
]
INT32_MAX = 2**31 - 1
FORMS = ["dictionary", "large", "large_dictionary", "wide_index", "unsigned_index", "twice"]
BROKEN = ["", "{", "[]", "7", "[" * 100_000, '{"start_ns": ' + "9" * 5000 + "}", "\ufeff{}"]


def error_of(folder: Path) -> RecordingError:
    """The error of reading a folder and making records of it."""
    with pytest.raises(RecordingError) as caught:
        list(records_of(read_recording(folder)))
    return caught.value


def wire(folder: Path) -> list[bytes]:
    """The records of a folder as bytes: NaN equals NaN."""
    return [encode(record) for record in records_of(read_recording(folder))]


def with_column(folder: Path, table: str, column: str, values: pa.Array) -> Path:
    tables = good_tables()
    tables[table][column] = values
    return write_folder(folder, tables)


def check(error: RecordingError, file: str, column: str, row: int | None, *words: str) -> None:
    assert (error.file, error.column, error.row) == (file, column, row), error
    assert str(error).startswith(f"{file}, column {column}" + ("" if row is None else f", row {row}:"))
    for word in words:
        assert word in str(error)


class TestTables:
    def test_a_good_folder_is_read(self, tmp_path: Path) -> None:
        recording = read_recording(write_folder(tmp_path, good_tables()))

        assert list(recording.tables) == list(TABLES)
        assert len(list(records_of(recording))) > 10

    @pytest.mark.parametrize(("table", "column"), REQUIRED)
    def test_a_missing_required_column(self, tmp_path: Path, table: str, column: str) -> None:
        tables = good_tables()
        del tables[table][column]

        check(error_of(write_folder(tmp_path, tables)), f"{table}.parquet", column, None, "missing")

    @pytest.mark.parametrize(("table", "column"), FLOATS_OF_INTS)
    def test_a_float_where_an_integer_must_be(self, tmp_path: Path, table: str, column: str) -> None:
        folder = with_column(tmp_path, table, column, pa.array([1.0, 2.0, 3.0]))

        check(error_of(folder), f"{table}.parquet", column, 0, "double", "must be int")

    @pytest.mark.parametrize(
        ("table", "column", "values", "words"),
        [
            ("host_metrics", "ts_ns", pa.array(["1", "2", "3"]), ("string", "int64")),
            ("steps", "ts_ns", pa.array([1, 2, 3], pa.timestamp("ns")), ("timestamp", "int64")),
            ("host_metrics", "host", pa.array([1, 2, 3]), ("int64", "string")),
            ("host_metrics", "host", pa.array([b"a", b"b", b"c"]), ("binary", "string")),
            ("host_metrics", "cpu_util_ratio", pa.array(["a", "b", "c"]), ("string", "float32")),
            ("host_metrics", "gpu", pa.array([True, False, True]), ("bool", "int8")),
            ("steps", "duration_seconds", pa.array([True, False, True]), ("bool", "float64")),
            ("steps", "loss", pa.array([[1.0], [2.0], [3.0]]), ("list", "float64")),
            ("probes", "payload", pa.array(["a", "b", "c"]), ("string", "binary")),
        ],
    )
    def test_a_wrong_type(
        self, tmp_path: Path, table: str, column: str, values: pa.Array, words: tuple[str, str]
    ) -> None:
        check(error_of(with_column(tmp_path, table, column, values)), f"{table}.parquet", column, 0, *words)

    @pytest.mark.parametrize(
        ("table", "column", "kind"),
        [
            ("topology", "rank", pa.int32()),
            ("topology", "host", pa.string()),
            ("host_metrics", "ts_ns", pa.int64()),
            ("host_metrics", "host", pa.string()),
            ("host_metrics", "gpu", pa.int8()),
            ("steps", "step", pa.int64()),
            ("events", "host", pa.string()),
        ],
    )
    def test_null_where_a_value_must_be(self, tmp_path: Path, table: str, column: str, kind: pa.DataType) -> None:
        values = good_tables()[table][column].to_pylist()
        folder = with_column(tmp_path, table, column, pa.array([values[0], None, values[2]], kind))

        check(error_of(folder), f"{table}.parquet", column, 1, "null")

    @pytest.mark.parametrize(
        ("table", "column", "values"),
        [
            ("topology", "rank", pa.array([0, INT32_MAX + 1, 1])),
            ("host_metrics", "gpu", pa.array([-1, 128, 0])),
            ("collectives", "channel", pa.array([0, 2**15, 0])),
            ("steps", "step", pa.array([0, 2**63, 0], pa.uint64())),
            ("topology", "dp", pa.array([None, 2**20, None], pa.uint32())),
        ],
    )
    def test_a_value_beyond_its_column(self, tmp_path: Path, table: str, column: str, values: pa.Array) -> None:
        check(error_of(with_column(tmp_path, table, column, values)), f"{table}.parquet", column, 1, "does not fit")

    @pytest.mark.parametrize("table", [name for name, spec in TABLES.items() if spec.time])
    def test_time_that_goes_backwards(self, tmp_path: Path, table: str) -> None:
        folder = with_column(tmp_path, table, "ts_ns", seconds(1, 3, 2))

        check(error_of(folder), f"{table}.parquet", "ts_ns", 2, "backwards")

    @pytest.mark.parametrize(
        ("table", "column", "values", "row", "word"),
        [
            ("topology", "rank", pa.array([0, 1, -2], pa.int32()), 2, "negative"),
            ("topology", "host", pa.array(["a", "", "c"]), 1, "not empty"),
            ("host_metrics", "host", pa.array(["a", "b", ""]), 2, "not empty"),
            ("groups", "rank", pa.array([0, -1, 2], pa.int32()), 1, "negative"),
            ("steps", "rank", pa.array([0, -1, 2], pa.int32()), 1, "negative"),
            ("steps", "step", pa.array([0, 1, -2], pa.int64()), 2, "negative"),
            ("steps", "duration_seconds", pa.array([0.5, -0.5, 0.5]), 1, "negative"),
            ("steps", "data_seconds", pa.array([0.5, 0.5, float("inf")]), 2, "finite"),
            ("collectives", "rank", pa.array([0, 1, -1], pa.int32()), 2, "negative"),
            ("collectives", "op_seq", pa.array([0, -5, 1]), 1, "at least -1"),
            ("collectives", "record", pa.array(["completion", "stat", "state"]), 1, "completion or state"),
            ("events", "source", pa.array(["kernel", "krnl", "job"]), 1, "startup"),
            ("events", "severity", pa.array(["info", "info", "bad"]), 2, "fatal"),
            ("events", "name", pa.array(["nan", "", "x"]), 1, "empty"),
            ("events", "payload", pa.array(["{}", "{}", "{broken"]), 2, "no JSON"),
            ("events", "payload", pa.array(["{}", "[1]", "{}"]), 1, "object"),
            ("events", "payload", pa.array(["{}", '{"a": 1' + "0" * 400 + "}", "{}"]), 1, "64 bit"),
            ("events", "payload", pa.array(["{}", "{}", '{"a": ' + "9" * 5_000 + "}"]), 2, "64 bit"),
            ("events", "rank", pa.array([0, 1, 1_000_000], pa.int32()), 2, "at most 999999"),
            ("topology", "rank", pa.array([0, 2**31 - 1, 2], pa.int32()), 1, "at most 999999"),
            ("groups", "rank", pa.array([0, 1, 1_000_000], pa.int32()), 2, "at most 999999"),
            ("steps", "rank", pa.array([0, 1, 1_000_000], pa.int32()), 2, "at most 999999"),
            ("steps", "step", pa.array([0, 10**15 + 1, 2], pa.int64()), 1, "at most 1000000000000000"),
            ("steps", "duration_seconds", pa.array([0.5, 1.7e308, 0.5]), 1, "at most 1e+07"),
            ("steps", "forward_seconds", pa.array([0.5, 0.5, 1e300]), 2, "at most 1e+07"),
            ("collectives", "rank", pa.array([0, 1_000_000, 1], pa.int32()), 1, "at most 999999"),
            ("collectives", "peer", pa.array([0, 1, 1_000_000], pa.int32()), 2, "at most 999999"),
            ("events", "payload", pa.array(["{}", "[" * 100_000, "{}"]), 1, "no JSON"),
            ("probes", "kind", pa.array(["stacks", "stacks", "guess"]), 2, "flight_recorder"),
            ("collectives", "end_ns", pa.array([0, 5, 0]), 1, "not before start_ns"),
            ("probes", "request_id", pa.array(["a", "", "c"]), 1, "not empty"),
            ("topology", "host", pa.array(["a", "b", "x" * 2000]), 2, "at most 1024 bytes"),
            ("groups", "comm_id", pa.array(["a", "b\0", "c"]), 1, "NUL"),
        ],
    )
    def test_a_value_that_may_not_be(
        self, tmp_path: Path, table: str, column: str, values: pa.Array, row: int, word: str
    ) -> None:
        check(error_of(with_column(tmp_path, table, column, values)), f"{table}.parquet", column, row, word)

    def test_text_that_is_no_utf8(self, tmp_path: Path) -> None:
        raw = pa.array([b"a", b"\xff\xfe", b"c"]).cast(pa.string(), safe=False)
        error = error_of(with_column(tmp_path, "host_metrics", "host", raw.view(pa.string())))

        assert (error.file, error.column) == ("host_metrics.parquet", "host")
        assert "UTF-8" in str(error)

    def test_two_columns_of_one_name(self, tmp_path: Path) -> None:
        rows = good_tables()["steps"]
        folder = write_folder(tmp_path, {})
        names = [*rows, "rank"]
        pq.write_table(pa.Table.from_arrays([*rows.values(), rows["rank"]], names=names), folder / "steps.parquet")

        check(error_of(folder), "steps.parquet", "rank", None, "twice")

    @pytest.mark.parametrize("kept_ratio", [0.0, 0.3, 0.9, 0.999])
    @pytest.mark.parametrize("table", list(TABLES))
    def test_a_file_cut_short(self, tmp_path: Path, table: str, kept_ratio: float) -> None:
        folder = write_folder(tmp_path, good_tables())
        path = folder / f"{table}.parquet"
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * kept_ratio)])
        error = error_of(folder)

        assert error.file == path.name
        assert "cannot be read as parquet" in str(error)

    def test_a_file_that_is_no_parquet(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path, good_tables())
        (folder / "steps.parquet").write_text("ts_ns,rank\n1,2\n")

        assert "steps.parquet: cannot be read as parquet" in str(error_of(folder))

    @settings(max_examples=60)
    @given(data=st.data())
    def test_a_damaged_file_is_an_error_or_is_read_never_a_crash(
        self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
    ) -> None:
        folder = write_folder(tmp_path_factory.mktemp("bad"), good_tables())
        path = folder / f"{data.draw(st.sampled_from(list(TABLES)))}.parquet"
        raw = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(raw)
        try:
            list(records_of(read_recording(folder)))
        except RecordingError as error:
            assert error.file == path.name  # noqa: PT017  # most damages are no error


class TestAllowed:
    def test_unknown_columns_are_ignored(self, tmp_path: Path) -> None:
        tables = good_tables()
        plain = wire(write_folder(tmp_path / "plain", tables))
        for rows in tables.values():
            rows["mood"] = pa.array([{"a": 1}, None, {"a": 2}])

        assert wire(write_folder(tmp_path / "more", tables)) == plain

    @pytest.mark.parametrize(
        "form", ["dictionary", "large", "large_dictionary", "wide_index", "unsigned_index", "twice"]
    )
    def test_texts_may_be_encoded_in_any_way(self, tmp_path: Path, form: str) -> None:
        tables = good_tables()
        plain = wire(write_folder(tmp_path / "plain", tables))
        for rows in tables.values():
            for name, column in rows.items():
                if pa.types.is_string(column.type):
                    rows[name] = encoded(column, form)

        assert wire(write_folder(tmp_path / form, tables)) == plain

    def test_smaller_numbers_and_several_row_groups(self, tmp_path: Path) -> None:
        tables = good_tables()
        plain = wire(write_folder(tmp_path / "plain", tables))
        folder = write_folder(tmp_path / "other", tables)
        for table, rows in tables.items():
            narrow = dict(rows)
            if "rank" in narrow:
                narrow["rank"] = narrow["rank"].cast(pa.int8())
            pq.write_table(pa.table(narrow), folder / f"{table}.parquet", row_group_size=1)

        assert wire(folder) == plain

    def test_columns_may_stand_in_any_order(self, tmp_path: Path) -> None:
        tables = good_tables()
        plain = wire(write_folder(tmp_path / "plain", tables))
        turned = {name: dict(reversed(rows.items())) for name, rows in tables.items()}

        assert wire(write_folder(tmp_path / "turned", turned)) == plain

    def test_a_null_column_is_an_absent_one(self, tmp_path: Path) -> None:
        tables = good_tables()
        plain = wire(write_folder(tmp_path / "plain", tables))
        tables["topology"]["leaf"] = pa.nulls(3)
        tables["topology"]["dp"] = pa.nulls(3)
        tables["steps"]["data_seconds"] = pa.nulls(3)
        tables["steps"]["grad_norm"] = pa.nulls(3)

        assert wire(write_folder(tmp_path / "null", tables)) == plain

    def test_nan_of_the_loss_is_evidence_and_null_is_not(self, tmp_path: Path) -> None:
        records = records_of(read_recording(write_folder(tmp_path, good_tables())))
        losses = [row.loss for record in records if isinstance(record, StepBatch) for row in record.rows]

        assert losses[:2] == [2.0, None]
        assert losses[2] is not None
        assert np.isnan(losses[2])

    def test_a_step_without_its_duration_is_left_out(self, tmp_path: Path) -> None:
        folder = with_column(tmp_path, "steps", "duration_seconds", pa.array([0.5, None, float("nan")]))
        records = records_of(read_recording(folder))

        assert [row.rank for record in records if isinstance(record, StepBatch) for row in record.rows] == [0]

    @pytest.mark.parametrize(
        ("name", "payload", "key"),
        [
            ("loader", '{"rows": "x"}', "rows"),
            ("ib_port", '{"port": "p", "state": "down", "rate_gbps": "400"}', "rate_gbps"),
            ("clocks_event", '{"reasons": "hw"}', "reasons"),
        ],
    )
    def test_a_payload_that_no_operator_can_calculate_with(
        self, tmp_path: Path, name: str, payload: str, key: str
    ) -> None:
        tables = good_tables()
        tables["events"]["name"] = pa.array(["nan", name, "x"])
        tables["events"]["payload"] = pa.array(["{}", payload, "{}"])
        folder = write_folder(tmp_path, tables)

        check(error_of(folder), "events.parquet", "payload", 1, key)

    @pytest.mark.parametrize("attempt", ['"1"', "[1]", "1e3", str(2**31), "1" + "0" * 400])
    def test_an_agents_status_of_an_attempt_that_is_none(self, tmp_path: Path, attempt: str) -> None:
        tables = good_tables()
        status = '{"clock_offset_ns": 0, "clock_error_ns": 0, "ranks_seen": [], "hook_present": true, '
        status += '"dropped_count": 0, "spooled_count": 0, "collectors": {}, "attempt": ' + attempt + "}"
        reported = {"ts_ns": seconds(1), "host": pa.array(["a"]), "status": pa.array([status])}
        folder = write_folder(tmp_path, {**tables, "agent_status": reported})

        check(error_of(folder), "agent_status.parquet", "status", 0, "attempt" if len(attempt) < 100 else "64 bit")

    def test_events_without_payload_column(self, tmp_path: Path) -> None:
        tables = good_tables()
        del tables["events"]["payload"]
        records = records_of(read_recording(write_folder(tmp_path, tables)))

        assert [dict(record.payload) for record in records if isinstance(record, Event)] == [{}, {}, {}]

    def test_empty_tables(self, tmp_path: Path) -> None:
        tables = {name: {key: column[:0] for key, column in rows.items()} for name, rows in good_tables().items()}
        folder = write_folder(tmp_path, tables)

        assert list(records_of(read_recording(folder))) == []
        assert replay_folder(folder) == []

    def test_a_folder_with_nothing_but_a_manifest(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path, {})

        assert read_recording(folder).tables == {}
        assert replay_folder(folder) == []

    def test_dictionaries_are_kept_as_codes(self, tmp_path: Path) -> None:
        host = read_recording(write_folder(tmp_path, good_tables())).tables["host_metrics"]["host"]

        assert isinstance(host, Text)
        assert host.to_list() == ["a", "b", "a"]


def encoded(column: pa.Array, form: str) -> pa.Array:
    if form == "large":
        return column.cast(pa.large_string())
    if form == "dictionary":
        return column.dictionary_encode()
    if form == "large_dictionary":
        return column.cast(pa.large_string()).dictionary_encode()
    if form == "twice":  # each row has its own entry
        return pa.DictionaryArray.from_arrays(pa.array(range(len(column)), pa.int8()), column)
    index = pa.uint32() if form == "unsigned_index" else pa.int64()
    return column.dictionary_encode().cast(pa.dictionary(index, pa.string()))


class TestJsonFiles:
    @pytest.mark.parametrize("field", ["format_version", "job_id", "attempt", "start_ns", "end_ns"])
    def test_a_manifest_without_a_field(self, tmp_path: Path, field: str) -> None:
        error = error_of(
            write_folder(tmp_path, {}, reported={key: value for key, value in manifest().items() if key != field})
        )

        assert (error.file, error.column) == ("manifest.json", field)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("format_version", 2),
            ("format_version", "1"),
            ("format_version", True),
            ("job_id", ""),
            ("job_id", 7),
            ("attempt", -1),
            ("attempt", 1.0),
            ("start_ns", -1),
            ("start_ns", 1.7e18),
            ("end_ns", START_NS - 1),
            ("end_ns", 2**63),
            ("end_ns", START_NS + 63 * 86_400 * 10**9),
            ("tick_seconds", 0),
            ("tick_seconds", "1"),
            ("tick_seconds", False),
            ("tick_seconds", float("nan")),
            ("tick_seconds", float("inf")),
            ("tick_seconds", 10**400),
            ("cluster", ""),
        ],
    )
    def test_a_manifest_with_a_wrong_field(self, tmp_path: Path, field: str, value: object) -> None:
        error = error_of(write_folder(tmp_path, {}, reported={**manifest(), field: value}))

        assert (error.file, error.column) == ("manifest.json", field)

    @pytest.mark.parametrize(
        "text", ["", "{", "[]", "7", "[" * 100_000, '{"start_ns": ' + "9" * 5000 + "}", "\ufeff{}"]
    )
    @pytest.mark.parametrize("file", ["manifest.json", "metrics.json", "truth.json"])
    def test_broken_json(self, tmp_path: Path, file: str, text: str) -> None:
        folder = write_folder(tmp_path, {})
        (folder / file).write_text(text, "utf-8")

        assert error_of(folder).file == file

    def test_bytes_that_are_no_text(self, tmp_path: Path) -> None:
        (write_folder(tmp_path, {}) / "manifest.json").write_bytes(b"\xff\xfe{")

        assert error_of(tmp_path).file == "manifest.json"

    def test_no_manifest_and_no_folder(self, tmp_path: Path) -> None:
        assert "a recording is a folder with a manifest" in str(error_of(tmp_path))
        assert "no such folder" in str(error_of(tmp_path / "absent"))

    @pytest.mark.parametrize(
        ("reported", "word"),
        [
            ({"cpu_util_ratio": {}}, "built-in"),
            ({"a_seconds": 7}, "object"),
            ({"a_seconds": {"bad": "up"}}, "high or low or both"),
            ({"a_seconds": {"scope": "rack"}}, "host or gpu"),
            ({"a_seconds": {"unit": 5}}, "unit = 5: must be a text"),
            ({"a_seconds": {"min": "0"}}, "number or null"),
            ({"a_seconds": {"max": 10**400}}, "number or null"),
            ({"a_seconds": {"min": 2, "max": 1}}, "not below"),
        ],
    )
    def test_a_wrong_metric_of_the_users(self, tmp_path: Path, reported: dict[str, Any], word: str) -> None:
        error = error_of(write_folder(tmp_path, {}, metrics=reported))

        assert (error.file, error.column) == ("metrics.json", next(iter(reported)))
        assert word in str(error)

    @pytest.mark.parametrize("name", ["ts_ns", "host", "gpu", "", "x" * 2000])
    def test_a_metric_of_the_users_needs_a_name_of_its_own(self, tmp_path: Path, name: str) -> None:
        error = error_of(write_folder(tmp_path, good_tables(), metrics={name: {"bad": "high"}}))

        assert error.file == "metrics.json"

    @pytest.mark.parametrize(
        ("truth", "column", "row"),
        [
            ({}, "faults", None),
            ({"faults": {}}, "faults", None),
            ({"faults": ["x"]}, "faults", 0),
            ({"faults": [{"suspects": [], "onset_ns": 1}]}, "faults.end_ns", 0),
            ({"faults": [{"suspects": [], "onset_ns": 1.5, "end_ns": 2}]}, "faults.onset_ns", 0),
            ({"faults": [{"suspects": ["a"], "onset_ns": 1, "end_ns": 2}]}, "faults.suspects", 0),
            ({"faults": [{"suspects": None, "onset_ns": 1, "end_ns": 2}]}, "faults.suspects", 0),
        ],
    )
    def test_a_wrong_truth(self, tmp_path: Path, truth: object, column: str, row: int | None) -> None:
        error = error_of(write_folder(tmp_path, {}, truth=truth))

        assert (error.file, error.column, error.row) == ("truth.json", column, row)

    def test_unknown_fields_are_ignored(self, tmp_path: Path) -> None:
        reported = manifest(mood="good", tick_seconds=5)
        recording = read_recording(write_folder(tmp_path, {}, reported=reported, truth={"faults": [], "by": "me"}))

        assert recording.manifest.tick_seconds == 5.0
        assert recording.truth is not None
        assert json.dumps(recording.truth["faults"]) == "[]"

    def test_a_users_metric_may_be_negative(self, tmp_path: Path) -> None:
        """Whatever its unit: a clock's offset is a number of seconds."""
        tables = good_tables()
        tables["host_metrics"]["clock_offset_seconds"] = pa.array([-0.5, 0.5, None], pa.float32())
        reported = {
            "clock_offset_seconds": {"unit": "seconds", "min": -1.0, "max": 1.0, "bad": "both", "scope": "host"}
        }
        columns = read_recording(write_folder(tmp_path, tables, metrics=reported)).tables["host_metrics"]

        assert np.asarray(columns["clock_offset_seconds"])[:2].tolist() == [-0.5, 0.5]
