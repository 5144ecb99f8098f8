"""Which incident of the fleet stands for which verdict, and its form on the topic ``covered``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from tocsin.schemas.wire.validate import ObjectReader, load_json

_WHAT = "covered"


@dataclass(frozen=True, slots=True)
class Cover:
    """Whether an incident of the fleet stands for a verdict from a time on.

    Attributes:
        cluster: cluster of both.
        verdict_id: the verdict.
        incident_id: the fleet incident; "": none does any more.
        ts_ns: since when, Unix time in nanoseconds.
    """

    cluster: str
    verdict_id: str
    incident_id: str
    ts_ns: int


def encode_cover(cover: Cover) -> bytes:
    """Return a cover as a JSON object."""
    return json.dumps(
        {
            "cluster": cover.cluster,
            "verdict_id": cover.verdict_id,
            "incident_id": cover.incident_id,
            "ts_ns": cover.ts_ns,
        }
    ).encode()


def decode_cover(value: bytes) -> Cover:
    """Return the cover in a message.

    Raises:
        SchemaError: it is none; the error names the field and the value.
    """
    said = ObjectReader(load_json(value, _WHAT), _WHAT)
    return Cover(
        said.name("cluster"), said.name("verdict_id"), said.name("incident_id", empty=True), said.integer("ts_ns", 0)
    )


def covers_between(cluster: str, before: Mapping[str, str], now: Mapping[str, str], now_ns: int) -> list[Cover]:
    """Return what changed of which fleet incident stands for which verdict, by verdict id.

    Args:
        cluster: cluster of all.
        before: verdict id -> id of the fleet incident, as it was.
        now: the same, as it is.
        now_ns: the present time.
    """
    changed = sorted(one for one in {*before, *now} if before.get(one) != now.get(one))
    return [Cover(cluster, one, now.get(one, ""), now_ns) for one in changed]
