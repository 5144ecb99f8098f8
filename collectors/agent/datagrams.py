"""Parser of the hooks' datagrams: JSON, checked field by field.

A wrong value raises a ``FieldError`` that names field and value. Unknown keys are ignored. An unknown type raises
``UnknownKindError``. See docs/interfaces.md, section 1.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from tocsin.collectors.agent.datagram_fields import DAY_NS, MAX_COLLECTIVES, Fields, text_of, time_of
from tocsin.collectors.agent.messages import (
    Beat,
    Body,
    Bye,
    Completion,
    Datagram,
    DumpWritten,
    Exit,
    GroupList,
    Hello,
    InFlight,
    LastDone,
    LoaderReport,
    ModelWork,
    NotFinite,
    PhaseEdge,
    StageEdge,
    StepDone,
)
from tocsin.schemas.errors import DecodeError, FieldError, UnknownKindError, VersionError
from tocsin.schemas.events import ANNOUNCED_PHASES, JOB_FACT_KEYS, LOADER_COUNTS
from tocsin.schemas.job_key import why_reserved
from tocsin.schemas.records import CommGroup, GroupKind, JobKey, StepRecord
from tocsin.schemas.startup import Edge, StartKind, StartupStage
from tocsin.schemas.wire.event_payloads import MAX_WORK, MODEL_NUMBERS
from tocsin.schemas.wire.validate import (
    INT64_MAX,
    MAX_ATTEMPT,
    MAX_COORDINATE,
    MAX_GPUS,
    MAX_RANKS,
    MAX_STEP,
)

DATAGRAM_BYTES: Final = 200_000
MAX_KNOWN_TEXTS: Final = 4096
_BLANKS: Final = " \t\r\n"
_raw_decode: Final = json.JSONDecoder().raw_decode
_known_texts: set[str] = set()
"""Cache for ``_text``: names of communicators and operations that were found valid."""
_GROUP_KINDS: Final = frozenset(kind.value for kind in GroupKind)


def _operation(name: str, row: list[Any]) -> None:
    """Check the first three items of a row: comm_id, op_name, op_seq."""
    text_of(f"{name}.comm_id", row[0], least=1)
    text_of(f"{name}.op_name", row[1], least=1)
    if type(row[2]) is not int or not -1 <= row[2] <= INT64_MAX:
        raise FieldError(f"{name}.op_seq", row[2], "an integer from -1")


def _message_bytes(name: str, value: object) -> None:
    """Check the message size of a row."""
    if type(value) is not int or not -1 <= value <= INT64_MAX:
        raise FieldError(f"{name}.msg_bytes", value, "an integer from -1")


def _completions(fields: Fields) -> tuple[Completion, ...]:
    """Return the checked completions of a step.

    Only if the quick check fails is each row checked separately, to name what is wrong.
    """
    rows = fields.values.get("coll", [])
    if not _are_right(rows, fields.now_ns):
        for index, row in enumerate(fields.rows("coll", 6)):
            _completion(f"coll[{index}]", row, fields.now_ns)
    return tuple(map(tuple, rows))


def _are_right(rows: Any, now_ns: int) -> bool:
    """Return whether all rows are valid, in one expression each because hundreds come a second.

    False also for a new name.
    """
    low, high = now_ns - DAY_NS, now_ns + DAY_NS
    known = _known_texts
    try:
        for comm_id, op_name, op_seq, msg_bytes, start_ns, end_ns in rows:
            if not (
                comm_id in known
                and op_name in known
                and type(op_seq) is type(msg_bytes) is type(start_ns) is type(end_ns) is int
                and -1 <= op_seq <= INT64_MAX
                and -1 <= msg_bytes <= INT64_MAX
                and low < end_ns < high
                and (low < start_ns <= end_ns or not start_ns)
            ):
                return False
    except (TypeError, ValueError):  # no rows, a row of another width, a list in place of a name
        return False
    return type(rows) is list and len(rows) <= MAX_COLLECTIVES


def _completion(name: str, row: list[Any], now_ns: int) -> None:
    """Check one row of completions and remember its valid texts."""
    _operation(name, row)
    _message_bytes(name, row[3])
    start_ns = time_of(f"{name}.start_ns", row[4], now_ns, or_zero=True)
    if time_of(f"{name}.end_ns", row[5], now_ns) < start_ns:
        raise FieldError(f"{name}.end_ns", row[5], f"not before its start {start_ns}")
    if len(_known_texts) > MAX_KNOWN_TEXTS:
        _known_texts.clear()
    _known_texts.update(row[:2])


def _hello(fields: Fields) -> Hello:
    """Read the body of a hello."""
    return Hello(
        pid=fields.integer("pid", 0, 2**31),
        world_size=fields.integer("world_size", -1, MAX_RANKS, default=-1),
        gpu=fields.integer("gpu", -1, MAX_GPUS - 1, default=-1),
        gpu_uuid=fields.text("gpu_uuid", default=""),
        dp=fields.integer("dp", -1, MAX_COORDINATE, default=-1),
        pp=fields.integer("pp", -1, MAX_COORDINATE, default=-1),
        tp=fields.integer("tp", -1, MAX_COORDINATE, default=-1),
        reply=fields.text("reply", limit=107, default=""),
        hook_version=fields.text("hook_version", default=""),
        local_rank=fields.integer("local_rank", -1, MAX_RANKS - 1, default=-1),
        **{name: fields.text(name, default="") for name in JOB_FACT_KEYS},
    )


def _groups(fields: Fields) -> GroupList:
    """Read the body of a group list."""
    listed = fields.values.get("groups")
    if type(listed) is not list or len(listed) > 1024:
        raise FieldError("groups", listed, "a list of at most 1024 groups")
    return GroupList(tuple(_group(f"groups[{index}]", item) for index, item in enumerate(listed)))


def _group(name: str, item: object) -> CommGroup:
    """Read one communication group; an unknown kind becomes ``other``."""
    if type(item) is not dict:
        raise FieldError(name, item, "an object with comm_id, kind, ranks")
    comm_id, ranks = text_of(f"{name}.comm_id", item.get("comm_id"), least=1), item.get("ranks")
    if type(ranks) is not list or not all(type(rank) is int and 0 <= rank < MAX_RANKS for rank in ranks):
        raise FieldError(f"{name}.ranks", ranks, f"a list of global ranks, each below {MAX_RANKS}")
    if len(set(ranks)) < len(ranks):
        raise FieldError(f"{name}.ranks", ranks, "a list of global ranks, each once")
    kind = item.get("kind")
    known = GroupKind(kind) if type(kind) is str and kind in _GROUP_KINDS else GroupKind.OTHER
    return CommGroup(comm_id, known, tuple(ranks))


def _step(fields: Fields) -> StepDone:
    """Read the body of a finished step."""
    duration = fields.seconds("dur")
    if duration is None:
        raise FieldError("dur", None, "seconds, not negative")
    record = StepRecord(
        ts_ns=fields.values["ts"],
        rank=fields.values["rank"],
        step=fields.integer("step", 0, MAX_STEP),
        duration_seconds=duration,
        data_seconds=fields.seconds("data"),
        forward_seconds=fields.seconds("fwd"),
        backward_seconds=fields.seconds("bwd"),
        optimizer_seconds=fields.seconds("opt"),
        communication_seconds=fields.seconds("comm"),
        loss=fields.number("loss"),
        grad_norm=fields.number("gn"),
    )
    return StepDone(record, _completions(fields), fields.integer("dropped", 0, default=0))


def _beat(fields: Fields) -> Beat:
    """Read the body of a beat."""
    inflight = fields.rows("inflight", 5)
    for index, row in enumerate(inflight):
        name = f"inflight[{index}]"
        _operation(name, row)
        _message_bytes(name, row[3])
        time_of(f"{name}.start_ns", row[4], fields.now_ns, or_zero=True)
    last = fields.rows("last", 4)
    for index, row in enumerate(last):
        _operation(f"last[{index}]", row)
        time_of(f"last[{index}].end_ns", row[3], fields.now_ns, or_zero=True)
    return Beat(
        step=fields.integer("step", -1, MAX_STEP),
        phase=fields.text("phase", default=""),
        step_ns=time_of("step_ns", fields.values.get("step_ns", 0), fields.now_ns, or_zero=True),
        inflight=tuple(map(InFlight._make, inflight)),
        last=tuple(map(LastDone._make, last)),
    )


def _phase(fields: Fields) -> PhaseEdge:
    """Read the body of an announced phase's begin or end."""
    return PhaseEdge(fields.choice("phase", ANNOUNCED_PHASES), fields.choice("edge", ("begin", "end")))


def _stage(fields: Fields) -> StageEdge:
    """Read the body of the begin or end of a stage of the start."""
    return StageEdge(
        fields.choice("stage", tuple(StartupStage)),
        fields.choice("edge", tuple(Edge)),
        fields.choice("start_kind", tuple(StartKind)),
        fields.seconds("seconds"),
        fields.ratio("cache_hit_ratio"),
    )


def _nan(fields: Fields) -> NotFinite:
    """Read the body about a loss or gradient norm that is not finite."""
    value = fields.values.get("value")
    if type(value) is float and not math.isfinite(value):
        value = str(value)
    if type(value) is not str or value not in {"nan", "inf", "-inf"}:
        raise FieldError("value", value, "'nan', 'inf' or '-inf'")
    return NotFinite(fields.integer("step", -1, MAX_STEP), fields.choice("what", ("loss", "grad_norm")), str(value))


def _model(fields: Fields) -> ModelWork:
    """Read the body about a model's work and its GPU."""
    payload: dict[str, int | float | str] = {}
    for name in MODEL_NUMBERS:
        value = fields.number(name)
        if value is not None:
            if not 0 <= value <= MAX_WORK:
                raise FieldError(name, value, f"a number from 0 to {MAX_WORK:g}")
            payload[name] = value
    if (world_size := fields.integer("world_size", -1, MAX_RANKS, default=-1)) > 0:
        payload["world_size"] = world_size
    if gpu_name := fields.text("gpu_name", default=""):
        payload["gpu_name"] = gpu_name
    return ModelWork(payload)


def _loader(fields: Fields) -> LoaderReport:
    """Read the body about a data loader; what is null or missing stays away."""
    values: dict[str, str | float] = {"source": fields.text("source", default="")}
    if "step" in fields.values:
        values["step"] = fields.integer("step", -1, MAX_STEP)
    for name in ("fetch_seconds", "recovery_seconds"):
        if (seconds := fields.seconds(name)) is not None:
            values[name] = seconds
    for name in LOADER_COUNTS:
        if fields.values.get(name) is not None:
            values[name] = fields.integer(name, 0)
    return LoaderReport(values)


def _exit(fields: Fields) -> Exit:
    """Read the body of a process's exit."""
    return Exit(
        pid=fields.integer("pid", 0, 2**31),
        code=fields.integer("code", -(2**31), 2**31 - 1),
        signal=fields.integer("signal", 0, 128, default=0),
        stderr_tail=fields.tail("stderr_tail", 4096),
        of=fields.text("of", 32, default=""),
    )


def _dump(fields: Fields) -> DumpWritten:
    """Read the body about a written dump."""
    return DumpWritten(
        path=fields.text("path", limit=4096),
        request_id=fields.text("request_id", default=""),
        why=fields.choice("why", ("probe", "stuck")),
    )


_PARSERS: Final[Mapping[str, Callable[[Fields], Body]]] = {
    "hello": _hello,
    "groups": _groups,
    "step": _step,
    "beat": _beat,
    "phase": _phase,
    "stage": _stage,
    "nan": _nan,
    "model": _model,
    "loader": _loader,
    "bye": lambda _: Bye(),
    "exit": _exit,
    "dump": _dump,
}


def _job(value: object) -> JobKey:
    """Return the job key from [cluster, job_id, attempt]."""
    if type(value) is list and len(value) == 3 and type(value[2]) is int and 0 <= value[2] <= MAX_ATTEMPT:
        cluster, job_id = text_of("job[0]", value[0], least=1), text_of("job[1]", value[1], least=1)
        if why := why_reserved(cluster, job_id):
            raise FieldError("job[1]", job_id, f"a job's own name: this is {why}; set TOCSIN_JOB_ID to another")
        return _job_key(cluster, job_id, value[2])
    raise FieldError("job", value, "[cluster, job_id, attempt]")


_job_key: Final = lru_cache(maxsize=64)(JobKey)


def parse_datagram(data: bytes, now_ns: int) -> Datagram:
    """Parse and check one datagram.

    Args:
        data: the bytes as received.
        now_ns: the host's time; stamps a day or more away are refused.

    Raises:
        DecodeError: the data is no JSON object.
        VersionError: the datagram has another version of the protocol.
        UnknownKindError: the type is one that this agent does not know.
        FieldError: a field has a value that is not allowed.
    """
    try:
        text = data.decode().strip(_BLANKS)
        values, end = _raw_decode(text)  # half of what json.loads does around it
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"datagram {data[:40]!r} is no JSON: {error}") from error
    if end != len(text):
        raise DecodeError(f"datagram {data[:40]!r} goes on after its JSON object")
    if type(values) is not dict:
        raise DecodeError(f"datagram {data[:40]!r} is no JSON object")
    version = values.get("v")
    if version != 1:
        shown = version if type(version) is int and abs(version) < MAX_STEP else f"a {type(version).__name__}"
        raise VersionError(f"datagram of version {shown}: this agent reads 1")
    fields = Fields(values, now_ns)
    kind = fields.text("t", 32)
    parser = _PARSERS.get(kind)
    if parser is None:
        raise UnknownKindError(f"datagram of unknown type {kind!r}")
    job = _job(values.get("job"))
    rank = fields.integer("rank", -1 if kind == "exit" else 0, MAX_RANKS - 1)
    return Datagram(job, rank, fields.time("ts"), parser(fields))
