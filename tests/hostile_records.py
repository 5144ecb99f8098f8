"""Records that the codec of d946d44 took and that an operator then broke on, or was filled by: made here, refused now.

``encode`` refuses them, too: so they are forged from records that are right.
"""

from __future__ import annotations

import dataclasses
import json
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.schemas import samples
from tests.schemas.forge import forged, forged_json, resealed
from tocsin.schemas import events
from tocsin.schemas.wire.codec import encode
from tocsin.schemas.wire.event_payloads import RULES, SCALAR

HUGE: Final = "1" + "0" * 400
EVIL_JOB: Final = dataclasses.replace(samples.JOB, cluster="evil", job_id="x", attempt=0)


def event(name: str, payload: Mapping[str, Any]) -> bytes:
    """An event with a payload that nobody may send."""
    return forged_json(dataclasses.replace(samples.EVENT, name=name, payload={}), payload=payload)


def raw_event(name: str, payload: str) -> bytes:
    """So, with the payload's JSON as it is given."""
    body = json.dumps({"name": name, "rank": 9, "severity": "fatal", "source": "process", "payload": None})
    return forged(samples.EVENT, {1: body.replace("null", payload).encode()})


def exit_of_400_digits() -> bytes:
    """The message of 522 bytes of finding C6, of job x of cluster evil."""
    right = dataclasses.replace(samples.EVENT, job=EVIL_JOB, host="h")
    body = json.dumps({"name": "exit", "rank": 0, "severity": "fatal", "source": "process", "payload": None})
    return forged(right, {1: body.replace("null", f'{{"code": {HUGE}}}').encode()})


def _steps(section: int, *values: float) -> bytes:
    return forged(samples.STEPS, {section: struct.pack(f"<{len(values)}d", *values)})


def _topology(**changed: Any) -> bytes:
    place = {"rank": 0, "host": "h", "gpu": 0, "gpu_uuid": "", "dp": 0, "pp": 0, "tp": 0, "leaf": "", "minipod": ""}
    return forged_json(samples.TOPOLOGY, places=[{**place, "world_size": 1, "pid": 1, **changed}])


def _frame(tick_ns: int) -> bytes:
    return forged(samples.FRAME, {1: struct.pack("<IIIqq", 1, 5, 8, samples.SLICE_NS, tick_ns)})


def _status(**changed: Any) -> bytes:
    return forged_json(samples.HOST_STATUS, **changed)


def _attempt(attempt: int) -> bytes:
    data = encode(samples.EVENT)
    return resealed(data[:20] + struct.pack("<I", attempt) + data[24:])


HOSTILE_RECORDS: Final[Mapping[str, tuple[str, Callable[[], bytes]]]] = {
    "rows are a text": ("event.payload.rows", lambda: event(events.LOADER, {"rows": "x"})),
    "queue_depth is a list": ("event.payload.queue_depth", lambda: event(events.LOADER, {"queue_depth": [1]})),
    "fetch_seconds is a text": ("event.payload.fetch_seconds", lambda: event(events.LOADER, {"fetch_seconds": "3"})),
    "fetch_seconds of 1e300": ("event.payload.fetch_seconds", lambda: event(events.LOADER, {"fetch_seconds": 1e300})),
    "source is an object": ("event.payload.source", lambda: event(events.LOADER, {"source": {"a": 1}})),
    "rate_gbps is a text": (
        "event.payload.rate_gbps",
        lambda: event(events.IB_PORT, {"port": "p", "state": "down", "rate_gbps": "400"}),
    ),
    "rows are true": ("event.payload.rows", lambda: event(events.LOADER, {"rows": True})),
    "port is a number": ("event.payload.port", lambda: event(events.IB_PORT, {"port": 1})),
    "width is a text": ("event.payload.width", lambda: event(events.PCIE_LINK, {"gen": 5, "width": "x16"})),
    "reasons are a text": ("event.payload.reasons", lambda: event(events.CLOCKS_EVENT, {"reasons": "hw_thermal"})),
    "reasons are numbers": ("event.payload.reasons", lambda: event(events.CLOCKS_EVENT, {"reasons": [1]})),
    "pending is a text": ("event.payload.pending", lambda: event(events.ROW_REMAP, {"pending": "yes"})),
    "a code of XID is a list": ("event.payload.code", lambda: event(events.XID, {"code": [94]})),
    "a count is an object": ("event.payload.count", lambda: event(events.ECC, {"kind": "corrected", "count": {}})),
    "a phase is a list": (
        "event.payload.phase",
        lambda: event(events.PHASE, {"phase": ["checkpoint"], "edge": "begin"}),
    ),
    "a phase of a megabyte": ("event.payload.phase", lambda: event(events.PHASE, {"phase": "x" * 1_000_000})),
    "a step of 1e300": ("event.payload.step", lambda: event(events.NAN, {"step": 1e300, "what": "loss"})),
    "a step of 2^62": ("event.payload.step", lambda: event(events.NAN, {"step": 2**62, "what": "loss"})),
    "what is a list": ("event.payload.what", lambda: event(events.NAN, {"step": 1, "what": ["loss"]})),
    "a ratio is a text": ("event.payload.stopped_ratio", lambda: event(events.STOPPED, {"stopped_ratio": "1"})),
    "a beat of 1e308 s": ("event.payload.beat_age_seconds", lambda: event(events.STALL, {"beat_age_seconds": 1e308})),
    "in_collective is a text": ("event.payload.in_collective", lambda: event(events.STALL, {"in_collective": "no"})),
    "a stage is a number": ("event.payload.stage", lambda: event(events.STAGE, {"stage": 1})),
    "an edge is a list": ("event.payload.edge", lambda: event(events.AGENT, {"edge": ["stop"]})),
    "a code of 10^400": ("event", exit_of_400_digits),
    "a code of 2^63": ("event", lambda: event(events.EXIT, {"code": 2**63})),
    "a code of 5,000 digits": ("event", lambda: raw_event(events.EXIT, f'{{"code": {"9" * 5_000}}}')),
    "10^400 deep within": ("event", lambda: raw_event("any", f'{{"a": [[{{"b": -{HUGE}}}]]}}')),
    "a step of 1.7e308 s": ("steps.duration_seconds[1]", lambda: _steps(5, 0.5, 1.7e308, 0.1)),
    "a step of 1e8 s": ("steps.duration_seconds[0]", lambda: _steps(5, 1e8, 0.5, 0.1)),
    "step 2^62": ("steps.step[2]", lambda: forged(samples.STEPS, {4: struct.pack("<3q", 1, 2, 2**62)})),
    "rank 2^31-1 of a step": ("steps.rank[0]", lambda: forged(samples.STEPS, {3: struct.pack("<3i", 2**31 - 1, 9, 8)})),
    "rank 2^31-1 of a collective": (
        "collectives.rank[1]",
        lambda: forged(samples.COLLECTIVES, {4: struct.pack("<2i", 8, 2**31 - 1)}),
    ),
    "channel 2^31-1": (
        "collectives.channel[0]",
        lambda: forged(samples.COLLECTIVES, {11: struct.pack("<2i", 2**31 - 1, -1)}),
    ),
    "a world of 2^31-1": ("topology.places[0].world_size", lambda: _topology(world_size=2**31 - 1)),
    "a world of 1,000,001": ("topology.places[0].world_size", lambda: _topology(world_size=1_000_001)),
    "rank 2^31-1 of a place": ("topology.places[0].rank", lambda: _topology(rank=2**31 - 1)),
    "GPU 2^31-1": ("topology.places[0].gpu", lambda: _topology(gpu=2**31 - 1)),
    "stage 2^31-1": ("topology.places[0].pp", lambda: _topology(pp=2**31 - 1)),
    "a leaf of a megabyte": ("topology.places[0].leaf", lambda: _topology(leaf="x" * 1_000_000)),
    "a group of rank 2^31-1": (
        "groups.groups[0].ranks[0]",
        lambda: forged_json(samples.GROUPS, groups=[{"comm_id": "c", "kind": "dp", "ranks": [2**31 - 1]}]),
    ),
    "rank 2^31-1 was seen": ("host_status.ranks_seen[0]", lambda: _status(ranks_seen=[2**31 - 1])),
    "a clock that is 10^30 off": ("host_status", lambda: _status(clock_offset_ns=10**30)),
    "a collector of 1e300 s": (
        "host_status.collectors.cpu.seconds",
        lambda: _status(collectors={"cpu": {"ok": True, "seconds": 1e300, "reason": ""}}),
    ),
    "a collector's name of a megabyte": (
        "host_status.collectors",
        lambda: _status(collectors={"x" * 1_000_000: {"ok": True, "seconds": 1.0, "reason": ""}}),
    ),
    "a sampling period of a day": ("frame.tick_ns", lambda: _frame(17_280 * samples.SECOND_NS)),
    "a sampling period of 2^62 ns": ("frame.tick_ns", lambda: _frame(2**62)),
    "attempt 2^32-1": ("event.attempt", lambda: _attempt(2**32 - 1)),
}
"""Name -> the field that the refusal names, and the record."""


def wrong_values() -> dict[str, tuple[Any, ...]]:
    """``event.key`` -> values of which none may stand there, for each key that has a rule."""
    wrong: tuple[Any, ...] = ("x" * 2_000_000, [[]], {"a": 1}, [1, 2], -(2**70))
    return {
        f"{name}.{key}": wrong if rule is SCALAR else (*wrong, math.pi * 1e30)
        for name, rules in RULES.items()
        for key, rule in rules.items()
    }
