"""The pages: well-formed, alone, small; who is marked, and where the marks stand."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest

from tests.pipeline.lab.backtest.kit import (
    Says,
    cpu_recording,
    fault,
    manifest,
    metric_table,
)
from tocsin.pipeline.lab.backtest.case_page import case_page
from tocsin.pipeline.lab.backtest.plots import with_unit
from tocsin.pipeline.lab.backtest.runner import Runner
from tocsin.pipeline.lab.backtest.trial import judge
from tocsin.pipeline.recording.tables import Recording
from tocsin.schemas.reasons import Reason

X, S = "{http://www.w3.org/1999/xhtml}", "{http://www.w3.org/2000/svg}"
LEFT, RIGHT = 150, 1860
"""Where the time axis begins and ends."""


def parsed(recording: Recording, *runners: Runner) -> ET.Element:
    return ET.fromstring(case_page("case", recording, judge(recording, runners)))


def words(element: ET.Element) -> str:
    return " ".join("".join(element.itertext()).split())


def lines(page: ET.Element, kind: str) -> list[ET.Element]:
    return [path for path in page.iter(f"{S}path") if kind in (path.get("class") or "").split()]


def plots(page: ET.Element) -> list[str]:
    return [next(svg.iter(f"{S}title")).text or "" for svg in page.iter(f"{S}svg")]


def x_of(path: ET.Element) -> int:
    found = re.match(r"M(\d+) ", path.get("d") or "")
    assert found is not None
    return int(found[1])


def place(seconds: float, whole_seconds: float = 600) -> int:
    return round(LEFT + seconds / whole_seconds * (RIGHT - LEFT))


FAULTY = cpu_recording(faults=[fault("n2", 200, 500)])


def test_onset_end_and_verdict_stand_at_their_times() -> None:
    page = parsed(FAULTY, Says("ours", (("n2", 230),)))

    assert [x_of(path) for path in lines(page, "onset")] == [place(200)]
    assert [x_of(path) for path in lines(page, "end")] == [place(500)]
    assert [x_of(path) for path in lines(page, "v")] == [place(230)]
    assert words(lines(page, "v")[0]) == "ours: n2"


def test_the_culprit_is_marked_and_the_others_are_grey() -> None:
    page = parsed(FAULTY, Says("ours", (("n2", 230), ("n4", 300))))

    [culprit] = lines(page, "culprit")
    assert (culprit.get("data-host"), culprit.get("class")) == ("n2", "culprit suspect")
    [accused] = lines(page, "named")
    assert (accused.get("data-host"), accused.get("class")) == ("n4", "named suspect")
    assert sorted(words(path) for path in lines(page, "p")) == ["n0", "n1", "n3", "n5"]


def test_a_culprit_that_nobody_named_is_no_suspect() -> None:
    [culprit] = lines(parsed(FAULTY, Says("ours")), "culprit")

    assert culprit.get("class") == "culprit"


def test_lines_have_the_values_of_the_machine() -> None:
    values = np.zeros((600, 3))
    values[300:, 1] = 1.0
    recording = Recording(manifest(600), {"host_metrics": metric_table(["a", "b", "c"], {"cpu_util_ratio": values})})
    page = parsed(recording, Says("ours", (("b", 400),)))
    [line] = lines(page, "named")
    steps = [(int(dx), int(dy)) for dx, dy in re.findall(r"([+-]\d+)([+-]\d+)", line.get("d") or "")]

    assert len(steps) == 299
    assert [index for index, (_, dy) in enumerate(steps) if dy] == [149]
    assert steps[149][1] == -(262 - 40 - 16)  # upwards, from the lowest value to the highest
    assert x_of(line) + sum(dx for dx, _ in steps) == place(599)


def test_gaps_break_the_line() -> None:
    values = np.full((600, 3), 0.5)
    values[200:300, 1] = np.nan
    recording = Recording(manifest(600), {"host_metrics": metric_table(["a", "b", "c"], {"cpu_util_ratio": values})})
    by_host = {words(path): (path.get("d") or "").count("M") for path in lines(parsed(recording), "p")}

    assert by_host == {"a": 1, "b": 2, "c": 1}


def test_the_time_axis_is_labelled() -> None:
    texts = [words(text) for text in parsed(FAULTY).iter(f"{S}text")]

    assert {"0:00", "1:00", "5:00", "10:00"} <= set(texts)


def test_each_metric_has_one_plot_and_what_convicted_comes_first() -> None:
    both = {"memory_used_ratio": np.full((600, 4), 0.3), "cpu_util_ratio": np.full((600, 4), 0.5)}
    recording = Recording(manifest(600), {"host_metrics": metric_table(list("abcd"), both)})
    said = Says("ours", (("a", 100),), metric="memory_used_ratio")

    assert plots(parsed(recording)) == ["cpu_util_ratio", "memory_used_ratio"]
    assert plots(parsed(recording, said)) == ["memory_used_ratio", "cpu_util_ratio"]


def test_truth_and_verdicts_stand_in_tables() -> None:
    page = parsed(FAULTY, Says("ours", (("n2", 230), ("n4", 300))), Says("deaf", reason=Reason.TOO_FEW_PEERS))
    rows = [[words(cell) for cell in row] for row in page.iter(f"{X}tr")]

    assert ["fail_slow", "power_cap", "n2", "3:20", "8:20"] in rows
    why = "metrics_differ_for_long, cpu_util_ratio"
    assert ["ours", "n2", "3:50", "30.0 s", "3:45", "power_cap", why, "hit"] in rows
    assert ["ours", "n4", "5:00", "", "4:55", "power_cap", why, "false"] in rows
    assert ["deaf", "could not judge", "", "", "", "", "too_few_peers", ""] in rows
    assert ["deaf", "nobody", "", "", "", "", "", "missed 1"] in rows


@pytest.mark.parametrize(("faults", "sentence"), [(None, "No truth.json"), ((), "nobody is at fault")])
def test_a_healthy_and_an_unknown_case_say_so(faults: tuple[()] | None, sentence: str) -> None:
    assert sentence in words(parsed(cpu_recording(faults=faults), Says("ours")))


def test_a_page_needs_nothing_from_elsewhere() -> None:
    text = case_page("case", FAULTY, judge(FAULTY, [Says("ours", (("n2", 230),))]))

    assert "<script" not in text
    assert re.findall(r'(?:src|href)="([^"]*)"', text) == ["index.html"]
    assert set(re.findall(r"https?://[^\"' <]*", text)) == {
        "http://www.w3.org/1999/xhtml",
        "http://www.w3.org/2000/svg",
    }


def test_names_of_machines_are_text_and_nothing_else() -> None:
    evil = ['<script>alert("1")</script>', "a&b", "c\x01\x1b'\"", "d\u2028", "e\ud800"]
    table = metric_table(evil, {"cpu_util_ratio": np.full((600, 5), 0.5)})
    recording = Recording(manifest(600), {"host_metrics": table}, {}, {"faults": [fault(evil[0], 100, 200, "<b>")]})
    page = parsed(recording, Says("ours", ((evil[1], 120), (evil[2], 130))))

    assert not list(page.iter(f"{X}script"))
    assert lines(page, "culprit")[0].get("data-host") == evil[0]
    assert lines(page, "named")[0].get("data-host") == "a&b"


@pytest.mark.parametrize("host_count", [1, 4, 64, 65, 1024])
def test_pages_stay_small_at_any_size(host_count: int) -> None:
    seconds = 600
    random = np.random.default_rng(2)
    noise = {name: random.random((seconds, host_count)) for name in ("cpu_util_ratio", "memory_used_ratio")}
    table = metric_table([f"n{index}" for index in range(host_count)], noise)
    recording = Recording(manifest(seconds), {"host_metrics": table}, {}, {"faults": [fault("n0", 200, 500)]})
    text = case_page("case", recording, judge(recording, [Says("ours", ((f"n{host_count - 1}", 230),))]))
    page = ET.fromstring(text)

    assert len(text) < 130_000
    assert len(lines(page, "culprit")) == 2
    if host_count > 64:
        assert (len(lines(page, "b5")), len(lines(page, "b25")), len(lines(page, "mid"))) == (2, 2, 2)
        assert not lines(page, "p")
    else:
        assert len(lines(page, "p")) == 2 * max(0, host_count - 2)


def test_a_set_that_accuses_everybody_does_not_blow_up_the_page() -> None:
    count = 300
    noise = np.random.default_rng(3).random((300, count))
    table = metric_table([f"n{index}" for index in range(count)], {"cpu_util_ratio": noise})
    recording = Recording(manifest(300), {"host_metrics": table}, {}, {"faults": []})
    page = parsed(recording, Says("mad", tuple((f"n{index}", 10 + index / 2) for index in range(count))))

    assert len(lines(page, "named")) == 16
    assert len(lines(page, "v")) == 60
    assert "and 100 more" in words(page)


def test_all_equal_values_and_empty_recordings_have_a_page() -> None:
    table = metric_table(["a", "b", "c"], {"cpu_util_ratio": np.zeros((600, 3))})
    flat = Recording(manifest(600), {"host_metrics": table})
    nothing = replace(cpu_recording(), tables={}, manifest=replace(manifest(600), start_ns=0, end_ns=0))

    assert len(list(parsed(flat).iter(f"{S}svg"))) == 1
    assert not list(parsed(nothing).iter(f"{S}svg"))


def test_the_axis_of_a_counter_that_is_zero_begins_there() -> None:
    table = metric_table(["a", "b", "c"], {"tcp_bytes_per_second": np.zeros((600, 3))})
    page = parsed(Recording(manifest(600), {"host_metrics": table}))
    labels = [words(one) for one in page.iter(f"{S}text") if one.get("text-anchor") == "end"]
    assert labels == ["0 B/s", "1 B/s"]


def test_steps_and_their_phases_come_before_metrics_that_convicted_nobody() -> None:
    """For hangs and slow ranks: how far each machine is, and where its time goes."""
    steps = {
        "ts_ns": np.arange(600, dtype=np.int64) * 10**9 + manifest(600).start_ns,
        "rank": np.zeros(600, np.int32),
        "step": np.arange(600, dtype=np.int64),
        "duration_seconds": np.full(600, 1.0),
        "forward_seconds": np.full(600, 0.4),
        "backward_seconds": np.full(600, np.nan),
    }
    metrics = metric_table(["a", "b", "c"], {"cpu_util_ratio": np.full((600, 3), 0.5)})
    recording = Recording(manifest(600), {"host_metrics": metrics, "steps": steps})
    shown = ["steps.step", "steps.duration_seconds", "steps.forward_seconds", "cpu_util_ratio"]
    assert plots(parsed(recording)) == shown


@pytest.mark.parametrize(
    ("value", "metric", "shown"),
    [
        (1.41e9, "gpu_sm_clock_hertz", "1.41 GHz"),
        (34.56, "gpu_temperature_celsius", "34.6 °C"),
        (0.872, "cpu_util_ratio", "0.872"),
        (2.5e11, "nvlink_bytes_per_second", "250 GB/s"),
        (0.0, "pfc_tx_packets_per_second", "0 /s"),
        (0.0123, "steps.duration_seconds", "12.3 ms"),
        (-3.0, "queue", "-3"),
        (0.25, "disk_write_bytes_per_second", "0.25 B/s"),
        (0.5, "ecc_errors", "0.5"),
        (0.004, "pfc_tx_packets_per_second", "0.004 /s"),
    ],
)
def test_values_have_their_unit(value: float, metric: str, shown: str) -> None:
    assert with_unit(value, metric) == shown
