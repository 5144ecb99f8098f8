"""Bodies of low-volume records: one JSON object each (and a payload for probes and models).

Compact JSON with sorted keys; readers ignore unknown keys. A writer's object is read back once before it is sent, so
that the same checks refuse a record where it is made.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, cast

from tocsin.schemas.errors import FieldError
from tocsin.schemas.metrics import BadDirection, Metric, MetricTable, Scope
from tocsin.schemas.model_announcement import MAX_MODEL_BYTES, ModelAnnouncement
from tocsin.schemas.records import (
    CommGroup,
    Event,
    EventSource,
    GroupKind,
    Groups,
    HostStatus,
    ProbeAnswer,
    RankPlace,
    Severity,
    TableAnnouncement,
    Topology,
)
from tocsin.schemas.wire._format import Header, section
from tocsin.schemas.wire.event_payloads import check_payload
from tocsin.schemas.wire.validate import (
    INT64_MAX,
    MAX_COORDINATE,
    MAX_GPUS,
    MAX_RANKS,
    UINT32_MAX,
    ObjectReader,
    check_name,
    dump_json,
    load_json,
)

JSON_SECTION = 1
PAYLOAD_SECTION = 2

Probe = Literal["stacks", "flight_recorder", "ring", "fast_metrics"]
_PROBES = ("stacks", "flight_recorder", "ring", "fast_metrics")
_SCOPES = ("gpu", "host")
_BAD = ("high", "low", "both")


def pack_json(body: Mapping[str, Any], path: str) -> tuple[int, bytes]:
    """Return (section id, bytes) of a body's JSON section."""
    return JSON_SECTION, dump_json(body, path)


def reader_of(sections: dict[int, bytes], path: str) -> ObjectReader:
    """Return a reader of the JSON section.

    Args:
        sections: section id -> payload.
        path: dotted name of the object, for errors.

    Raises:
        DecodeError: the section is missing or no JSON.
        FieldError: the JSON is no object.
    """
    return ObjectReader(load_json(section(sections, JSON_SECTION, path), path), path)


def write_event(event: Event) -> dict[str, Any]:
    """Return the JSON object of an event."""
    return {
        "rank": event.rank,
        "source": event.source,
        "name": event.name,
        "severity": event.severity,
        "payload": _plain(event.payload),
    }


def read_event(header: Header, body: ObjectReader) -> Event:
    """Read an event from its JSON object; raises ``FieldError``."""
    check_payload(body.name("name"), body.mapping("payload"), body.field("payload"))
    return Event(
        header.job,
        header.host,
        header.ts_ns,
        body.integer("rank", -1, MAX_RANKS - 1),
        body.choice("source", EventSource),
        body.name("name"),
        body.choice("severity", Severity),
        body.mapping("payload"),
    )


def write_topology(topology: Topology) -> dict[str, Any]:
    """Return the JSON object of a topology announcement."""
    return {
        "places": [
            {
                "rank": place.rank,
                "host": place.host,
                "gpu": place.gpu,
                "gpu_uuid": place.gpu_uuid,
                "dp": place.dp,
                "pp": place.pp,
                "tp": place.tp,
                "leaf": place.leaf,
                "minipod": place.minipod,
                "world_size": place.world_size,
                "pid": place.pid,
            }
            for place in topology.places
        ]
    }


def read_topology(header: Header, body: ObjectReader) -> Topology:
    """Read a topology announcement from its JSON object; raises ``FieldError``."""
    places = tuple(_read_place(place) for place in body.objects("places"))
    _check_distinct([place.rank for place in places], body.field("places"), "rank")
    return Topology(header.job, header.host, header.ts_ns, places)


def _read_place(place: ObjectReader) -> RankPlace:
    """Read the place of one rank."""
    return RankPlace(
        rank=place.integer("rank", 0, MAX_RANKS - 1),
        host=place.name("host"),
        gpu=place.integer("gpu", -1, MAX_GPUS - 1),
        gpu_uuid=place.name("gpu_uuid", empty=True),
        dp=place.integer("dp", -1, MAX_COORDINATE),
        pp=place.integer("pp", -1, MAX_COORDINATE),
        tp=place.integer("tp", -1, MAX_COORDINATE),
        leaf=place.name("leaf", empty=True),
        minipod=place.name("minipod", empty=True),
        world_size=place.integer("world_size", 0, MAX_RANKS),
        pid=place.integer("pid", 0, INT64_MAX),
    )


def write_groups(groups: Groups) -> dict[str, Any]:
    """Return the JSON object of a group announcement."""
    return {
        "groups": [
            {"comm_id": group.comm_id, "kind": group.kind, "ranks": list(group.ranks)} for group in groups.groups
        ]
    }


def read_groups(header: Header, body: ObjectReader) -> Groups:
    """Read a group announcement from its JSON object; raises ``FieldError``."""
    groups = []
    for group in body.objects("groups"):
        ranks = group.integers("ranks", 0, MAX_RANKS - 1)
        _check_distinct(ranks, group.field("ranks"), "rank")
        groups.append(CommGroup(group.name("comm_id"), group.choice("kind", GroupKind), ranks))
    return Groups(header.job, header.host, header.ts_ns, tuple(groups))


def write_table(announcement: TableAnnouncement) -> dict[str, Any]:
    """Return the JSON object of a metric table announcement."""
    table = announcement.table
    return {
        "table_id": table.table_id,
        "gpu": [_write_metric(metric) for metric in table.gpu],
        "host": [_write_metric(metric) for metric in table.host],
    }


def read_table(header: Header, body: ObjectReader) -> TableAnnouncement:
    """Read a metric table announcement from its JSON object; raises ``FieldError``."""
    table = MetricTable(
        body.integer("table_id", 1, UINT32_MAX),
        tuple(_read_metric(metric, "gpu") for metric in body.objects("gpu")),
        tuple(_read_metric(metric, "host") for metric in body.objects("host")),
    )
    _check_distinct([metric.name for metric in table.gpu], body.field("gpu"), "name")
    _check_distinct([metric.name for metric in table.host], body.field("host"), "name")
    return TableAnnouncement(header.job, header.host, header.ts_ns, table)


def _write_metric(metric: Metric) -> dict[str, Any]:
    return {
        "name": metric.name,
        "scope": metric.scope,
        "low": metric.low,
        "high": metric.high,
        "bad": metric.bad,
    }


def _read_metric(body: ObjectReader, scope: Scope) -> Metric:
    """Read one metric column of this scope."""
    if _one_of(body, "scope", _SCOPES) != scope:
        raise FieldError(body.field("scope"), body.value("scope"), f"{scope}, as the list that it stands in")
    return Metric(
        body.name("name"),
        scope,
        body.optional_number("low"),
        body.optional_number("high"),
        cast(BadDirection, _one_of(body, "bad", _BAD)),
    )


def write_status(status: HostStatus) -> dict[str, Any]:
    """Return the JSON object of an agent's heartbeat."""
    return {
        "clock_offset_ns": status.clock_offset_ns,
        "clock_error_ns": status.clock_error_ns,
        "ranks_seen": list(status.ranks_seen),
        "hook_present": status.hook_present,
        "dropped_count": status.dropped_count,
        "spooled_count": status.spooled_count,
        "collectors": _plain(status.collectors),
    }


def read_status(header: Header, body: ObjectReader) -> HostStatus:
    """Read an agent's heartbeat from its JSON object; raises ``FieldError``."""
    return HostStatus(
        header.job,
        header.host,
        header.ts_ns,
        body.integer("clock_offset_ns", -INT64_MAX),
        body.integer("clock_error_ns", 0),
        body.integers("ranks_seen", 0, MAX_RANKS - 1),
        body.boolean("hook_present"),
        body.integer("dropped_count", 0),
        body.integer("spooled_count", 0),
        _read_collectors(body),
    )


def _read_collectors(body: ObjectReader) -> dict[str, Any]:
    """Read and check the states of an agent's collectors."""
    collectors = body.mapping("collectors")
    for name, values in collectors.items():
        check_name(name, body.field("collectors"))
        state = ObjectReader(values, f"{body.field('collectors')}.{name}")
        state.boolean("ok")
        state.seconds("seconds")
        state.text("reason")
    return collectors


def write_answer(answer: ProbeAnswer) -> dict[str, Any]:
    """Return the JSON object of a probe's answer; its payload is in a section of its own."""
    return {"rank": answer.rank, "request_id": answer.request_id, "probe": answer.probe}


def read_answer(header: Header, body: ObjectReader, payload: bytes) -> ProbeAnswer:
    """Read a probe's answer from its JSON object and payload; raises ``FieldError``."""
    if not isinstance(payload, bytes):
        raise FieldError(body.field("payload"), payload, "bytes")
    return ProbeAnswer(
        header.job,
        header.host,
        header.ts_ns,
        body.integer("rank", -1, MAX_RANKS - 1),
        body.name("request_id"),
        cast(Probe, _one_of(body, "probe", _PROBES)),
        payload,
    )


_HASH = re.compile("[0-9a-f]{64}")


def write_model(model: ModelAnnouncement) -> dict[str, Any]:
    """Return the JSON object of a model announcement; its payload is in a section of its own."""
    return {
        "name": model.name,
        "version": model.version,
        "format": model.format,
        "content_hash": model.content_hash,
        "effective_ns": model.effective_ns,
    }


def read_model(header: Header, body: ObjectReader, payload: bytes) -> ModelAnnouncement:
    """Read a model announcement from its JSON object and payload; raises ``FieldError``.

    Whether the model can be used is not checked.
    """
    if not isinstance(payload, bytes):
        raise FieldError(body.field("payload"), payload, "bytes")
    if len(payload) > MAX_MODEL_BYTES:
        raise FieldError(body.field("payload"), f"{len(payload)} bytes", f"at most {MAX_MODEL_BYTES} bytes")
    stated = body.text("content_hash")
    if not _HASH.fullmatch(stated):
        raise FieldError(body.field("content_hash"), stated, "64 hexadecimal digits: the payload's sha256")
    return ModelAnnouncement(
        header.ts_ns,
        body.name("name"),
        body.name("version"),
        body.name("format"),
        stated,
        payload,
        body.integer("effective_ns", 0),
    )


def _plain(values: object) -> object:
    """Return a mapping as a dict, for JSON; any other value unchanged, which the reader then refuses."""
    return dict(values) if isinstance(values, Mapping) else values


def _one_of(body: ObjectReader, key: str, choices: tuple[str, ...]) -> str:
    """Return a text field that must be one of the choices."""
    value = body.text(key)
    if value not in choices:
        raise FieldError(body.field(key), value, "one of " + " ".join(choices))
    return value


def _check_distinct(values: list[Any] | tuple[Any, ...], field: str, what: str) -> None:
    """Raise ``FieldError`` if two values are equal; ``what`` names them in the error."""
    if len(set(values)) == len(values):
        return
    twice = next(value for value, count in Counter(values).items() if count > 1)
    raise FieldError(field, twice, f"different from each other in their {what}")
