"""Who is not where the others are, while the job stands; and who is forgiven for how long."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from tocsin.models.pace import Slowdown, find_slowdown
from tocsin.pipeline.detect.peers.workload import Load
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.evidence.stop import StopConfig, stalled_before_deaths_ns
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.join import join
from tocsin.pipeline.rca.rules.deviations import MachineRules
from tocsin.pipeline.rca.rules.harmless_deviations import HarmlessDeviations
from tocsin.pipeline.rca.rules.machine import find_machine
from tocsin.pipeline.rca.rules.slow import SlowRules, can_be_at_fault
from tocsin.pipeline.rca.rules.standstill import idle_since, told_as_unexplained
from tocsin.pipeline.rca.rules.timing import began_later
from tocsin.schemas import events
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import (
    NS_PER_SECOND,
    Event,
    EventSource,
    Frame,
    JobKey,
    RankPlace,
    Severity,
    StepBatch,
    StepRecord,
    Topology,
)
from tocsin.schemas.verdicts import Anomaly, Component, ComponentKind, Evidence, FaultKind, Suspect, WitnessKind

JOB = JobKey("c", "j")
T0 = 1_800_000_000 * NS_PER_SECOND
SLOWER = Slowdown(0.3, is_certain=True, is_gone=False, step_seconds=1.3, before_seconds=1.0, step_count=60)
AS_EVER = Slowdown(0.0, is_certain=False, is_gone=True, step_seconds=1.0, before_seconds=1.0)
NO_STEP = Slowdown(float("inf"), is_certain=True, is_gone=False, step_seconds=float("nan"), before_seconds=1.0)


def _ns(second: float) -> int:
    return T0 + int(second * NS_PER_SECOND)


def _graph() -> JobGraph:
    graph = JobGraph()
    graph.take([Topology(JOB, f"n{r}", T0, (RankPlace(r, f"n{r}"),)) for r in range(8)])
    return graph


@dataclass
class Pace:
    """A pace as told, since some time; before that the job was as fast as ever."""

    slowdown: Slowdown | None = None
    slower_ns: int = T0 - 5 * NS_PER_SECOND
    stalled_since_ns: int = 0
    stalled_known_ns: int = 0
    longest_stall_ns: int = 0
    processes_wait_since_ns: int = 0
    other_work_since_ns: int = 0
    longest_pause_ns: int = 0
    ended_at_once: dict[str, int] = field(default_factory=dict)
    median_step_ns: int = NS_PER_SECOND
    work_is_known: bool = True
    work_goes_on: bool = False

    def slowdown_since(self, onset_ns: int, now_ns: int) -> Slowdown | None:
        """By the median of steps of a second."""
        return AS_EVER if self.slowdown and (onset_ns + now_ns) / 2 < self.slower_ns else self.slowdown

    @property
    def own_time_holds_waits(self) -> bool:
        return False

    def harmed_since(self, onset_ns: int, now_ns: int) -> dict[str, WitnessKind]:
        return {}

    def most_growth_seconds(self, onset_ns: int, now_ns: int) -> float | None:
        return None

    def grown_excess_seconds(self, host: str, onset_ns: int) -> float:
        return 0.0

    def own_excess_seconds(self, host: str) -> float | None:
        return None

    def more_work(self, host: str) -> Load | None:
        return None

    def wastes_power(self, host: str) -> bool:
        return False

    def moves_no_more(self, host: str) -> bool:
        return False


def _differs(
    host: str, span: tuple[float, float], metric: str, direction: str, now_sigmas: float = 9.0, **detail: object
) -> Anomaly:
    told = {
        "metric": metric,
        "direction": direction,
        "score": 1.4,
        "since_ns": _ns(span[0]),
        "present_ratio": 1.0,
        "sigmas": now_sigmas,
        "value": 0.4,
        "expected": 0.1,
    }
    component = Component(ComponentKind.HOST, host)
    detail = {"metrics": [told], **detail}
    return Anomaly(JOB, _ns(span[1]), component, metric, _ns(span[0]), _ns(span[1]), 1.4, "peers", "", detail)


def _ill(span: tuple[float, float]) -> Anomaly:
    """Several metrics of a machine are low."""
    parts = [_differs("n4", span, name, "low", 0.0) for name in ("gpu_util_ratio", "cpu_util_ratio")]
    metrics = [metric for part in parts for metric in part.detail["metrics"]]
    return replace(parts[0], detail={"metrics": metrics})


def _named_while_standing(now: float, *anomalies: Anomaly) -> list[str] | list[Reason]:
    pace = Pace(stalled_since_ns=_ns(0), stalled_known_ns=_ns(10))
    found, reasons = find_machine(_graph(), _ns(now), anomalies, pace, MachineRules(), HarmlessDeviations())
    return [suspect.component.name for finding in found for suspect in finding.suspects] or reasons


class TestStanding:
    busy = _differs("n3", (0, 35), "cpu_util_ratio", "high", standing=True)
    fell_first = _differs("n5", (-5, 0), "gpu_util_ratio", "low", leaning=True)

    def test_who_fell_first_is_named_where_nobody_differs_since(self) -> None:
        assert _named_while_standing(40, self.fell_first) == ["n5"]

    @pytest.mark.parametrize(
        ("anomaly", "second", "is_tentative"),
        [
            (_differs("n3", (0, 290), "cpu_util_ratio", "high", standing=True), 290, True),
            (_differs("n3", (0, 310), "cpu_util_ratio", "high", standing=True), 310, False),
            (_differs("n3", (0, 170), "gpu_util_ratio", "low", standing=True), 170, True),
            (_differs("n3", (0, 190), "gpu_util_ratio", "low", standing=True), 190, False),
        ],
    )
    def test_who_is_busy_may_write_a_checkpoint_for_minutes(
        self, anomaly: Anomaly, second: int, is_tentative: bool
    ) -> None:
        pace = Pace(stalled_since_ns=_ns(0), stalled_known_ns=_ns(10))
        [found], _ = find_machine(_graph(), _ns(second), [anomaly], pace, MachineRules(), HarmlessDeviations())

        assert found.tentative is is_tentative

    def test_of_several_that_differed_as_the_job_stopped_the_one_that_fell_first_is_named(self) -> None:
        two = [_differs(host, (-10, 0), "gpu_power_watts", "low", 0.0) for host in ("n4", "n5")]

        assert _named_while_standing(40, *two) == [Reason.AMBIGUOUS]
        assert _named_while_standing(40, *two, self.fell_first) == ["n5"]

    def test_of_several_that_differ_since_too(self) -> None:
        idle = _differs("n5", (0, 35), "gpu_util_ratio", "low", standing=True)

        assert _named_while_standing(40, idle, replace(idle, component=self.busy.component)) == [Reason.AMBIGUOUS]
        assert _named_while_standing(40, idle, self.busy, self.fell_first) == ["n5"]

    def test_who_was_only_busier_as_the_job_fell_is_not(self) -> None:
        """Whoever stops does less than the others at first."""
        busier = _differs("n5", (-5, 0), "cpu_util_ratio", "high", leaning=True)
        assert _named_while_standing(40, busier) == [Reason.AMBIGUOUS]

    def test_nobody_is_named_beside_one_that_is_busy_until_it_is_clear_that_it_stays_so(self) -> None:
        """It may write a checkpoint, or its core; who fell first, or differed for a moment, says little then."""
        moment = _differs("n5", (0, 10), "gpu_util_ratio", "low", now_sigmas=0.0, standing=True)
        for other in (self.fell_first, moment):
            assert _named_while_standing(40, self.busy, other) == [Reason.AMBIGUOUS]
        assert _named_while_standing(70, self.busy, self.fell_first) == ["n3"]

    def test_who_ailed_in_several_ways_before_is_named_beside_it(self) -> None:
        assert _named_while_standing(40, self.busy, _ill((-10, 5))) == ["n4"]
        assert _named_while_standing(40, self.busy, _differs("n4", (-10, 5), "gpu_util_ratio", "low", 0.0)) == [
            Reason.AMBIGUOUS
        ]

    @pytest.mark.parametrize(("end", "now_sigmas", "named"), [(-1, 0.5, False), (-1, 9.0, True), (6, 0.5, True)])
    def test_a_hiccup_in_one_way_shortly_before_says_nothing(self, end: float, now_sigmas: float, named: bool) -> None:
        hiccup = _differs("n4", (-10, end), "gpu_util_ratio", "low", now_sigmas)

        assert _named_while_standing(40, hiccup) == (["n4"] if named else [Reason.AMBIGUOUS])
        assert _named_while_standing(40, _ill((-10, end))) == ["n4"]

    def test_how_slow_the_job_was_before_does_not_matter(self) -> None:
        idle = _differs("n5", (0, 35), "gpu_util_ratio", "low", standing=True)
        pace = Pace(stalled_since_ns=_ns(0), stalled_known_ns=_ns(10))
        named, _ = find_machine(_graph(), _ns(40), [idle], pace, MachineRules(), HarmlessDeviations())
        slower = Finding(FaultKind.FAIL_SLOW, "workload_change", (), _ns(-60), 0.6, Reason.JOB_WIDE_SLOWDOWN, ())

        assert join([slower], named) == [*named, slower]
        machine = [replace(named[0], fault=FaultKind.FAIL_SLOW)]
        assert join([slower], machine) == [slower]

    def test_whoever_differs_still_is_named_beside_it(self) -> None:
        idle = _differs("n5", (0, 35), "gpu_util_ratio", "low", standing=True)

        assert _named_while_standing(40, self.busy, idle) == ["n5"]

    def test_who_was_ill_until_the_job_stopped_is_named_where_all_look_alike_since(self) -> None:
        """Its processes hang, those of the others are ended by a watchdog, seconds later."""
        ill = _ill((-60, -5))
        assert _named_while_standing(40, ill) == ["n4"]
        assert _named_while_standing(40, ill, self.fell_first) == ["n4"]
        assert _named_while_standing(40, ill, _differs("n4", (0, 35), "cpu_util_ratio", "high", standing=True)) == [
            "n4"
        ]
        assert _named_while_standing(40, ill, self.busy) == [Reason.AMBIGUOUS]

    @pytest.mark.parametrize("span", [(-900, -5), (-200, -60)], ids=["for-long", "no-more"])
    def test_who_was_so_for_long_or_is_no_more_is_not(self, span: tuple[float, float]) -> None:
        assert _named_while_standing(40, _ill(span)) == [Reason.AMBIGUOUS]

    def test_one_odd_number_is_no_illness(self) -> None:
        assert _named_while_standing(40, _differs("n4", (-60, -5), "cpu_util_ratio", "low")) == [Reason.AMBIGUOUS]

    @pytest.mark.parametrize(("second", "named"), [(1.9, ["n5"]), (30.0, [Reason.STILL_PROGRESSING])])
    def test_a_job_whose_steps_still_end_is_slow_and_does_not_stand(self, second: float, named: list[object]) -> None:
        graph = _graph()
        graph.take([StepBatch(JOB, "n1", _ns(second), (StepRecord(_ns(second), 1, 7, 9.0),))])
        pace = Pace(stalled_since_ns=_ns(0), stalled_known_ns=_ns(10))
        found, reasons = find_machine(graph, _ns(40), [self.fell_first], pace, MachineRules(), HarmlessDeviations())

        assert ([suspect.component.name for finding in found for suspect in finding.suspects] or reasons) == named

    @pytest.mark.parametrize(("now_sigmas", "named"), [(0.5, [Reason.AMBIGUOUS]), (9.0, ["n3"])])
    def test_one_that_was_busy_and_let_its_gpus_rest_meanwhile_wrote_a_checkpoint(
        self, now_sigmas: float, named: list[object]
    ) -> None:
        """A last one, say: then all rest, and the job is over."""
        wrote = _differs("n3", (0, 10), "cpu_util_ratio", "high", now_sigmas)
        [rested] = _differs("n3", (0, 10), "gpu_util_ratio", "low", now_sigmas).detail["metrics"]
        metrics = [*wrote.detail["metrics"], {**rested, "score": 0.6}]

        assert _named_while_standing(40, replace(wrote, detail={"metrics": metrics})) == named

    def test_one_whose_gpus_fell_far_is_named_though_it_was_busy_too(self) -> None:
        fell = _ill((0, 10))
        metrics = [*_differs("n3", (0, 10), "cpu_util_ratio", "high", 0.5).detail["metrics"], *fell.detail["metrics"]]

        assert _named_while_standing(40, replace(fell, detail={"metrics": metrics})) == ["n4"]

    @pytest.mark.parametrize(
        ("ended_second", "named"), [(2.0, [Reason.ENDED_WITH_OTHERS]), (30.0, ["n5"])], ids=["at-once", "later"]
    )
    def test_where_all_processes_ended_as_the_job_came_to_stand_nobody_is_why(
        self, ended_second: float, named: list[object]
    ) -> None:
        """It is started again elsewhere; where they stood for a while, a watchdog ended them."""
        idle = _differs("n5", (5, 35), "gpu_util_ratio", "low", standing=True)
        for anomaly in (self.fell_first, idle):
            assert self._named_where_ended(ended_second, anomaly) == named

    def test_nor_does_that_excuse_who_was_ill_before_whose_gpu_is_gone_or_who_worked_on(self) -> None:
        gone = _differs("n5", (5, 35), "gpu_samples_ratio", "low", standing=True)
        worked_on = _differs("n5", (-5, 0), "gpu_util_ratio", "high", leaning=True)

        assert self._named_where_ended(2.0, _ill((-60, -5))) == ["n4"]
        assert self._named_where_ended(2.0, gone) == ["n5"]
        assert self._named_where_ended(2.0, worked_on) == ["n5"]

    def _named_where_ended(self, second: float, anomaly: Anomaly) -> list[str] | list[Reason]:
        ended = {f"n{row}": _ns(second) for row in range(8)}
        pace = Pace(stalled_since_ns=_ns(0), stalled_known_ns=_ns(10), ended_at_once=ended)
        found, reasons = find_machine(_graph(), _ns(40), [anomaly], pace, MachineRules(), HarmlessDeviations())
        return [suspect.component.name for finding in found for suspect in finding.suspects] or reasons

    def test_one_that_was_busy_for_a_while_leaves_it_open_who_it_was(self) -> None:
        was_busy = _differs("n3", (0, 35), "cpu_util_ratio", "high", now_sigmas=0.0, standing=True)
        moment = _differs("n5", (0, 10), "gpu_util_ratio", "low", now_sigmas=0.0, standing=True)

        assert _named_while_standing(100, was_busy, moment) == [Reason.AMBIGUOUS]


@pytest.mark.parametrize(
    ("seconds", "metrics", "is_named"),
    [
        (80, ("gpu_power_watts", "gpu_sm_clock_hertz"), True),
        (60, ("gpu_power_watts", "gpu_sm_clock_hertz"), False),
        (80, ("gpu_sm_clock_hertz",), False),
        (80, ("gpu_sm_clock_hertz", "gpu_temperature_celsius"), False),
        (310, ("gpu_sm_clock_hertz",), True),
    ],
)
def test_with_too_few_steps_before_several_far_metrics_are_believed_sooner(
    seconds: int, metrics: tuple[str, ...], is_named: bool
) -> None:
    parts = [_differs("n3", (0, seconds), name, "low") for name in metrics]
    lasting = replace(parts[0], detail={"metrics": [metric for part in parts for metric in part.detail["metrics"]]})
    found, reasons = find_machine(
        _graph(), _ns(seconds + 2), [lasting], Pace(None), MachineRules(), HarmlessDeviations()
    )

    assert [finding.fault.value for finding in found] == (["fail_slow"] if is_named else [])
    assert reasons == ([] if is_named else [Reason.NOT_CONTINUOUS])


class TestForgiven:
    """A deviation that begins as the job goes over to work that nobody announced."""

    def _after(self, pace: Pace, now_sigmas: float = 9.0) -> list[str]:
        cleared, rules = HarmlessDeviations(), MachineRules()
        begins = _differs("n3", (0, 10), "nvlink_bytes_per_second", "low")
        assert find_machine(_graph(), _ns(12), [begins], Pace(NO_STEP, work_goes_on=True), rules, cleared) == (
            [],
            [Reason.NON_TRAINING_PHASE],
        )
        later = _differs("n3", (0, 90), "nvlink_bytes_per_second", "low", now_sigmas)
        found, _ = find_machine(_graph(), _ns(92), [later], pace, rules, cleared)
        return [finding.fault.value for finding in found]

    def test_it_is_a_fault_where_it_stays_and_the_steps_are_slower_a_minute_later(self) -> None:
        assert self._after(Pace(SLOWER)) == ["fail_slow"]

    def test_it_stays_forgiven_where_the_job_is_as_ever_or_it_is_gone_or_no_step_ended(self) -> None:
        assert self._after(Pace(AS_EVER)) == ["degraded"]
        assert self._after(Pace(SLOWER), now_sigmas=1.0) == ["degraded"]
        assert self._after(Pace(NO_STEP)) == ["degraded"]

    def test_the_first_steps_after_a_pause_do_not_make_it_a_fault(self) -> None:
        """All machines come back from other work, one by one; by the third step they have."""
        assert self._after(Pace(replace(SLOWER, step_count=2))) == ["degraded"]
        assert self._after(Pace(replace(SLOWER, step_count=3))) == ["fail_slow"]
        assert self._after(Pace(SLOWER, median_step_ns=0)) == ["fail_slow"]  # told by work, not by steps

    def test_what_was_seen_to_hurt_nobody_is_not_why_the_job_is_slower_later(self) -> None:
        cleared, rules = HarmlessDeviations(), MachineRules()
        lasting = _differs("n3", (0, 90), "nvlink_bytes_per_second", "low")
        find_machine(_graph(), _ns(92), [lasting], Pace(AS_EVER), rules, cleared)

        longer = _differs("n3", (0, 198), "nvlink_bytes_per_second", "low")
        found, _ = find_machine(_graph(), _ns(200), [longer], Pace(SLOWER), rules, cleared)
        assert [finding.fault.value for finding in found] == ["degraded"]


@pytest.mark.parametrize(("step_seconds", "fault"), [(1.0, "degraded"), (40.0, "fail_slow")])
def test_a_minute_of_long_steps_shows_no_absence_of_harm(step_seconds: float, fault: str) -> None:
    """The step that was under way as it began ends in time; the next one is the first that tells."""
    cleared, rules = HarmlessDeviations(), MachineRules()
    step_ns = round(step_seconds * NS_PER_SECOND)
    lasting = _differs("n3", (0, 90), "nvlink_bytes_per_second", "low")
    find_machine(_graph(), _ns(92), [lasting], Pace(AS_EVER, median_step_ns=step_ns), rules, cleared)

    longer = _differs("n3", (0, 108), "nvlink_bytes_per_second", "low")
    found, _ = find_machine(_graph(), _ns(110), [longer], Pace(SLOWER, median_step_ns=step_ns), rules, cleared)
    assert [finding.fault.value for finding in found] == [fault]


def test_a_job_had_stood_before_its_first_death_or_it_had_not() -> None:
    graph, config = _graph(), StopConfig()
    assert stalled_before_deaths_ns(graph, _ns(0), config) == 0
    payload = {"code": 0, "signal": 6, "stderr_tail": "Watchdog caught collective operation timeout"}
    exits = Event(JOB, "n2", _ns(30), 2, EventSource.PROCESS, events.EXIT, Severity.ERROR, payload)
    graph.take([exits])

    assert stalled_before_deaths_ns(graph, _ns(0), config) == _ns(30)
    assert stalled_before_deaths_ns(graph, _ns(25), config) == 0
    assert stalled_before_deaths_ns(graph, 0, config) == 0


@pytest.mark.parametrize(
    ("metric", "last_step", "named"),
    [
        ("pfc_tx_packets_per_second", 80, ["n3"]),
        ("pfc_tx_packets_per_second", 1, []),
        ("gpu_sm_active_ratio", 80, []),
    ],
    ids=["its-port-is-jammed", "no-step-ends", "another-way-to-wait"],
)
def test_a_jammed_port_is_named_in_a_job_that_is_so_slow_that_it_seems_to_stand(
    metric: str, last_step: float, named: list[str]
) -> None:
    """Steps of three times the length leave less than 0.35 of the work per second: that looks like standing."""
    graph = _graph()
    graph.take([StepBatch(JOB, "n0", _ns(last_step), (StepRecord(_ns(last_step), 0, 7, 3.0),))])
    pace = Pace(SLOWER, stalled_since_ns=_ns(0), stalled_known_ns=_ns(10))
    anomaly = _differs("n3", (0, 85), metric, "high", standing=True, holds_memory=True)

    found, _ = find_machine(graph, _ns(90), [anomaly], pace, MachineRules(), HarmlessDeviations())

    slow = [finding for finding in found if finding.fault is FaultKind.FAIL_SLOW]
    assert [suspect.component.name for finding in slow for suspect in finding.suspects] == named


def _slower_since(second: float) -> Finding:
    return Finding(FaultKind.FAIL_SLOW, "unknown", (), _ns(second), 0.8, Reason.JOB_WIDE_SLOWDOWN, ())


@pytest.mark.parametrize(("onset", "named"), [(-5, ["n3"]), (20, ["n3"]), (60, [])])
def test_who_began_to_differ_long_after_the_job_became_slower_is_not_why(onset: float, named: list[str]) -> None:
    """Of a hundred machines in a job of long steps one or the other differs for half a minute, come what may."""
    pace = Pace(SLOWER, _ns(onset), median_step_ns=10 * NS_PER_SECOND)
    anomaly = _differs("n3", (onset, onset + 60), "gpu_sm_clock_hertz", "low")
    found, _ = find_machine(_graph(), _ns(onset + 60), [anomaly], pace, MachineRules(), HarmlessDeviations())
    assert [finding.reason for finding in found] == [Reason.METRICS_DIFFER_STEPS_SLOWER]

    left = began_later(_graph(), [_slower_since(0)], found, pace)

    assert [suspect.component.name for finding in left for suspect in finding.suspects] == named


def test_a_machine_that_only_still_differs_hides_not_that_the_job_is_slow() -> None:
    slow = _slower_since(0)
    holds = replace(slow, fault=FaultKind.DEGRADED, only_holds=True)

    assert join([slow], [holds]) == [slow, holds]


@pytest.mark.parametrize("cause", ["unknown", "workload_change", "shared_service"])
def test_a_machine_that_differs_and_is_not_why_hides_not_that_the_job_is_slow(cause: str) -> None:
    slow = replace(_slower_since(0), cause=cause)
    differs = replace(_named_by_steps("n3"), fault=FaultKind.DEGRADED, reason=Reason.NO_IMPACT)

    assert join([slow], [differs]) == [slow, differs]


def _told(
    pace: Pace, until: float, cleared: HarmlessDeviations, metric: str = "cpu_util_ratio"
) -> list[tuple[str, Reason]]:
    busy = _differs("n3", (0, until), metric, "high")
    busy.detail["metrics"][0].update(value=4.0)
    found, _ = find_machine(_graph(), _ns(until), [busy], pace, MachineRules(), cleared)
    return [(finding.fault.value, finding.reason) for finding in found]


def test_whose_cpu_another_program_used_when_the_job_became_slower_is_not_why() -> None:
    """A minute later the storage of all is slow. What else differs may take that long until it hurts."""
    hurts = [("fail_slow", Reason.METRICS_DIFFER_STEPS_SLOWER)]
    later, at_once = Pace(SLOWER, slower_ns=_ns(50)), Pace(SLOWER, slower_ns=_ns(5))
    cleared = HarmlessDeviations()

    assert _told(at_once, 70, HarmlessDeviations()) == hurts
    assert _told(later, 40, cleared) == [("degraded", Reason.NO_IMPACT)]
    assert _told(later, 120, cleared) == [("degraded", Reason.SLOWDOWN_FOLLOWS_ANOMALY)]
    assert _told(at_once, 125, cleared) == [("degraded", Reason.NO_IMPACT)]
    assert _told(later, 120, HarmlessDeviations(), "pfc_tx_packets_per_second") == hurts


def test_only_whom_it_was_said_of_is_cleared() -> None:
    """A daemon since a minute, and a link that fails as the steps become longer: the latter is why."""
    pace, cleared = Pace(SLOWER, slower_ns=_ns(45)), HarmlessDeviations()
    daemon = _differs("n3", (0, 110), "cpu_util_ratio", "high")
    link = _differs("n5", (45, 110), "rdma_bytes_per_second", "low")
    first, _ = find_machine(_graph(), _ns(110), [daemon, link], pace, MachineRules(), cleared)
    then, _ = find_machine(_graph(), _ns(115), [daemon, link], pace, MachineRules(), cleared)

    assert [(f.suspects[0].component.name, f.reason) for f in first][:1] == [("n3", Reason.SLOWDOWN_FOLLOWS_ANOMALY)]
    assert [(f.suspects[0].component.name, f.fault) for f in then][:1] == [("n5", FaultKind.FAIL_SLOW)]


@dataclass
class MeasuredPace(Pace):
    """A rank's own time, as measured."""

    own_seconds: float | None = None

    def own_excess_seconds(self, host: str) -> float | None:
        return self.own_seconds


@pytest.mark.parametrize(
    ("metric", "own_seconds", "hurts_later"),
    [("cpu_util_ratio", 0.0, False), ("cpu_util_ratio", None, True), ("pfc_tx_packets_per_second", 0.0, True)],
    ids=["measured", "not-measured", "more-than-a-cpu"],
)
def test_whose_own_time_was_measured_beside_another_programs_cpu_is_not_why_when_rows_are_lost(
    metric: str, own_seconds: float | None, hurts_later: bool
) -> None:
    cleared = HarmlessDeviations()
    first = _told(MeasuredPace(SLOWER, own_seconds=own_seconds), 60, cleared, metric)
    later = _told(MeasuredPace(SLOWER), 65, cleared, metric)

    assert [fault for fault, _ in (first[0], later[0])] == ["fail_slow" if hurts_later else "degraded"] * 2


@pytest.mark.parametrize(
    ("of_own", "own_seconds", "fault"),
    [(True, 0.0, "degraded"), (True, 0.4, "fail_slow"), (False, 0.0, "fail_slow"), (True, None, "fail_slow")],
    ids=["all compute longer", "and it most of all", "communication is longer", "not measured"],
)
@pytest.mark.parametrize("metric", ["rdma_bytes_per_second", "nvlink_bytes_per_second", "pfc_tx_packets_per_second"])
def test_a_link_is_not_why_all_ranks_compute_longer(
    metric: str, of_own: bool, own_seconds: float | None, fault: str
) -> None:
    """An exporter lost a field as the job went on to longer sequences."""
    pace = MeasuredPace(replace(SLOWER, is_of_own=of_own), own_seconds=own_seconds)
    direction = "high" if metric.startswith("pfc") else "low"
    found, _ = find_machine(
        _graph(), _ns(60), [_differs("n3", (0, 60), metric, direction)], pace, MachineRules(), HarmlessDeviations()
    )

    assert [finding.fault.value for finding in found] == [fault]
    assert found[0].is_harmless == (fault == "degraded")


@dataclass
class RealSteps(Pace):
    """Steps of some seconds that take a third longer from some time on."""

    seconds: float = 1.0

    def slowdown_since(self, onset_ns: int, now_ns: int) -> Slowdown | None:
        lengths: list[float] = []
        ends: list[int] = []
        at_ns = _ns(-2000)
        while at_ns < now_ns:
            length = self.seconds * (1.3 if at_ns >= self.slower_ns else 1.0) * (1 + 0.001 * (len(ends) % 3))
            at_ns += int(length * NS_PER_SECOND)
            lengths.append(length)
            ends.append(at_ns)
        done = np.array(ends) <= now_ns
        return find_slowdown(np.array(lengths)[done], np.array(ends, np.int64)[done], onset_ns, now_ns)


@pytest.mark.parametrize("seconds", [0.5, 1.0, 3.0, 4.0, 10.0, 30.0])
@pytest.mark.parametrize("metric", ["cpu_util_ratio", "gpu_sm_clock_hertz"])
def test_however_long_steps_are_who_differs_in_a_slow_job_is_not_why(seconds: float, metric: str) -> None:
    began = 30 + 10 * seconds
    slow = RealSteps(slower_ns=_ns(0), median_step_ns=int(seconds * NS_PER_SECOND), seconds=seconds)
    anomaly = _differs("n3", (began, began + 60 + 6 * seconds), metric, "low" if "clock" in metric else "high")
    now_ns = anomaly.end_ns
    late, _ = find_machine(_graph(), now_ns, [anomaly], slow, MachineRules(), HarmlessDeviations())
    at_once, _ = find_machine(
        _graph(), now_ns, [anomaly], replace(slow, slower_ns=_ns(began)), MachineRules(), HarmlessDeviations()
    )

    assert [finding.reason for finding in late] == [Reason.SLOWDOWN_PRECEDES_ANOMALY]
    assert [finding.reason for finding in at_once] == [Reason.METRICS_DIFFER_STEPS_SLOWER]


@pytest.mark.parametrize("slowdown", [SLOWER, None])
@pytest.mark.parametrize(
    ("metric", "step_seconds", "hurts"),
    [
        ("cpu_util_ratio", 0, False),
        ("cpu_util_ratio", 1, True),
        ("pfc_tx_packets_per_second", 0, True),
    ],
)
def test_a_cpu_alone_explains_nothing_in_a_job_without_steps(
    slowdown: Slowdown | None, metric: str, step_seconds: int, hurts: bool
) -> None:
    found = _told(Pace(slowdown, median_step_ns=step_seconds * NS_PER_SECOND), 400, HarmlessDeviations(), metric)

    assert [fault for fault, _ in found] == ["fail_slow" if hurts else "degraded"]


@pytest.mark.parametrize(("slower", "hurts"), [(-40, False), (-20, False), (-10, True), (0, True), (3, True)])
def test_whoever_began_to_differ_when_the_job_had_been_slower_for_a_while_is_not_why(
    slower: float, hurts: bool
) -> None:
    """The steps of all take longer (nobody says so any more, or not yet), and another program starts on one."""
    found = _told(Pace(SLOWER, slower_ns=_ns(slower)), 40, HarmlessDeviations())

    assert found == (
        [("fail_slow", Reason.METRICS_DIFFER_STEPS_SLOWER)]
        if hurts
        else [("degraded", Reason.SLOWDOWN_PRECEDES_ANOMALY)]
    )


@pytest.mark.parametrize(("certain", "hurts"), [(True, True), (False, False)])
def test_marks_of_congestion_alone_explain_no_slowdown_that_is_only_likely(certain: bool, hurts: bool) -> None:
    found = _told(Pace(replace(SLOWER, is_certain=certain)), 100, HarmlessDeviations(), "ecn_packets_per_second")

    assert (("fail_slow", Reason.METRICS_DIFFER_STEPS_SLOWER) in found) == hurts


def test_whoever_differs_again_as_several_begin_to_is_one_of_them() -> None:
    """A standstill ends: the data of some machines come before those of others."""
    metric = "gpu_graphics_active_ratio"
    jumpy = _differs("n3", (5, 65), metric, "low", standing=True)
    jumpy = replace(jumpy, detail={**jumpy.detail, "metrics": [{**jumpy.detail["metrics"][0], "present_ratio": 0.4}]})
    late = [_differs(host, (55, 65), metric, "low", standing=True) for host in ("n5", "n6")]
    others = [_differs(host, (55, 65), "gpu_power_watts", "low", standing=True) for host in ("n5", "n6")]
    steady = _differs("n3", (5, 65), metric, "low", standing=True)

    assert _named_while_standing(66, jumpy, *late) == [Reason.AMBIGUOUS]
    assert _named_while_standing(66, jumpy, *others) == ["n3"]
    assert _named_while_standing(66, steady, *late) == ["n3"]


@pytest.mark.parametrize(("step_count", "hurts"), [(1, False), (2, False), (3, True)])
def test_what_lasts_no_longer_than_one_long_step_is_one_late_start(step_count: int, hurts: bool) -> None:
    slower = Slowdown(0.3, True, False, step_seconds=20.0, before_seconds=15.0, step_count=step_count)
    found = _told(Pace(slower, median_step_ns=15 * NS_PER_SECOND), 15, HarmlessDeviations(), "gpu_sm_active_ratio")

    assert (("fail_slow", Reason.METRICS_DIFFER_STEPS_SLOWER) in found) == hurts


@pytest.mark.parametrize(
    ("metric", "neighbours_ratio", "named"),
    [
        ("pfc_tx_packets_per_second", 0.4, False),
        ("pfc_tx_packets_per_second", 0.05, True),
        ("pfc_tx_packets_per_second", None, True),
        ("ecn_packets_per_second", 0.4, False),
        ("ecn_packets_per_second", 0.05, True),
    ],
)
def test_the_most_jammed_one_behind_a_congested_switch_is_not_why(
    metric: str, neighbours_ratio: float | None, named: bool
) -> None:
    anomaly = _differs("n3", (0, 60), metric, "high")
    told = {"value": 4000.0, "expected": 100.0}
    anomaly.detail["metrics"][0].update(
        told if neighbours_ratio is None else told | {"neighbours_ratio": neighbours_ratio}
    )
    found, _ = find_machine(_graph(), _ns(60), [anomaly], Pace(SLOWER), MachineRules(), HarmlessDeviations())

    assert [finding.fault for finding in found if not finding.only_holds] == [FaultKind.FAIL_SLOW] * named


def test_what_else_speaks_against_the_most_jammed_one_still_does() -> None:
    """Its clock is down, or it moves half of the bytes."""
    jam = _differs("n3", (0, 60), "pfc_tx_packets_per_second", "high")
    jam.detail["metrics"][0].update(value=4000.0, expected=100.0, neighbours_ratio=0.4)
    jam.detail["metrics"].append(_differs("n3", (0, 60), "gpu_sm_clock_hertz", "low").detail["metrics"][0])
    found, _ = find_machine(_graph(), _ns(60), [jam], Pace(SLOWER), MachineRules(), HarmlessDeviations())

    assert [finding.fault for finding in found] == [FaultKind.FAIL_SLOW]


@pytest.mark.parametrize(
    ("second", "window_seconds", "names"), [(74, 5, ["n3"]), (80, 5, []), (95, 25, ["n3"]), (105, 25, [])]
)
def test_what_was_last_seen_long_ago_opens_nothing(second: float, window_seconds: int, names: list[str]) -> None:
    """Of several that differed alike the others were seen to be well again first."""
    graph = _graph()
    graph.hosts["n3"].report_interval_ns = window_seconds * NS_PER_SECOND
    anomaly = _differs("n3", (0, 60), "gpu_util_ratio", "low")
    found, reasons = find_machine(graph, _ns(second), [anomaly], Pace(SLOWER), MachineRules(), HarmlessDeviations())

    assert [f.suspects[0].component.name for f in found if not f.only_holds] == names
    assert (Reason.NOT_CONTINUOUS in reasons) is not bool(names)


@pytest.mark.parametrize(("until", "hurts"), [(20, False), (25, False), (30, True)])
def test_of_two_steps_the_longer_one_may_be_all_that_is_late(until: float, hurts: bool) -> None:
    """Their median is 20 s, so one of them took 25 s: all windows of 5 s that it touches show it."""
    slower = Slowdown(0.3, True, False, step_seconds=20.0, before_seconds=15.0, step_count=2)
    graph = _graph()
    graph.hosts["n3"].report_interval_ns = 5 * NS_PER_SECOND
    pace = Pace(slower, median_step_ns=15 * NS_PER_SECOND)
    anomaly = _differs("n3", (-5, until), "gpu_sm_active_ratio", "low")
    found, _ = find_machine(graph, _ns(until), [anomaly], pace, MachineRules(), HarmlessDeviations())

    assert [finding.fault for finding in found] == [FaultKind.FAIL_SLOW if hurts else FaultKind.DEGRADED]


@pytest.mark.parametrize(
    ("metric", "value", "hurts"),
    [
        ("pcie_bytes_per_second", 0.9 * 0.98, False),
        ("gpu_power_watts", 0.9 * 0.98, False),
        ("gpu_sm_clock_hertz", 0.9 * 0.98, True),
        ("pcie_bytes_per_second", 0.9 * 0.95, True),
        ("a_users_own", None, True),
    ],
)
def test_one_percent_less_however_surely_is_nothing_where_nobody_knows_what_it_costs(
    metric: str, value: float | None, hurts: bool
) -> None:
    anomaly = _differs("n3", (0, 100), metric, "low")
    anomaly.detail["metrics"][0].update(value=value, expected=0.9)
    found, _ = find_machine(
        _graph(), _ns(100), [anomaly], Pace(None, median_step_ns=0), MachineRules(), HarmlessDeviations()
    )

    assert [finding.fault for finding in found] == [FaultKind.FAIL_SLOW if hurts else FaultKind.DEGRADED]


@pytest.mark.parametrize(
    ("metric", "value", "hurts"),
    [
        ("gpu_sm_active_ratio", 0.9 * 1.01, False),
        ("gpu_sm_active_ratio", 0.9 * 1.04, True),
        ("gpu_sm_active_ratio", 0.9 * 0.96, True),
        ("gpu_power_watts", 0.9 * 1.01, True),
    ],
)
def test_gpus_that_work_one_percent_harder_are_not_why_a_job_lost_a_third(
    metric: str, value: float, hurts: bool
) -> None:
    """Those who wait for a slow machine are less busy than it by what the job lost."""
    anomaly = _differs("n3", (0, 60), metric, "high")
    anomaly.detail["metrics"][0].update(value=value, expected=0.9)
    found, _ = find_machine(_graph(), _ns(60), [anomaly], Pace(SLOWER), MachineRules(), HarmlessDeviations())

    assert [finding.fault for finding in found] == [FaultKind.FAIL_SLOW if hurts else FaultKind.DEGRADED]


@pytest.mark.parametrize(("more", "fault"), [(0.05, FaultKind.DEGRADED), (0.15, FaultKind.FAIL_SLOW)])
def test_a_few_cores_that_a_daemon_uses_are_not_why_a_job_lost_a_third(more: float, fault: FaultKind) -> None:
    anomaly = _differs("n3", (0, 60), "cpu_util_ratio", "high")
    anomaly.detail["metrics"][0].update(value=0.13 + more, expected=0.13)
    found, _ = find_machine(_graph(), _ns(60), [anomaly], Pace(SLOWER), MachineRules(), HarmlessDeviations())

    assert [finding.fault for finding in found] == [fault]


@pytest.mark.parametrize(
    ("stopped", "longest_pause_seconds", "fault", "is_tentative"),
    [(15, 0, "degraded", False), (30, 0, "fail_slow", True), (30, 40, "degraded", False), (185, 0, "fail_slow", False)],
)
def test_whoever_differs_while_no_step_ends_may_write_a_checkpoint_that_nobody_announced(
    stopped: float, longest_pause_seconds: int, fault: str, is_tentative: bool
) -> None:
    """As long as one and a half of the longest that was seen; and is not drained before twice of that."""
    graph = _graph()
    graph.take([StepBatch(JOB, "n1", _ns(0), (StepRecord(_ns(0), 1, 7, 1.0),))])
    anomaly = _differs("n3", (0, stopped), "rdma_bytes_per_second", "low")
    pace = Pace(NO_STEP, longest_pause_ns=longest_pause_seconds * NS_PER_SECOND)
    [found], _ = find_machine(graph, _ns(stopped), [anomaly], pace, MachineRules(), HarmlessDeviations())

    assert (found.fault.value, found.tentative) == (fault, is_tentative)


@pytest.mark.parametrize(
    ("metric", "now_sigmas", "fault"),
    [
        ("pfc_tx_packets_per_second", 0.0, FaultKind.DEGRADED),
        ("pfc_tx_packets_per_second", 1.5, FaultKind.FAIL_SLOW),
        ("rdma_bytes_per_second", 0.8, FaultKind.DEGRADED),
        ("rdma_bytes_per_second", 1.5, FaultKind.FAIL_SLOW),
    ],
)
def test_what_is_over_is_not_why(metric: str, now_sigmas: float, fault: FaultKind) -> None:
    """Fifteen seconds of packets lie in two half minutes, and look as if they had gone on for a minute."""
    anomaly = _differs("n3", (0, 60), metric, "high" if metric.startswith("pfc") else "low", now_sigmas)
    found, _ = find_machine(_graph(), _ns(60), [anomaly], Pace(SLOWER), MachineRules(), HarmlessDeviations())

    assert [finding.fault for finding in found] == [fault]


def _idle(host: str, value: float, present_ratio: float = 1.0, expected: float = 0.95) -> Anomaly:
    anomaly = _differs(host, (0, 85), "gpu_util_ratio", "low", standing=True, holds_memory=True)
    anomaly.detail["metrics"][0].update(value=value, expected=expected, present_ratio=present_ratio)
    return anomaly


def _unseen(anomaly: Anomaly) -> Anomaly:
    """There was no sample in the last window."""
    for name in ("sigmas", "value", "expected"):
        del anomaly.detail["metrics"][0][name]
    return anomaly


def test_what_was_not_sampled_in_the_last_window_is_not_over() -> None:
    anomaly = _unseen(_differs("n3", (0, 60), "pfc_tx_packets_per_second", "high"))
    found, _ = find_machine(_graph(), _ns(60), [anomaly], Pace(SLOWER), MachineRules(), HarmlessDeviations())

    assert [finding.fault for finding in found] == [FaultKind.FAIL_SLOW]


@pytest.mark.parametrize("ratio", [0.3, 4.0, 13.0])
@pytest.mark.parametrize("value", [0.2, 0.0])
def test_idle_gpus_are_never_too_little_however_much_the_job_lost(ratio: float, value: float) -> None:
    anomaly = _differs("n3", (0, 60), "gpu_util_ratio", "low")
    anomaly.detail["metrics"][0].update(value=value, expected=0.95)
    found, _ = find_machine(
        _graph(), _ns(60), [anomaly], Pace(replace(SLOWER, ratio=ratio)), MachineRules(), HarmlessDeviations()
    )

    assert [finding.fault for finding in found] == [FaultKind.FAIL_SLOW]


@pytest.mark.parametrize(
    ("anomalies", "last_step", "named"),
    [
        ([_idle("n3", 0.2)], 80, ["n3"]),
        ([_idle("n3", 0.2)], 1, []),
        ([_idle("n3", 0.9)], 80, []),
        ([_idle("n3", 0.2, present_ratio=0.4)], 80, []),
        ([_idle("n3", 0.2), _idle("n5", 0.2)], 80, []),
        ([_idle("n3", 0.05, expected=0.3)], 80, []),
        ([_unseen(_idle("n3", 0.2))], 80, []),
    ],
    ids=[
        "its-gpus-are-idle",
        "no-step-ends",
        "a-little-less",
        "now-and-then",
        "two",
        "all-wait-for-data",
        "no-sample-now",
    ],
)
def test_the_one_whose_gpus_are_idle_while_all_others_spin_is_named_in_a_job_that_seems_to_stand(
    anomalies: list[Anomaly], last_step: float, named: list[str]
) -> None:
    """Its loader takes three steps' time: the others wait for it in a collective, which keeps their GPUs busy."""
    graph = _graph()
    graph.take([StepBatch(JOB, "n0", _ns(last_step), (StepRecord(_ns(last_step), 0, 7, 3.0),))])
    pace = Pace(SLOWER, stalled_since_ns=_ns(0), stalled_known_ns=_ns(10))
    found, _ = find_machine(graph, _ns(90), anomalies, pace, MachineRules(), HarmlessDeviations())

    slow = [finding for finding in found if finding.fault is FaultKind.FAIL_SLOW]
    assert [suspect.component.name for finding in slow for suspect in finding.suspects] == named


def _named_by_steps(*hosts: str) -> Finding:
    suspects = tuple(Suspect(Component(ComponentKind.HOST, host)) for host in hosts)
    return Finding(FaultKind.FAIL_SLOW, "unknown", suspects, _ns(0), 0.8, Reason.SAME_RANK_SLOWEST, ())


@pytest.mark.parametrize(
    ("by_metrics", "named"), [(("n3",), ["n3"]), (("n3", "n4"), ["n2", "n3", "n4"]), (("n6",), ["n2", "n3", "n4"])]
)
def test_of_several_that_steps_name_alike_the_one_whose_metrics_tell_why_is_named(
    by_metrics: tuple[str, ...], named: list[str]
) -> None:
    told = [replace(_named_by_steps(host), reason=Reason.METRICS_DIFFER_STEPS_SLOWER) for host in by_metrics]
    [found] = join([_named_by_steps("n2", "n3", "n4")], told)

    assert [suspect.component.name for suspect in found.suspects] == named


@pytest.mark.parametrize(("later", "named"), [(20, ("n3", (7,))), (90, ("7", (7,)))])
def test_a_slow_rank_whose_machine_nobody_knows_runs_on_the_one_whose_metrics_tell_why(
    later: int, named: tuple[str, tuple[int, ...]]
) -> None:
    told = replace(_named_by_steps("n3"), reason=Reason.METRICS_DIFFER_STEPS_SLOWER, onset_ns=_ns(later))
    rank = Suspect(Component(ComponentKind.RANK, "7"), (7,))
    [found] = join([replace(_named_by_steps("n2"), suspects=(rank,))], [told])

    assert [(suspect.component.name, suspect.ranks) for suspect in found.suspects] == [named]


def test_of_those_behind_one_switch_none_is_singled_out_by_its_metrics() -> None:
    leaf = Component(ComponentKind.LEAF, "leaf-3")
    told = replace(_named_by_steps("n3"), reason=Reason.METRICS_DIFFER_STEPS_SLOWER)
    [found] = join([replace(_named_by_steps("n2", "n3"), common=leaf)], [told])

    assert [suspect.component.name for suspect in found.suspects] == ["n2", "n3"]
    assert found.common == leaf


WARM = {"metric": "gpu_temperature_celsius", "score": 0.6, "present_ratio": 1.0}


@pytest.mark.parametrize(("present_ratio", "named"), [(0.75, []), (0.9, ["n3"])])
def test_a_daemon_that_comes_again_is_not_why_all_became_slower(present_ratio: float, named: list[str]) -> None:
    anomaly = _differs("n3", (0, 40), "cpu_util_ratio", "high")
    anomaly.detail["metrics"][0].update(present_ratio=present_ratio)
    anomaly.detail["metrics"].append({**anomaly.detail["metrics"][0], **WARM})
    found, _ = find_machine(_graph(), _ns(41), [anomaly], Pace(SLOWER), MachineRules(), HarmlessDeviations())

    assert [suspect.component.name for finding in found for suspect in finding.suspects] == named


@pytest.mark.parametrize(
    ("steps", "fault"), [(1, FaultKind.DEGRADED), (2, FaultKind.DEGRADED), (3, FaultKind.FAIL_SLOW)]
)
def test_of_two_steps_one_may_be_late_while_another_program_uses_a_cpu(steps: int, fault: FaultKind) -> None:
    """A step of 18 s that takes a tenth longer, once: it was confirmed before the third step ended."""
    slower = replace(SLOWER, step_count=steps)
    found, _ = find_machine(
        _graph(),
        _ns(61),
        [_differs("n3", (0, 60), "cpu_util_ratio", "high")],
        Pace(slower),
        MachineRules(),
        HarmlessDeviations(),
    )

    assert [finding.fault for finding in found] == [fault]


@pytest.mark.parametrize(("far", "seconds", "named"), [(1, 50, []), (1, 80, ["n3"]), (2, 50, ["n3"])])
def test_where_nobody_knows_the_pace_one_metric_must_differ_for_longer_than_several(
    far: int, seconds: float, named: list[str]
) -> None:
    """A host of a congested switch sent a seventh less for a minute, in the first minutes of an attempt."""
    anomaly = _differs("n3", (0, seconds), "rdma_bytes_per_second", "low")
    power = {**anomaly.detail["metrics"][0], "metric": "gpu_power_watts"}
    anomaly.detail["metrics"].extend([power] * (far - 1))
    pace = Pace(None, median_step_ns=0)
    found, _ = find_machine(_graph(), _ns(seconds + 2), [anomaly], pace, MachineRules(), HarmlessDeviations())

    assert [suspect.component.name for finding in found for suspect in finding.suspects] == named


@pytest.mark.parametrize(
    ("present_ratio", "step_seconds", "window_seconds", "fault"),
    [
        (0.5, 0, 25, FaultKind.DEGRADED),
        (0.7, 0, 25, FaultKind.FAIL_SLOW),
        (0.5, 1, 25, FaultKind.FAIL_SLOW),
        (0.5, 0, 5, FaultKind.FAIL_SLOW),
    ],
)
def test_without_steps_what_every_other_long_window_shows_is_a_row_of_stalls(
    present_ratio: float, step_seconds: int, window_seconds: int, fault: FaultKind
) -> None:
    anomaly = _differs("n3", (0, 100), "gpu_util_ratio", "low")
    anomaly.detail["metrics"][0].update(present_ratio=present_ratio, value=0.5, expected=0.9)
    young = {"metric": "gpu_sm_active_ratio", "score": 0.5, "present_ratio": 1.0}
    anomaly.detail["metrics"].append({**anomaly.detail["metrics"][0], **young})
    pace = Pace(SLOWER, median_step_ns=step_seconds * NS_PER_SECOND)
    graph = _graph()
    graph.hosts["n3"].report_interval_ns = window_seconds * NS_PER_SECOND
    found, _ = find_machine(graph, _ns(100), [anomaly], pace, MachineRules(), HarmlessDeviations())

    assert [finding.fault for finding in found] == [fault]


HANG = Finding(FaultKind.HANG, "unknown", (), _ns(0), 0.5, Reason.JOB_STALLED_UNEXPLAINED, ())


def _one_idle(host: str = "n3", begin: float = -5, value: float = 0.87, sigmas: float = 53.0) -> Anomaly:
    """One GPU of a machine's eight does nothing, those of all others spin."""
    idle = _differs(host, (begin, 60), "gpu_util_ratio", "low", sigmas)
    idle.detail["metrics"][0].update(value=value, expected=0.99)
    return idle


class TestIdleSince:
    """All wait in their collectives, which do not tell for whom."""

    @pytest.mark.parametrize(
        ("anomalies", "named"),
        [
            ([_one_idle()], ["n3"]),
            ([_one_idle("n3"), _one_idle("n5")], []),
            ([_one_idle(), _differs("n5", (-5, 60), "cpu_util_ratio", "high")], ["n3"]),
            ([_one_idle(begin=-60)], []),
            ([_one_idle(value=0.95)], []),
            ([_one_idle(sigmas=9.0)], []),
            ([], []),
        ],
        ids=["one", "two", "a daemon elsewhere", "long before", "hardly", "all vary as much", "nobody"],
    )
    def test_the_one_whose_gpu_idles_is_named(self, anomalies: list[Anomaly], named: list[str]) -> None:
        found = idle_since(HANG, anomalies, _ns(60), MachineRules())

        assert [suspect.component.name for suspect in (found.suspects if found else ())] == named

    def test_who_is_busy_meanwhile_may_write_a_checkpoint(self) -> None:
        writer = _one_idle()
        [cpu] = _differs("n3", (-5, 60), "cpu_util_ratio", "high").detail["metrics"]
        writer.detail["metrics"].append(cpu)

        assert idle_since(HANG, [writer], _ns(60), MachineRules()) is None

    @pytest.mark.parametrize(("second", "tentative"), [(24, None), (60, True), (181, False)])
    def test_it_is_tentative_at_first(self, second: int, tentative: bool | None) -> None:
        idle = replace(_one_idle(), end_ns=_ns(max(second, 60)))

        found = idle_since(HANG, [idle], _ns(second), MachineRules())

        assert (found.tentative if found else None) is tentative


@pytest.mark.parametrize(
    ("hosts_a_stage", "metric", "direction", "fault"),
    [
        (1, "gpu_tensor_active_ratio", "high", FaultKind.DEGRADED),
        (1, "gpu_power_watts", "high", FaultKind.DEGRADED),
        (1, "gpu_power_watts", "low", FaultKind.FAIL_SLOW),
        (1, "gpu_sm_clock_hertz", "low", FaultKind.FAIL_SLOW),
        (2, "gpu_tensor_active_ratio", "high", FaultKind.FAIL_SLOW),
        (8, "gpu_tensor_active_ratio", "high", FaultKind.FAIL_SLOW),
    ],
)
def test_a_stage_of_one_host_may_have_more_work_since(
    hosts_a_stage: int, metric: str, direction: str, fault: FaultKind
) -> None:
    """An auxiliary loss in the last stage; nobody else has its role."""
    graph = JobGraph()
    graph.take([Topology(JOB, f"n{r}", T0, (RankPlace(r, f"n{r}", pp=r // hosts_a_stage),)) for r in range(8)])
    found, _ = find_machine(
        graph, _ns(60), [_differs("n7", (0, 60), metric, direction)], Pace(SLOWER), MachineRules(), HarmlessDeviations()
    )

    assert [finding.fault for finding in found] == [fault]


@pytest.mark.parametrize(
    ("metric", "score", "names"),
    [
        ("rdma_bytes_per_second", 1.4, ["n3"]),
        ("gpu_sm_clock_hertz", 1.4, ["n3"]),
        ("rdma_bytes_per_second", 0.6, []),
        ("gpu_util_ratio", 1.4, []),
    ],
)
def test_a_slow_link_tells_more_than_that_all_compute_longer(metric: str, score: float, names: list[str]) -> None:
    """Timers hold what ranks wait for: behind a slow link all compute longer."""
    longer = replace(_slower_since(0), cause="workload_change")
    shown = Evidence("peers", metric, score, _ns(0), _ns(60), "it differs")
    machine = replace(_slower_since(0), suspects=_named_by_steps("n3").suspects, evidence=(shown,))

    found = join([longer], [machine])

    assert [suspect.component.name for finding in found for suspect in finding.suspects] == names


@pytest.mark.parametrize(
    ("stages", "hosts", "common", "can"),
    [
        (1, (2,), "", True),
        (1, (2, 5), "", True),
        (1, (2, 5, 9), "", False),
        (1, (2, 5, 9), "leaf3", True),
        (4, (2, 6), "", False),
        (4, (2, 5), "", True),
    ],
    ids=["one", "two of sixteen", "three", "three behind a switch", "stages of one pipeline", "of two pipelines"],
)
def test_hosts_that_steps_name_together_are_few_and_no_pipeline(
    stages: int, hosts: tuple[int, ...], common: str, can: bool
) -> None:
    graph, count = JobGraph(), 16 // stages
    places = [RankPlace(r, f"n{r}", dp=r % count, tp=0, pp=r // count) for r in range(16)]
    frame_hosts = [Topology(JOB, f"n{r}", T0, (places[r],)) for r in range(16)]
    graph.take(frame_hosts)
    for host in range(16):
        graph.take([Frame(JOB, f"n{host}", _ns(1), 1, _ns(1), NS_PER_SECOND, 0, (), b"", b"")])
    suspects = tuple(Suspect(Component(ComponentKind.HOST, f"n{host}"), (host,)) for host in hosts)
    leaf = Component(ComponentKind.LEAF, common) if common else None
    finding = replace(_slower_since(0), suspects=suspects, reason=Reason.SAME_RANK_SLOWEST, common=leaf)

    assert can_be_at_fault(graph, finding, SlowRules()) is can


@pytest.mark.parametrize(
    ("pace", "after_seconds"),
    [
        (Pace(stalled_since_ns=T0, processes_wait_since_ns=T0), 300.0),
        (Pace(stalled_since_ns=T0, processes_wait_since_ns=T0, longest_stall_ns=_ns(200) - T0), 600.0),
        (Pace(stalled_since_ns=T0, processes_wait_since_ns=T0, longest_pause_ns=_ns(400) - T0), 1200.0),
        (Pace(stalled_since_ns=T0, processes_wait_since_ns=_ns(100)), 400.0),  # GPUs that worked until then
        (Pace(stalled_since_ns=T0, processes_wait_since_ns=0), None),
    ],
)
def test_when_a_standstill_is_told_that_nothing_explains(pace: Pace, after_seconds: float | None) -> None:
    """Three times the longest pause that ended, five minutes at least."""
    told = [at for at in range(1, 2000) if told_as_unexplained(_graph(), _ns(at), pace, MachineRules())]

    assert (told[0] if told else None) == after_seconds


class TestOthersDiffer:
    """A machine was named, and for one window others differ as much."""

    others = tuple(_differs(host, (95, 100), "gpu_power_watts", "low") for host in ("n1", "n2"))

    @pytest.mark.parametrize(("begin", "sigmas", "holds"), [(40, 9.0, ["n4"]), (40, 0.0, []), (90, 9.0, [])])
    def test_what_was_said_of_it_is_held_while_it_differs_as_ever(
        self, begin: int, sigmas: float, holds: list[str]
    ) -> None:
        """Not where it is seen no more, nor where it differs for as short as they: that told nobody yet."""
        ill = _differs("n4", (begin, 100), "gpu_sm_clock_hertz", "low", sigmas)

        found, reasons = find_machine(
            _graph(), _ns(101), (ill, *self.others), Pace(), MachineRules(), HarmlessDeviations()
        )

        assert reasons == [Reason.AMBIGUOUS]
        assert [suspect.component.name for finding in found for suspect in finding.suspects] == holds
        assert all(finding.only_holds for finding in found)
