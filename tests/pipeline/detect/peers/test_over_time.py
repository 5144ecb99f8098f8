"""The peer detector over hours: what it learns and how fast, warm-up, drift, single GPUs, machines that come later."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tocsin.models.metric_means import MetricMeans
from tocsin.pipeline.detect.peers.activity import WORK
from tocsin.pipeline.detect.peers.config import PeersConfig
from tocsin.pipeline.detect.peers.detector import PeerDetector
from tocsin.pipeline.detect.peers.exits import EXITS
from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.metrics import GPU_METRICS, HOST_METRICS
from tocsin.schemas.records import NS_PER_SECOND, JobKey, RankPlace, Slice, Topology
from tocsin.schemas.verdicts import Anomaly

JOB = JobKey("c", "j")
T0 = 1_700_000_000 * NS_PER_SECOND
HOSTS, GPUS = 8, 8
POWER = [metric.name for metric in GPU_METRICS].index("gpu_power_watts")
UTIL = [metric.name for metric in GPU_METRICS].index("gpu_util_ratio")
NVLINK = [metric.name for metric in GPU_METRICS].index("nvlink_bytes_per_second")
PCIE = [metric.name for metric in GPU_METRICS].index("pcie_bytes_per_second")
PFC = [metric.name for metric in HOST_METRICS].index("pfc_tx_packets_per_second")
CPU = [metric.name for metric in HOST_METRICS].index("cpu_util_ratio")
Floats = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
Change = Callable[[int, Floats, Floats], None]
"""Changes one window's values: (window, hosts x metrics, hosts x GPUs x metrics)."""


def anomalies(
    change: Change, windows: int, warmup_noise: float = 0.01, graph: JobGraph | None = None, hosts: int = HOSTS
) -> Iterator[tuple[int, Anomaly]]:
    """What the detector says after each window of five seconds of a job of hosts of eight GPUs."""
    yield from _run(PeerDetector(PeersConfig(), graph or JobGraph()), change, windows, warmup_noise, hosts)


def _run(
    detector: PeerDetector, change: Change, windows: int, warmup_noise: float, hosts: int
) -> Iterator[tuple[int, Anomaly]]:
    draw = np.random.default_rng(3)
    names = tuple(f"n{row:02d}" for row in range(hosts))
    gpus = tuple((name, f"GPU-{name}-{gpu}") for name in names for gpu in range(GPUS))
    for window in range(windows):
        own = 0.5 * (1 + warmup_noise * draw.standard_normal((hosts, len(HOST_METRICS))))
        each = 0.5 * (1 + warmup_noise * draw.standard_normal((hosts, GPUS, len(GPU_METRICS))))
        each[:, :, POWER] *= 900
        host, gpu = own.astype(np.float32), each.astype(np.float32)
        change(window, host, gpu)
        flat = gpu.reshape(hosts * GPUS, -1)
        end_ns = T0 + 5 * (window + 1) * NS_PER_SECOND
        stamps = np.full(hosts, end_ns - 1, np.int64)
        counts = [(5 * np.isfinite(values)).astype(np.uint16) for values in (host, flat)]
        fives = np.full(hosts, 5, np.int64)
        seconds = np.full(hosts, NS_PER_SECOND, np.int64)
        means = MetricMeans(names, stamps, seconds, fives, gpus, host, counts[0], flat, counts[1])
        for anomaly in detector.on_means(Slice(JOB, end_ns - 5 * NS_PER_SECOND, end_ns, ()), means):
            yield window, anomaly


def reported(
    change: Change, windows: int, warmup_noise: float = 0.01, *, while_stalled: bool = False
) -> dict[str, list[int]]:
    """Host -> the windows in which it is named.

    For its work; or for what it does while the job stands, or did as it came to stand.
    """
    found: dict[str, list[int]] = {}
    for window, anomaly in anomalies(change, windows, warmup_noise):
        if anomaly.detector == EXITS:
            continue  # all of a GPU's metrics move together here, its memory too
        if "odd" in anomaly.detail:
            continue  # test_peer_odd
        if bool(anomaly.detail.keys() & {"standing", "leaning"}) is while_stalled:
            found.setdefault(anomaly.component.name, []).append(window)
    return found


@pytest.mark.parametrize(("leaf_hosts", "congestion", "told_ratio"), [(4, 0.4, 0.4), (4, 0.0, 0.0), (2, 0.4, None)])
def test_beside_a_congested_port_stands_how_congested_its_neighbours_are(
    leaf_hosts: int, congestion: float, told_ratio: float | None
) -> None:
    """By the median of the hosts behind the same switch; a single one tells nothing."""
    graph = JobGraph()
    places = [RankPlace(row, f"n{row:02d}", leaf=f"leaf{row // leaf_hosts}") for row in range(64)]
    graph.take([Topology(JOB, place.host, T0, (place,)) for place in places])

    def congest(window: int, host: Floats, gpu: Floats) -> None:
        host[:, PFC] = 100.0
        if window >= 60:
            host[1, PFC] += 5000
            host[[0, *range(2, leaf_hosts)], PFC] += 5000 * congestion

    [*_, last] = [
        anomaly for _, anomaly in anomalies(congest, 70, graph=graph, hosts=64) if anomaly.component.name == "n01"
    ]
    [pfc] = [metric for metric in last.detail["metrics"] if metric["metric"] == HOST_METRICS[PFC].name]

    assert pfc.get("neighbours_ratio") == (told_ratio if told_ratio is None else pytest.approx(told_ratio, abs=0.02))


def test_a_slow_drift_of_one_machine_is_learned_and_named_by_nobody() -> None:
    """A tenth in fifty minutes: fans age, a room gets warmer. The same tenth at once is a deviation."""

    def drift(window: int, host: Floats, gpu: Floats) -> None:
        gpu[3, :, POWER] *= 1 - 0.1 * window / 600

    def step(window: int, host: Floats, gpu: Floats) -> None:
        gpu[3, :, POWER] *= 0.9 if window >= 300 else 1.0

    assert reported(drift, 600) == {}
    assert min(reported(step, 330)["n03"]) < 306


def test_a_drift_of_all_machines_together_is_nobody_s() -> None:
    def drift(window: int, host: Floats, gpu: Floats) -> None:
        gpu[:, :, POWER] *= 1 - 0.5 * window / 600
        host[:, CPU] *= 1 + 0.5 * window / 600

    assert reported(drift, 600) == {}


def test_a_deviation_that_lasts_is_not_learned_away_within_half_an_hour() -> None:
    def step(window: int, host: Floats, gpu: Floats) -> None:
        gpu[3, :, POWER] *= 0.75 if window >= 60 else 1.0

    found = reported(step, 60 + 360)

    assert set(found) == {"n03"}
    assert found["n03"] == list(range(min(found["n03"]), 420))


def test_a_deviation_that_ends_is_seen_to_end_within_a_minute() -> None:
    def spell(window: int, host: Floats, gpu: Floats) -> None:
        gpu[3, :, POWER] *= 0.75 if 60 <= window < 120 else 1.0

    assert max(reported(spell, 180)["n03"]) < 120 + 12


def test_nobody_is_named_while_the_job_warms_up() -> None:
    """The first minute: one machine compiles 40 s longer than the others, and then is as they are."""

    def compiles(window: int, host: Floats, gpu: Floats) -> None:
        busy = 0.1 + 0.9 * min(1.0, window / 8)
        gpu[:, :, POWER] *= busy
        if window < 8:
            gpu[3, :, POWER] *= 0.5
            host[3, CPU] *= 1.8

    assert reported(compiles, 200) == {}


def test_a_machine_that_was_always_different_is_how_it_is() -> None:
    def odd(window: int, host: Floats, gpu: Floats) -> None:
        gpu[3, :, POWER] *= 0.8
        host[5, CPU] *= 1.5

    assert reported(odd, 300) == {}


@pytest.mark.parametrize("factor", [0.7, 0.8])
def test_one_gpu_of_eight_does_not_drown_in_the_mean(factor: float) -> None:
    """The host's mean falls by 3.75 or 2.5 %: that alone is no alarm."""

    def one_gpu(window: int, host: Floats, gpu: Floats) -> None:
        gpu[3, 5, POWER] *= factor if window >= 60 else 1.0

    def all_a_little(window: int, host: Floats, gpu: Floats) -> None:
        gpu[3, :, POWER] *= 1 - (1 - factor) / GPUS if window >= 60 else 1.0

    found = reported(one_gpu, 80)

    assert set(found) == {"n03"}
    assert min(found["n03"]) <= 63
    assert reported(all_a_little, 80) == {}


def swapped(window: int, taken: bool) -> list[Anomaly]:
    """What a detector says that was restored at a window: at 40 a card was swapped for another one, or taken out."""
    draw = np.random.default_rng(5)
    names = tuple(f"n{row:02d}" for row in range(HOSTS))
    detector = PeerDetector(PeersConfig(), JobGraph())
    found: list[Anomaly] = []
    for number in range(70):
        if number == window:
            parts = detector.snapshot()
            detector = PeerDetector(PeersConfig(), JobGraph())
            detector.restore(parts)
        card = "GPU-0" if number < 40 else "GPU-new"
        gpus = sorted(
            (name, card if (name, gpu) == ("n03", 0) else f"GPU-{gpu}")
            for name in names
            for gpu in range(GPUS)
            if not (taken and number >= 40 and (name, gpu) == ("n03", 0))
        )
        host = (0.5 * (1 + 0.01 * draw.standard_normal((HOSTS, len(HOST_METRICS))))).astype(np.float32)
        each = (0.5 * (1 + 0.01 * draw.standard_normal((len(gpus), len(GPU_METRICS))))).astype(np.float32)
        each[:, POWER] *= 900
        end_ns = T0 + 5 * (number + 1) * NS_PER_SECOND
        stamps, fives = np.full(HOSTS, end_ns - 1, np.int64), np.full(HOSTS, 5, np.int64)
        seconds = np.full(HOSTS, NS_PER_SECOND, np.int64)
        own, cards = (np.full(values.shape, 5, np.uint16) for values in (host, each))
        means = MetricMeans(names, stamps, seconds, fives, tuple(gpus), host, own, each, cards)
        found += detector.on_means(Slice(JOB, end_ns - 5 * NS_PER_SECOND, end_ns, ()), means)
    return found


@pytest.mark.parametrize("window", [0, 39, 41, 60])
def test_a_gpu_that_was_swapped_stays_retired_after_a_restore(window: int) -> None:
    """What is kept says which cards are gone for good: else the machine would be one card short from then on."""
    assert swapped(window, taken=False) == []
    assert {anomaly.component.name for anomaly in swapped(window, taken=True)} == {"n03"}


def test_a_machine_that_joins_late_is_learned_first() -> None:
    def joins(window: int, host: Floats, gpu: Floats) -> None:
        if window < 100:
            host[6], gpu[6] = np.nan, np.nan
        gpu[6, :, POWER] *= 0.8

    assert reported(joins, 200) == {}


def test_metrics_that_two_of_eight_never_have_hide_nobody() -> None:
    """A fifth of a fleet without profiling counters: the machines without them are compared by the rest."""
    profiled = [column for column, metric in enumerate(GPU_METRICS) if metric.name.endswith("_active_ratio")]

    def without(window: int, host: Floats, gpu: Floats) -> None:
        for row in (2, 6):
            gpu[row][:, profiled] = np.nan

    def healthy(window: int, host: Floats, gpu: Floats) -> None:
        without(window, host, gpu)

    def slow(row: int, column: int) -> Change:
        def change(window: int, host: Floats, gpu: Floats) -> None:
            gpu[row, :, column] *= 0.75 if window >= 60 else 1.0
            without(window, host, gpu)

        return change

    assert reported(healthy, 100) == {}
    assert set(reported(slow(3, profiled[0]), 80)) == {"n03"}  # one that has them
    assert set(reported(slow(6, POWER), 80)) == {"n06"}  # one that has not


NOT_SAMPLED = [column for column, metric in enumerate(GPU_METRICS) if metric.name in WORK and column != PCIE]


def _load(window: int, gpu: Floats) -> bool:
    """Without profiling counters: from the 60th window on, four of twenty in which all wait for their data."""
    gpu[:, :, NOT_SAMPLED] = np.nan
    gpu[:, :, PCIE] *= 1e9
    if window < 60 or window % 20 >= 4:
        return False
    gpu[:, :, UTIL] *= 0.1
    gpu[:, :, POWER] *= 0.5
    gpu[:, :, PCIE] *= 9
    return True


def test_who_has_its_data_first_computes_while_the_others_load() -> None:
    """It is ahead of them: busier, and less goes over its PCIe. Neither is slow."""

    def ahead(window: int, host: Floats, gpu: Floats) -> None:
        if _load(window, gpu):
            gpu[3, :, UTIL] *= 2.4
            gpu[3, :, POWER] *= 1.12
            gpu[3, :, PCIE] *= 0.94

    assert reported(ahead, 160) == {}


@pytest.mark.parametrize("column", [POWER, UTIL])
def test_a_machine_that_is_slow_shows_between_the_times_in_which_all_load(column: int) -> None:
    def slow(window: int, host: Floats, gpu: Floats) -> None:
        _load(window, gpu)
        gpu[3, :, column] *= 0.75 if window >= 60 else 1.0

    assert set(reported(slow, 100)) == {"n03"}


_PACE = (3.0, 0.05, 0.05)
"""Steps of 15 s: a window of work, then all wait for the slowest."""


def _uneven(window: int, host: Floats, gpu: Floats) -> None:
    gpu[:, :, :] *= _PACE[window % len(_PACE)]


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_a_stolen_cpu_shows_in_a_job_of_which_hardly_two_windows_are_alike(factor: float) -> None:
    def stolen(window: int, host: Floats, gpu: Floats) -> None:
        _uneven(window, host, gpu)
        host[3, CPU] *= factor if window >= 60 else 1.0

    found = reported(stolen, 90)

    assert set(found) == (set() if factor == 1.0 else {"n03"})
    assert factor == 1.0 or min(found["n03"]) <= 65


def test_a_daemon_in_such_a_job_is_gone_after_a_minute() -> None:
    def daemon(window: int, host: Floats, gpu: Floats) -> None:
        _uneven(window, host, gpu)
        host[3, CPU] *= 3.0 if 60 <= window < 62 else 1.0

    assert max(reported(daemon, 120).get("n03", [0])) < 62 + 12


def test_a_clock_that_is_a_second_ahead_is_no_deviation_in_such_a_job() -> None:
    """Of each window with a change it shows a fifth of the next one's, in GPU and CPU alike."""

    def ahead(window: int, host: Floats, gpu: Floats) -> None:
        own, following = (_PACE[(window + later) % len(_PACE)] for later in (0, 1))
        gpu[:, :, :] *= own
        gpu[3] *= (0.8 * own + 0.2 * following) / own
        host[:, CPU] *= 0.8 + 0.2 * own
        host[3, CPU] *= (0.8 + 0.2 * (0.8 * own + 0.2 * following)) / (0.8 + 0.2 * own)

    assert reported(ahead, 240) == {}


@pytest.mark.parametrize("gpus", [1, GPUS])
def test_a_single_gpu_that_stopped_shows_as_the_job_comes_to_stand(gpus: int) -> None:
    """Its peers wait for five seconds, then their processes end, too. A whole host may only have another clock."""

    def stops(window: int, host: Floats, gpu: Floats) -> None:
        if window >= 60:
            gpu[:, :, :] *= 0.1 if window == 60 else 0.0
            gpu[3, :gpus, [UTIL, NVLINK]] = 0.0

    found = reported(stops, 72, while_stalled=True)

    assert set(found) == ({"n03"} if gpus == 1 else set())


def test_what_was_learned_while_the_job_loaded_is_forgotten_when_it_works() -> None:
    """Machines begin one after the other: each one's first windows are another one's usual level many times over."""

    def starts(window: int, host: Floats, gpu: Floats) -> None:
        for row in range(HOSTS):
            if window < 14 and (window + row) % HOSTS:
                gpu[row] *= 0.1
        gpu[3, :, POWER] *= 0.8 if window >= 60 else 1.0

    found = reported(starts, 72)

    assert list(found) == ["n03"]
    assert 60 <= min(found["n03"]) < 66


def test_a_link_that_was_hardly_used_while_the_job_loaded_is_learned_anew() -> None:
    """The GPUs were busy from the first window on, NVLink was not; each machine's window of the change shows a part."""
    part = np.linspace(0.05, 0.6, HOSTS).astype(np.float32)

    def loads(window: int, host: Floats, gpu: Floats) -> None:
        gpu[:, :, NVLINK] *= 6e10
        if window < 10:
            gpu[:, :, NVLINK] = 2000.0
        if window == 10:
            gpu[:, :, NVLINK] *= part[:, None]
        gpu[3, :, NVLINK] *= 0.7 if window >= 90 else 1.0

    found = reported(loads, 102)

    assert list(found) == ["n03"]
    assert 90 <= min(found["n03"]) < 96


def test_a_checkpoint_that_pushes_pcie_is_no_beginning_where_pcie_alone_tells_of_work() -> None:
    """What was learned of the GPUs stays, and the job does not seem to stand when PCIe is as quiet as ever."""

    def uploads(window: int, host: Floats, gpu: Floats) -> None:
        others = [column for column, metric in enumerate(GPU_METRICS) if metric.name in WORK and column != PCIE]
        gpu[:, :, others] = np.nan
        gpu[:, :, PCIE] *= 1e9
        if 40 <= window < 52:
            gpu[:, :, PCIE] *= 10.0
            gpu[:, :, POWER] *= 0.4
        gpu[3, :, POWER] *= 0.7 if window >= 90 else 1.0

    assert reported(uploads, 102, while_stalled=True) == {}
    assert list(reported(uploads, 102)) == ["n03"]


def test_a_job_whose_hosts_send_gpu_metrics_only_stands_too() -> None:
    def stands(window: int, host: Floats, gpu: Floats) -> None:
        host[:] = np.nan
        if window >= 60:
            gpu[:, :, :] *= 0.02
            gpu[3, :, [UTIL, POWER]] *= 20.0

    assert set(reported(stands, 72, while_stalled=True)) == {"n03"}


def test_who_left_the_job_an_hour_ago_is_forgotten_and_the_others_are_not() -> None:
    """One of eight machines is replaced each minute: memory and state hold an hour of them, and find the faulty one."""
    draw = np.random.default_rng(3)
    detector = PeerDetector(PeersConfig(), JobGraph())
    sizes, accused = {}, set()
    for window in range(2400):
        fresh = 7 + window // 12
        names = tuple(sorted(["a-stays", *(f"n{number:05d}" for number in range(fresh - 7, fresh))]))
        host = (0.5 * (1 + 0.01 * draw.standard_normal((8, len(HOST_METRICS))))).astype(np.float32)
        gpu = (0.5 * (1 + 0.01 * draw.standard_normal((8, len(GPU_METRICS))))).astype(np.float32)
        if window >= 2300:
            gpu[names.index("a-stays"), UTIL] *= 0.5
        end_ns = T0 + 5 * (window + 1) * NS_PER_SECOND
        rows = tuple((name, f"GPU-{name}") for name in names)
        stamps, ticks, fives = (np.full(8, value, np.int64) for value in (end_ns - 1, NS_PER_SECOND, 5))
        counts = [np.full(values.shape, 5, np.uint16) for values in (host, gpu)]
        means = MetricMeans(names, stamps, ticks, fives, rows, host, counts[0], gpu, counts[1])
        said = detector.on_means(Slice(JOB, end_ns - 5 * NS_PER_SECOND, end_ns, ()), means)
        accused |= {anomaly.component.name for anomaly in said if anomaly.score >= 1.0}
        if window in (1000, 2290):
            sizes[window] = sum(map(len, detector.snapshot().values()))
            other = PeerDetector(PeersConfig(), JobGraph())
            other.restore(detector.snapshot())
            assert other.snapshot() == detector.snapshot()

    assert sizes[2290] < 1.1 * sizes[1000]
    assert accused == {"a-stays"}


@pytest.mark.parametrize(("first_seconds", "count"), [(0, 8), (20, 0)], ids=["at-once", "one-before-the-others"])
def test_all_processes_end_at_once_whoever_comes_to_replace_one(first_seconds: int, count: int) -> None:
    """The ninth machine never worked in the job; it does not count."""
    memory = [metric.name for metric in GPU_METRICS].index("gpu_memory_used_bytes")
    detector = PeerDetector(PeersConfig(), JobGraph())

    def end(window: int, host: Floats, gpu: Floats) -> None:
        gpu[:, :, memory] = 4e10
        gpu[0, :, memory] *= window < 30 - first_seconds // 5
        gpu[1:, :, memory] *= window < 30
        if window < 35:
            host[8], gpu[8] = np.nan, np.nan
        else:
            gpu[8, :, memory] = 4e8

    list(_run(detector, end, 40, 0.01, 9))
    assert len(detector.ended_at_once) == count
