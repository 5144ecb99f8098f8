import contextlib
import json
import math
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.collectors.peer import datagram
from tocsin.collectors.agent.datagrams import _are_right, _completion, parse_datagram
from tocsin.collectors.agent.host_events import hook_event
from tocsin.collectors.agent.messages import (
    Beat,
    Exit,
    GroupList,
    Hello,
    StepDone,
)
from tocsin.schemas.errors import DecodeError, FieldError, SchemaError, UnknownKindError, VersionError
from tocsin.schemas.records import GroupKind, JobKey

NOW = time.time_ns()
COLL = ["w", "all_reduce", 4, 100, NOW - 10, NOW - 5]
STEP: dict[str, Any] = {"step": 7, "dur": 0.5, "data": None, "fwd": 0.1, "loss": "nan", "gn": 2, "coll": [COLL]}


def parse(kind: str, **keys: Any) -> Any:
    return parse_datagram(datagram(kind, ts=NOW, **keys), NOW).body


def test_a_step_becomes_a_record_with_its_completions() -> None:
    step = parse("step", **STEP, dropped=3, unknown_key="ignored")

    assert isinstance(step, StepDone)
    assert (step.record.step, step.record.duration_seconds, step.record.data_seconds) == (7, 0.5, None)
    assert step.record.loss is not None
    assert math.isnan(step.record.loss)
    assert step.record.grad_norm == 2.0
    assert step.completions[0][1] == "all_reduce"
    assert step.dropped_count == 3


def test_the_other_types_are_read() -> None:
    assert isinstance(parse("hello", pid=5, world_size=8), Hello)
    assert isinstance(parse("beat", step=-1, step_ns=0, inflight=[["w", "x", 1, -1, NOW]]), Beat)
    groups = parse("groups", groups=[{"comm_id": "w", "kind": "unheard_of", "ranks": [0, 1]}])
    assert isinstance(groups, GroupList)
    assert groups.groups[0].kind is GroupKind.OTHER


def test_the_job_is_the_key() -> None:
    assert parse_datagram(datagram("bye", 2, ("c", "j", 4)), NOW).job == JobKey("c", "j", 4)


def test_a_launcher_may_report_an_exit_that_is_no_ranks() -> None:
    found = parse("exit", rank=-1, pid=1, code=1, signal=0, stderr_tail="x" * 9000 + "\ud800\0")

    assert isinstance(found, Exit)
    assert len(found.stderr_tail) == 4096
    assert found.stderr_tail.endswith("x??")


@pytest.mark.parametrize(
    ("field", "keys"),
    [
        ("dur", {"dur": -1.0}),
        ("dur", {"dur": None}),
        ("dur", {"dur": float("nan")}),
        ("fwd", {"fwd": "0.1"}),
        ("step", {"step": True}),
        ("step", {"step": 1.5}),
        ("step", {"step": 2**63}),
        ("step", {"step": 10**15 + 1}),
        ("dur", {"dur": 10_000_001.0}),
        ("dur", {"dur": 10**400}),
        ("loss", {"loss": 10**400}),
        ("rank", {"rank": 1_000_000}),
        ("rank", {"rank": 10**400}),
        ("loss", {"loss": "big"}),
        ("loss", {"loss": []}),
        ("gn", {"gn": {}}),
        ("coll", {"coll": "x"}),
        ("coll", {"coll": [COLL] * 513}),
        ("coll[0]", {"coll": [COLL[:-1]]}),
        ("coll[0].comm_id", {"coll": [["", *COLL[1:]]]}),
        ("coll[0].comm_id", {"coll": [[["w"], *COLL[1:]]]}),
        ("coll[1].op_name", {"coll": [COLL, ["w", 7, *COLL[2:]]]}),
        ("coll[0].op_name", {"coll": [["w", "a\0b", *COLL[2:]]]}),
        ("coll[0].op_seq", {"coll": [["w", "x", -2, 1, NOW, NOW]]}),
        ("coll[0].msg_bytes", {"coll": [["w", "x", 1, None, NOW, NOW]]}),
        ("coll[0].start_ns", {"coll": [["w", "x", 1, 1, 5, NOW]]}),
        ("coll[0].end_ns", {"coll": [["w", "x", 1, 1, NOW, NOW - 1]]}),
        ("coll[0].end_ns", {"coll": [["w", "x", 1, 1, 0, 5]]}),
        ("rank", {"rank": -1}),
        ("dropped", {"dropped": -1}),
    ],
)
def test_a_wrong_value_is_named(field: str, keys: dict[str, Any]) -> None:
    whole = {"v": 1, "t": "step", "job": ["c", "j", 0], "rank": 0, "ts": NOW, **STEP, **keys}
    with pytest.raises(FieldError) as caught:
        parse_datagram(json.dumps(whole).encode(), NOW)

    assert caught.value.field == field


@pytest.mark.parametrize(
    ("kind", "field", "keys"),
    [
        ("hello", "world_size", {"pid": 1, "world_size": 2**31 - 1}),
        ("hello", "world_size", {"pid": 1, "world_size": 1_000_001}),
        ("hello", "rank", {"pid": 1, "rank": 2**31 - 1}),
        ("hello", "local_rank", {"pid": 1, "local_rank": 2**31 - 1}),
        ("hello", "gpu", {"pid": 1, "gpu": 128}),
        ("hello", "pp", {"pid": 1, "pp": 32_768}),
        ("model", "flops_per_step", {"flops_per_step": 1e31}),
        ("model", "parameters", {"parameters": -1}),
        ("model", "layers", {"layers": "nan"}),
        ("model", "gpu_name", {"gpu_name": 7}),
        ("loader", "step", {"step": -2}),
        ("loader", "source", {"source": 7}),
        ("loader", "fetch_seconds", {"fetch_seconds": -1.0}),
        ("loader", "tokens", {"tokens": -1}),
        ("loader", "rows", {"rows": 1.5}),
        ("nan", "step", {"step": 2**62, "what": "loss", "value": "nan"}),
        ("groups", "groups[0].ranks", {"groups": [{"comm_id": "w", "kind": "dp", "ranks": [1_000_000]}]}),
        ("groups", "groups[0].ranks", {"groups": [{"comm_id": "w", "kind": "dp", "ranks": [3, 3]}]}),
        ("exit", "code", {"pid": 1, "code": 10**400}),
    ],
)
def test_what_the_codec_would_refuse_is_refused_here(kind: str, field: str, keys: dict[str, Any]) -> None:
    whole = {"v": 1, "t": kind, "job": ["c", "j", 0], "rank": 0, "ts": NOW, **keys}
    with pytest.raises(FieldError) as caught:
        parse_datagram(json.dumps(whole).encode(), NOW)

    assert caught.value.field == field
    assert len(str(caught.value)) < 500


def test_the_largest_job_is_believed() -> None:
    hello = parse("hello", rank=999_999, pid=1, world_size=1_000_000, gpu=127, dp=32_767)

    assert hello.world_size == 1_000_000


@pytest.mark.parametrize(
    "job", [None, [], ["c", "j"], ["c", "", 0], ["", "j", 0], ["c", "j", -1], ["c", "j", "0"], [1, "j", 0]]
)
def test_a_wrong_job_is_named(job: Any) -> None:
    whole = {"v": 1, "t": "bye", "job": job, "rank": 0, "ts": NOW}
    with pytest.raises(FieldError, match="job"):
        parse_datagram(json.dumps(whole).encode(), NOW)


@pytest.mark.parametrize(
    ("cluster", "job_id"),
    [("c", "idle"), ("c", "fleet"), ("tocsin", "tocsin-canary"), ("tocsin", "watchdog"), ("tocsin", "test")],
)
def test_a_job_with_one_of_tocsins_own_names_is_refused_and_told_what_it_is(cluster: str, job_id: str) -> None:
    whole = {"v": 1, "t": "bye", "job": [cluster, job_id, 0], "rank": 0, "ts": NOW}
    with pytest.raises(FieldError, match=rf"job\[1\] = '{job_id}'.* tocsin's own .*set TOCSIN_JOB_ID to another"):
        parse_datagram(json.dumps(whole).encode(), NOW)


@pytest.mark.parametrize("job_id", ["test", "watchdog", "tocsin-canary", "Idle", "fleet-1"])
def test_another_cluster_s_job_may_have_such_a_name(job_id: str) -> None:
    whole = {"v": 1, "t": "bye", "job": ["c", job_id, 0], "rank": 0, "ts": NOW}
    assert parse_datagram(json.dumps(whole).encode(), NOW).job == JobKey("c", job_id)


@pytest.mark.parametrize("away_days", [-2, 2])
def test_a_time_more_than_a_day_away_is_wrong(away_days: int) -> None:
    with pytest.raises(FieldError, match="ts = "):
        parse_datagram(datagram("bye", ts=NOW + away_days * 86_400_000_000_000), NOW)


def test_what_is_no_datagram_says_so() -> None:
    with pytest.raises(DecodeError):
        parse_datagram(b"\xff\xfe", NOW)
    with pytest.raises(DecodeError):
        parse_datagram(b"[1]", NOW)
    with pytest.raises(DecodeError):
        parse_datagram(b"[" * 100_000, NOW)
    with pytest.raises(VersionError):
        parse_datagram(b'{"v": 2}', NOW)
    with pytest.raises(VersionError, match="version a list"):
        parse_datagram(b'{"v": ' + b"[" * 900 + b"]" * 900 + b"}", NOW)
    with pytest.raises(VersionError, match="version a int"):
        parse_datagram(b'{"v": 1' + b"0" * 400 + b"}", NOW)
    with pytest.raises(UnknownKindError):
        parse_datagram(datagram("song"), NOW)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)
KEYS = ["v", "t", "job", "rank", "ts", "step", "dur", "coll", "inflight", "last", "groups", "pid", "phase", "loss"]


@given(
    st.sampled_from(["hello", "groups", "step", "beat", "phase", "nan", "model", "loader", "bye", "exit", "dump"]),
    st.dictionaries(st.sampled_from(KEYS), json_values, max_size=4),
)
def test_whatever_comes_is_read_or_refused(kind: str, changed: dict[str, Any]) -> None:
    whole = {"v": 1, "t": kind, "job": ["c", "j", 0], "rank": 0, "ts": NOW, "step": 1, "pid": 1, **STEP, **changed}
    with contextlib.suppress(SchemaError):
        assert parse_datagram(json.dumps(whole).encode(), NOW).ts_ns


@pytest.mark.parametrize("value", [{}, [], None, 1.5, "big", True])
def test_a_value_that_is_finite_or_none_is_no_nan(value: Any) -> None:
    with pytest.raises(FieldError, match="value"):
        parse("nan", step=1, what="loss", value=value)


ODD_TEXTS: list[Any] = ["", "w", "x", "new", "a\0b", ["w"], []]
ODD_VALUES: list[Any] = [*ODD_TEXTS, True, None, -2, -1, 0, 1, 1.0, 5, NOW, NOW + 1, float(NOW), 2**63, {}]


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(ODD_VALUES)), max_size=3), st.sampled_from([5, 6, 7]))
def test_the_quick_look_at_completions_lets_nothing_pass_that_the_slow_one_would_refuse(
    changes: list[tuple[int, Any]], width: int
) -> None:
    right: list[Any] = ["w", "x", 1, 1, NOW, NOW, "more"]
    parse("step", **{**STEP, "coll": [right[:6]]})  # w and x are known now
    row = list(right)
    for place, value in changes:
        row[place] = value
    if _are_right([right[:6], row[:width]], NOW):
        assert width == 6
        _completion("coll", row[:6], NOW)


def test_the_quick_look_takes_what_is_usual() -> None:
    usual = [["w", "x", 1, 1, NOW, NOW], ["x", "w", -1, -1, 0, NOW + 1]]
    parse("step", **{**STEP, "coll": usual})

    assert _are_right(usual, NOW)
    assert not _are_right(usual * 257, NOW)
    assert not _are_right("wxwxwx", NOW)


VALID: list[tuple[str, dict[str, Any]]] = [
    ("hello", {"pid": 5, "world_size": 8, "gpu": 0, "gpu_uuid": "GPU-1", "dp": 1, "reply": "/r", "hook_version": "1"}),
    ("groups", {"groups": [{"comm_id": "w", "kind": "dp", "ranks": [0, 1]}]}),
    ("step", {**STEP, "dropped": 2}),
    (
        "beat",
        {"step": 1, "phase": "", "step_ns": 0, "inflight": [["w", "x", 1, -1, NOW]], "last": [["w", "x", 1, NOW]]},
    ),
    ("phase", {"phase": "checkpoint", "edge": "begin"}),
    ("nan", {"step": 3, "what": "loss", "value": "nan"}),
    ("model", {"flops_per_step": 3e21, "world_size": 8, "gpu_name": "NVIDIA H100 80GB HBM3"}),
    ("bye", {}),
    ("exit", {"pid": 1, "code": -9, "signal": 9, "stderr_tail": "x"}),
    ("dump", {"path": "/d", "request_id": "r", "why": "probe"}),
]


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where the values of a JSON object stand, containers included."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, inner in items for found in paths(inner, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(copy[path[0]], path[1:], new)
    return copy


@settings(max_examples=300)
@given(st.sampled_from(VALID), st.data())
def test_a_valid_datagram_with_any_of_its_values_exchanged_is_read_or_refused(
    valid: tuple[str, dict[str, Any]], data: st.DataObject
) -> None:
    """Nothing but a SchemaError may come out: one that is none ends the agent."""
    whole = {"v": 1, "t": valid[0], "job": ["c", "j", 0], "rank": 0, "ts": NOW, **valid[1]}
    path = data.draw(st.sampled_from(paths(whole)[1:]))
    changed = replaced(whole, path, data.draw(json_values))
    with contextlib.suppress(SchemaError):
        found = parse_datagram(json.dumps(changed).encode(), NOW)
        assert found.job.cluster


@given(st.binary(max_size=200))
def test_bytes_are_read_or_refused(data: bytes) -> None:
    with pytest.raises(SchemaError):
        parse_datagram(data, NOW)


def test_a_hello_carries_the_schedulers_names_into_its_event() -> None:
    names = {"slurm_job_id": "77", "pod_name": "train-0", "pod_uid": "u", "node_name": "gpu-7"}
    names |= {"pod_namespace": "ml", "slurm_node_name": "node7"}
    found = hook_event(parse("hello", pid=5, world_size=8, **names))
    assert {key: value for key, value in found.payload.items() if key in names} == names
    assert "slurm_restart_count" not in found.payload
