"""A GPU's samples and events reach the job and the rank that hold it."""

import struct
from typing import Any

import pytest

from tests.collectors.agent.core_bench import Bench, events, of
from tocsin.collectors.api import GpuPlace, HostEvent, Reading
from tocsin.schemas.metrics import GPU_METRICS
from tocsin.schemas.records import EventSource, Frame, Severity, Topology

GPUS = {f"GPU-{n:08x}-aaaa": GpuPlace(n, f"0000:{n:02x}:00.0") for n in range(4)}
UUIDS = tuple(GPUS)
A, B = ("c", "a", 0), ("c", "b", 0)


def sample(bench: Bench, **keys: Any) -> None:
    """All four GPUs give their index as power."""
    gpus = {uuid: {"gpu_power_watts": float(place.gpu)} for uuid, place in GPUS.items()}
    reading = Reading(gpus=gpus, **{"places": GPUS, **keys})
    bench.core.on_reading(bench.ts, reading, bench.clock.read()[0])


def frames(bench: Bench) -> dict[str, Frame]:
    return {frame.job.job_id: frame for frame in of(bench.runs(6), Frame)}


def power(frame: Frame) -> list[float]:
    row = next(index for index, metric in enumerate(GPU_METRICS) if metric.name == "gpu_power_watts")
    count = len(GPU_METRICS) * frame.tick_count
    found = []
    for gpu in range(len(frame.gpu_uuids)):
        values = struct.unpack_from(f"<{count}f", frame.gpu_matrix, gpu * count * 4)
        ticks = values[row * frame.tick_count : (row + 1) * frame.tick_count]
        found.append(next(value for value in ticks if value == value))  # noqa: PLR0124  # NaN: no sample
    return found


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"gpu_uuid": UUIDS[1]}, {"gpu_uuid": UUIDS[2]}),
        ({"gpu_uuid": UUIDS[1][:12]}, {"gpu_uuid": UUIDS[2]}),  # CUDA takes a UUID's beginning, too
        ({"gpu": 1}, {"gpu": 2}),
        ({"local_rank": 1}, {"local_rank": 2}),  # torchrun without CUDA_VISIBLE_DEVICES
    ],
    ids=["uuid", "prefix", "index", "local_rank"],
)
def test_a_reading_ends_up_in_the_frame_of_the_job_that_holds_the_gpu(
    bench: Bench, first: dict[str, Any], second: dict[str, Any]
) -> None:
    bench.hello(0, A, **first)
    bench.hello(0, B, **second)
    sample(bench)
    found = frames(bench)
    assert (found["a"].gpu_uuids, found["b"].gpu_uuids) == ((UUIDS[1],), (UUIDS[2],))
    assert (power(found["a"]), power(found["b"])) == ([1.0], [2.0])


def test_the_process_on_a_gpu_joins_where_the_hook_knows_no_number(bench: Bench) -> None:
    places = {uuid: GpuPlace(p.gpu, p.pci, (77,) if p.gpu == 3 else ()) for uuid, p in GPUS.items()}
    bench.hello(0, A)  # the kernel says that pid 77 sent it
    bench.hook("hello", 0, B, pid=8, world_size=1, gpu_uuid=UUIDS[0])
    sample(bench, places=places)
    found = frames(bench)
    assert found["a"].gpu_uuids == (UUIDS[3],)
    assert found["b"].gpu_uuids == (UUIDS[0],)


def test_a_job_without_a_gpu_gets_none_where_the_driver_shows_who_computes(bench: Bench) -> None:
    places = {uuid: GpuPlace(p.gpu, p.pci, (4711,) if p.gpu == 0 else ()) for uuid, p in GPUS.items()}
    bench.hello(0, A, local_rank=0)
    bench.hook("hello", 0, B, pid=4711, world_size=1, local_rank=0)
    bench.core.jobs["c", "b"].ranks[0].pid = 4711
    sample(bench, places=places)
    found = frames(bench)
    assert (found["a"].gpu_uuids, found["b"].gpu_uuids) == ((), (UUIDS[0],))


def test_the_only_job_gets_all_where_nobody_says_who_holds_what(bench: Bench) -> None:
    bench.hello(0, A)
    sample(bench)
    assert frames(bench)["a"].gpu_uuids == UUIDS


def test_of_two_jobs_that_say_nothing_none_gets_a_gpu(bench: Bench) -> None:
    bench.hello(0, A)
    bench.hello(0, B)
    sample(bench)
    found = frames(bench)
    assert found["a"].gpu_uuids == found["b"].gpu_uuids == ()


def test_an_idle_host_sends_all(bench: Bench) -> None:
    sample(bench)
    (frame,) = frames(bench).values()
    assert frame.gpu_uuids == UUIDS


def test_topology_names_the_uuid_once_it_is_known(bench: Bench) -> None:
    bench.hello(0, A, gpu=2)
    assert [place.gpu_uuid for topology in of(bench.runs(2), Topology) for place in topology.places] == [""]
    sample(bench)
    (topology,) = of(bench.runs(2), Topology)
    assert topology.places[0].gpu_uuid == UUIDS[2]
    sample(bench)
    assert of(bench.runs(2), Topology) == []  # nothing new


@pytest.mark.parametrize(
    "payload",
    [{"uuid": UUIDS[1]}, {"pci": "0000:01:00.0"}, {"pci": "00000000:01:00"}, {"pid": 77, "pci": "0000:99:00"}],
)
def test_an_event_goes_to_the_rank_that_it_is_about(bench: Bench, payload: dict[str, Any]) -> None:
    bench.hello(0, A, gpu=1)
    bench.hook("hello", 5, A, pid=9, world_size=8, gpu=2)
    bench.core.jobs["c", "a"].ranks[5].pid = 78
    bench.hook("hello", 0, B, pid=10, world_size=8, gpu=3)
    bench.core.jobs["c", "b"].ranks[0].pid = 79
    sample(bench)
    event = HostEvent("xid", EventSource.KERNEL, Severity.FATAL, {"code": 79, **payload})
    bench.core.on_reading(bench.ts, Reading(events=(event,)), bench.clock.read()[0])
    assert [(event.job.job_id, event.rank) for event in events(bench.take(), "xid")] == [("a", 0)]


def test_an_event_of_a_gpu_that_nobody_holds_goes_to_every_job(bench: Bench) -> None:
    bench.hello(0, A, gpu=1)
    bench.hello(0, B, gpu=2)
    sample(bench)
    event = HostEvent("xid", EventSource.KERNEL, Severity.FATAL, {"code": 79, "pci": "0000:ff:00.0"})
    bench.core.on_reading(bench.ts, Reading(events=(event,)), bench.clock.read()[0])
    assert [(event.job.job_id, event.rank) for event in events(bench.take(), "xid")] == [("a", -1), ("b", -1)]
