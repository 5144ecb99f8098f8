"""The dump parser: what differs between writers is levelled, what is broken is named."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.schemas.errors import DecodeError, FieldError, SchemaError, TruncatedError, VersionError
from tocsin.schemas.formats.flight_recorder import FlightGroup, parse_dump, rank_of_filename


def entry(**changes: Any) -> dict[str, Any]:
    return {
        "record_id": 7, "pg_id": 5, "process_group": ("39", "PIPELINE"), "collective_seq_id": 29,
        "p2p_seq_id": 14147, "op_id": 14176, "profiling_name": "nccl:send 0->1",
        "time_created_ns": 1758581237526848193, "input_sizes": [[2048, 1, 5120]],
        "input_dtypes": ["BFloat16"], "output_sizes": [[1]], "output_dtypes": ["BFloat16"],
        "state": "scheduled", "time_discovered_started_ns": None, "time_discovered_completed_ns": None,
        "retired": False, "timeout_ms": 180000, "is_p2p": True,
    } | changes  # fmt: skip


def dump(*entries: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "version": "2.9", "nccl_version": "2.27.3", "entries": list(entries),
        "pg_config": {"39": {"name": "39", "desc": "PIPELINE", "ranks": "[0, 8]"}},
        "pg_status": {5: {"last_enqueued_collective": 9, "last_started_collective": -1,
                          "last_completed_collective": 8}},
    } | changes  # fmt: skip


def test_reads_what_a_pickle_says() -> None:
    parsed = parse_dump(pickle.dumps(dump(entry())))

    assert parsed.comm_lib_version == "2.27.3"
    assert parsed.groups == (FlightGroup("39", "PIPELINE", (0, 8)),)
    (only,) = parsed.entries
    assert (only.group_name, only.p2p_seq, only.p2p_peer, only.is_p2p) == ("39", 14147, 1, True)
    assert (only.msg_bytes, only.dtype) == (2048 * 5120 * 2, "BFloat16")
    assert (only.started_ns, only.completed_ns) == (0, 0)


def test_a_real_dump_of_nccl_shows_the_collective_that_waits_behind_a_kernel() -> None:
    parsed = parse_dump((Path(__file__).parent / "reports/flight_recorder_nccl_stuck.pickle").read_bytes())

    assert parsed.groups == (FlightGroup("0", "default_pg", (0,)), FlightGroup("1", "tensor_parallel", (0,)))
    status = dict(parsed.status)[0]
    assert (status.last_enqueued_seq, status.last_completed_seq) == (31, 30)
    waits = [entry for entry in parsed.entries if not entry.retired]
    assert [(entry.name, entry.collective_seq, entry.state, entry.msg_bytes) for entry in waits] == [
        ("nccl:all_reduce", 31, "scheduled", 4 << 20)
    ]
    assert all(entry.completed_ns >= entry.started_ns > 0 for entry in parsed.entries if entry.retired)


def test_json_of_format_2_10_with_texts_for_numbers_says_the_same_as_the_pickle() -> None:
    raw = entry(
        record_id="7", pg_id="5", collective_seq_id="29", p2p_seq_id="14147",
        time_discovered_started_ns=0, time_discovered_completed_ns=0,
    )  # fmt: skip
    text = dump(raw, version="2.10")
    text["comm_lib_version"] = text.pop("nccl_version")
    text["pg_status"] = {"5": {key: str(value) for key, value in text["pg_status"][5].items()}}

    from_json = parse_dump(json.dumps(text).encode())
    from_pickle = parse_dump(pickle.dumps(dump(entry())))

    assert from_json.entries == from_pickle.entries
    assert from_json.status == from_pickle.status
    assert from_json.comm_lib_version == from_pickle.comm_lib_version


def test_entries_come_in_the_ranks_own_order() -> None:
    parsed = parse_dump(pickle.dumps(dump(entry(record_id=9), entry(record_id=3))))

    assert [e.record_id for e in parsed.entries] == [3, 9]


def test_retired_means_finished_for_gloo_and_timed_out_for_nccl() -> None:
    gloo, nccl, finished = parse_dump(
        pickle.dumps(
            dump(
                entry(record_id=1, profiling_name="gloo:all_reduce", is_p2p=False, retired=True),
                entry(record_id=2, profiling_name="nccl:all_reduce", is_p2p=False, retired=True),
                entry(record_id=3, state="completed", retired=True),
            )
        )
    ).entries

    assert (gloo.is_done, nccl.is_done, finished.is_done) == (True, False, True)


def test_a_dump_without_entries_or_with_unknown_fields_is_a_dump() -> None:
    bare = parse_dump(b'{"version": "2.10", "entries_dropped": 3, "pg_config": {"": {"name": "", "ranks": "[]"}}}')

    assert bare.entries == ()
    assert bare.groups == ()


class Bomb:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, ("bomb_went_off",)


def test_nothing_in_a_pickle_is_executed(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(DecodeError, match=r"posix\.mkdir"):
        parse_dump(pickle.dumps(dump(entry(state=Bomb()))))

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("raw", "error", "names"),
    [
        (b"", TruncatedError, "empty"),
        (pickle.dumps(dump(entry()))[:-30], DecodeError, "pickle"),
        (b'{"version": "2.10", "entries": [', DecodeError, "JSON"),
        (b"[1, 2]", DecodeError, "pickle"),
        (pickle.dumps([1]), DecodeError, "list"),
        (pickle.dumps({"entries": []}), FieldError, "version"),
        (pickle.dumps(dump(version="3.0")), VersionError, r"3\.0"),
        (
            pickle.dumps(dump(entry(collective_seq_id=1.5))),
            FieldError,
            r"entries\[0\].collective_seq_id = 1.5",
        ),
        (pickle.dumps(dump(entry(process_group=7))), FieldError, r"entries\[0\].process_group"),
        (pickle.dumps(dump(pg_config={"1": {"name": "1", "ranks": "[0, 0]"}})), FieldError, "each once"),
        (pickle.dumps(dump(pg_status={"x": {}})), FieldError, r"pg_status\[x\]"),
    ],
)
def test_what_is_broken_is_named(raw: bytes, error: type[SchemaError], names: str) -> None:
    with pytest.raises(error, match=names):
        parse_dump(raw)


@given(place=st.integers(0, 10_000), value=st.integers(0, 255), cut=st.integers(0, 400))
def test_any_damage_is_a_dump_or_a_schema_error(place: int, value: int, cut: int) -> None:
    whole = bytearray(pickle.dumps(dump(entry(), entry(record_id=8))))
    whole[place % len(whole)] = value
    try:
        parsed = parse_dump(bytes(whole[: len(whole) - cut]))
    except SchemaError:
        return
    assert parsed.version.startswith("2")


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("_dump_12", 12),
        ("comm_lib_trace_rank_0", 0),
        ("nccl_trace_node3_7", 7),
        ("fr_5.json", 5),
        ("r-11.pickle", 11),
    ],
)
def test_the_rank_stands_at_the_end_of_the_name(name: str, rank: int) -> None:
    assert rank_of_filename(name) == rank


@pytest.mark.parametrize("name", ["fault_injection.log", "dump", "dump_3.txt", "dump_99999999999"])
def test_a_name_without_a_rank_is_refused(name: str) -> None:
    with pytest.raises(FieldError, match="file name"):
        rank_of_filename(name)
