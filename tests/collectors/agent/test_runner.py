import math
import threading
import time
from typing import Any

import pytest

from tests.collectors.peer import wait_until
from tocsin.collectors.agent.runner import CollectorRunner, Supervision, checked
from tocsin.collectors.api import HostEvent, NothingHere, Reading
from tocsin.schemas.errors import CollectorError
from tocsin.schemas.records import EventSource, Severity


class Collector:
    period_seconds = 0.02

    def __init__(self, name: str, error: Exception | None = None) -> None:
        self.name = name
        self.error = error
        self.gate = threading.Event()
        self.gate.set()
        self.calls = 0
        self.ticks: list[int] = []

    def collect(self, now_ns: int) -> Reading:
        self.calls += 1
        self.ticks.append(now_ns)
        self.gate.wait()
        if self.error:
            raise self.error
        return Reading(host={"cpu_util_ratio": 0.5})


def supervision(delivered: list[str]) -> Supervision:
    return Supervision(
        time.time_ns, time.monotonic_ns, lambda name, tick, reading: delivered.append(name), deadline_seconds=0.1
    )


@pytest.mark.parametrize(
    ("error", "ok", "reason"),
    [
        (None, True, ""),
        (NothingHere("no GPU"), True, "nothing_here"),
        (CollectorError("broken"), False, "collector_failed"),
        (ZeroDivisionError("1/0"), False, "ZeroDivisionError"),
    ],
)
def test_each_call_is_reported(error: Exception | None, ok: bool, reason: str) -> None:
    delivered: list[str] = []
    runner = CollectorRunner(Collector("c", error), supervision(delivered))
    runner.call(0)

    assert (runner.report().ok, runner.report().reason) == (ok, reason)
    assert delivered == ([] if error else ["c"])


def test_a_failure_is_logged_when_it_changes_not_each_time(caplog: pytest.LogCaptureFixture) -> None:
    collector = Collector("c", CollectorError("broken"))
    runner = CollectorRunner(collector, supervision([]))
    for _ in range(5):
        runner.call(0)
    collector.error = OSError("other")
    runner.call(0)

    assert [record.reason for record in caplog.records] == ["collector_failed", "OSError"]  # type: ignore[attr-defined]


def test_one_that_hangs_or_raises_harms_no_other() -> None:
    delivered: list[str] = []
    hangs, raises, works = Collector("hangs"), Collector("raises", ValueError("x")), Collector("works")
    hangs.gate.clear()
    runners = [CollectorRunner(collector, supervision(delivered)) for collector in (hangs, raises, works)]
    for runner in runners:
        runner.start()
    wait_until(lambda: runners[0].report().reason == "hung")
    count = works.calls
    wait_until(lambda: works.calls > count + 3 and raises.calls > 3)

    assert not runners[0].report().ok
    assert hangs.calls == 1
    assert runners[2].report().ok
    hangs.gate.set()
    wait_until(lambda: "hangs" in delivered and runners[0].report().ok)
    for runner in runners:
        runner.stop()


def test_ticks_are_the_multiples_of_the_period_each_once() -> None:
    collector = Collector("c")
    runner = CollectorRunner(collector, supervision([]))
    runner.start()
    wait_until(lambda: collector.calls > 10)
    runner.stop()

    assert all(tick % 20_000_000 == 0 for tick in collector.ticks)
    assert collector.ticks == sorted(set(collector.ticks))


def saw(name: Any = "xid", payload: Any = None, **changed: Any) -> Reading:
    keys: dict[str, Any] = {"source": EventSource.PROCESS, "severity": Severity.ERROR, **changed}
    event = HostEvent(name=name, payload={} if payload is None else payload, **keys)
    return Reading(events=(event,))


NONSENSE: list[Any] = [
    None,
    {},
    5,
    "text",
    Reading(host={"cpu_util_ratio": "x"}),  # type: ignore[dict-item]
    Reading(host={"cpu_util_ratio": None}),  # type: ignore[dict-item]
    Reading(host={7: 0.5}),  # type: ignore[dict-item]
    Reading(host=[0.5]),  # type: ignore[arg-type]
    Reading(host={"cpu_util_ratio": 10**400}),
    Reading(gpus={"GPU-1": 5}),  # type: ignore[dict-item]
    Reading(gpus={"GPU-1": {"gpu_util_ratio": "1"}}),  # type: ignore[dict-item]
    Reading(events=7),  # type: ignore[arg-type]
    Reading(events=("xid",)),  # type: ignore[arg-type]
    saw(name=""),
    saw(name=None),
    saw(payload={"value": math.nan}),
    saw(payload={"value": b"bytes"}),
    saw(payload=[1]),
    saw(source="nowhere"),
    saw(rank=-2),
    saw(job=("c", "j", 0)),
]


@pytest.mark.parametrize("nonsense", NONSENSE, ids=str)
def test_nonsense_is_its_collectors_failure_and_goes_no_further(nonsense: Any) -> None:
    delivered: list[str] = []
    collector = Collector("c")
    collector.collect = lambda now_ns: nonsense  # type: ignore[method-assign]
    runner = CollectorRunner(collector, supervision(delivered))
    runner.call(0)

    assert not runner.report().ok
    assert runner.report().reason
    assert delivered == []


def test_numbers_of_any_kind_are_delivered_as_floats() -> None:
    found: list[Reading] = []
    collector = Collector("c")
    given = Reading({"cpu_util_ratio": 1}, {"GPU-1": {"gpu_util_ratio": True}}, saw(payload={"n": 1}).events)
    collector.collect = lambda now_ns: given  # type: ignore[method-assign]
    runner = CollectorRunner(
        collector, Supervision(time.time_ns, time.monotonic_ns, lambda *call: found.append(call[2]))
    )
    runner.call(0)

    assert runner.report().ok
    assert found == [Reading({"cpu_util_ratio": 1.0}, {"GPU-1": {"gpu_util_ratio": 1.0}}, given.events)]
    assert type(found[0].host["cpu_util_ratio"]) is type(found[0].gpus["GPU-1"]["gpu_util_ratio"]) is float


def test_an_empty_reading_goes_no_further() -> None:
    delivered: list[str] = []
    collector = Collector("c")
    collector.collect = lambda now_ns: Reading()  # type: ignore[method-assign]
    runner = CollectorRunner(collector, supervision(delivered))
    runner.call(0)

    assert runner.report().ok
    assert delivered == []


def test_a_call_may_come_after_its_tick_and_still_has_its_time() -> None:
    collector = Collector("c")
    called_ns: list[int] = []
    runner = CollectorRunner(
        collector,
        Supervision(time.time_ns, time.monotonic_ns, lambda *_: called_ns.append(time.time_ns())),
        delay_ns=5_000_000,
    )
    runner.start()
    wait_until(lambda: len(called_ns) >= 3)
    runner.stop()

    assert all(tick_ns % 20_000_000 == 0 for tick_ns in collector.ticks)
    assert all(at_ns - tick_ns >= 5_000_000 for at_ns, tick_ns in zip(called_ns, collector.ticks, strict=False))


def test_what_a_collector_passed_over_is_shown_and_a_strange_count_is_none() -> None:
    collector = Collector("c")
    runner = CollectorRunner(collector, supervision([]))
    assert runner.skipped() == {}
    collector.skipped = {"truncated": 3}  # type: ignore[attr-defined]  # a collector may have it
    assert runner.skipped() == {"truncated": 3}
    collector.skipped = "nonsense"  # type: ignore[attr-defined]  # the same
    assert runner.skipped() == {}


def test_a_place_that_is_none_is_its_collectors_failure() -> None:
    with pytest.raises(CollectorError, match="GpuPlace"):
        checked(Reading(places={"GPU-1": 3}))  # type: ignore[dict-item]  # nonsense on purpose
