"""``tocsin backtest`` as a command: figures, pages, messages, exit codes."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.model_announcements import DEAF
from tests.pipeline.lab.backtest import kit
from tests.pipeline.lab.backtest.kit import metric_table
from tests.pipeline.lab.registry.kit import card, minder_payload
from tests.pipeline.recording.kit import good_tables, manifest, write_folder
from tocsin.cli.main import main
from tocsin.models.documents import write_numbers
from tocsin.pipeline.lab.registry import Registry
from tocsin.pipeline.lab.simulation.case import draw_case
from tocsin.pipeline.recording.tables import Recording
from tocsin.pipeline.recording.writer import write_recording
from tocsin.schemas.printable import readable


@cache
def case(kind: str) -> Recording:
    return draw_case(2, 4, kind, duration_seconds=300.0).recording()


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """A folder with a fault and a healthy job."""
    for name, kind in (("a", "machine_unreachable"), ("b", "healthy")):
        write_recording(tmp_path / "many" / name, case(kind))
    return tmp_path / "many"


def reported(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_figures_are_those_of_replay_and_score(many: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [str(many / name) for name in ("a", "b")]
    assert main(["replay", *folders]) == 0
    capsys.readouterr()
    assert main(["score", *folders, "--json"]) == 0
    wanted = reported(capsys)

    assert main(["backtest", str(many), "--detectors", "ours", "--json", "--jobs", "2"]) == 0
    found = reported(capsys)["sets"]["ours"]
    assert wanted["all"]["hits"] == 1
    assert {name: found[name] for name in wanted} == readable(wanted)


def test_a_table_by_set_and_by_kind(many: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backtest", str(many), "--kinds", "--jobs", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()

    assert lines[0] == "2 recordings, 1 with a fault, 1 healthy"
    assert lines[1].split()[:3] == ["set", "faults", "hits"]
    assert [line.split()[0] for line in lines[2:4]] == ["ours", "plain"]
    assert lines[2].split()[1:6] == ["1", "1", "1.000", "1.000", "1.000"]
    assert {"ours:", "plain:"} < set(lines)
    assert any(line.startswith("machine_unreachable ") for line in lines)
    assert any(line.startswith("hang ") for line in lines)


def test_what_people_said_is_compared(many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(many / "a")]) == 0
    lines = [json.loads(line) for line in (many / "a" / "verdicts.jsonl").read_text().splitlines()]
    last = {line["id"]: line for line in lines}
    manifest = json.loads((many / "a" / "manifest.json").read_text())
    said = [
        {
            "verdict_id": verdict_id,
            "cluster": manifest["cluster"],
            "job_id": manifest["job_id"],
            "attempt": manifest["attempt"],
            "fault": line["fault"],
            "suspects": [one["name"] for one in line["suspects"]],
            "onset_ns": line["onset_ns"],
            "changed_ns": line["detected_ns"],
            "is_true": at == 0,
        }
        for at, (verdict_id, line) in enumerate(last.items())
    ]
    file = tmp_path / "said.jsonl"
    file.write_text("\n".join(map(json.dumps, said)))
    capsys.readouterr()

    assert main(["backtest", str(many / "a"), "--detectors", "ours", "--feedback", str(file), "--json"]) == 0
    found = reported(capsys)["sets"]["ours"]["feedback"]
    denied = len(said) - 1
    assert found == {"upheld": 1, "found": 1, "denied": denied, "repeated": denied, "unjudged": 0}

    file.write_text("[]")
    assert main(["backtest", str(many), "--feedback", str(file)]) == 2
    assert "line 1" in capsys.readouterr().err


def test_pages_are_written_well_formed_and_linked(many: Path, tmp_path: Path) -> None:
    out = tmp_path / "out" / "deep"
    for _ in range(2):  # the second time over the first one's
        assert main(["backtest", str(many), "--out", str(out), "--jobs", "1"]) == 0
        names = sorted(path.name for path in out.iterdir())
        assert names == ["backtest.json", "case-0000-a.html", "case-0001-b.html", "index.html"]
    index = ET.parse(out / "index.html")
    links = [link.get("href") for link in index.iter("{http://www.w3.org/1999/xhtml}a")]
    page = ET.parse(out / "case-0000-a.html").getroot()
    truth = case("machine_unreachable").truth
    assert truth is not None
    host = truth["faults"][0]["suspects"][0]["name"]
    marked = {path.get("data-host") for path in page.iter() if path.get("class") == "culprit suspect"}

    assert sorted(link for link in links if link) == ["case-0000-a.html", "case-0001-b.html"]
    assert marked == {host}
    assert json.loads((out / "backtest.json").read_text())["sets"]["ours"]["all"]["hits"] == 1


def test_a_folder_that_holds_something_else_is_not_written_to(
    many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "case-mine.html").write_text("mine")

    assert main(["backtest", str(many), "--out", str(tmp_path)]) == 2
    assert "must be a new or empty folder" in capsys.readouterr().err
    assert (tmp_path / "case-mine.html").read_text() == "mine"


def test_one_bad_recording_costs_itself_only(many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = good_tables()
    del tables["steps"]["rank"]
    bad, absent, out = write_folder(tmp_path / "bad", tables), tmp_path / "absent", tmp_path / "out"

    argv = ["backtest", str(absent), str(bad), str(many), "--out", str(out), "--detectors", "plain", "--jobs", "1"]
    assert main(argv) == 2
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        f"tocsin backtest: {bad}: steps.parquet, column rank: the required column is missing",
        f"tocsin backtest: {absent}: no such folder",
    ]
    assert said.out.startswith("4 recordings, 1 with a fault, 1 healthy, 2 unreadable\n")
    assert "unreadable: steps.parquet" in (out / "index.html").read_text()
    assert (out / "case-0002-b.html").is_file()


def test_nothing_to_judge_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path / "empty", {}, reported=manifest(700))
    few = write_folder(tmp_path / "few", good_tables(), reported=manifest(700), truth={"faults": []})
    sets = "ours,peers,steps,plain,entropy,bilstm,minder-raw,mahalanobis"

    argv = ["backtest", str(folder), str(few), "--out", str(tmp_path / "out"), "--detectors", sets, "--json"]
    assert main([*argv, "--jobs", "1"]) == 0
    by_set = {name: figures["not_judged"] for name, figures in reported(capsys)["sets"].items()}
    assert by_set["ours"] == {"nothing_recorded": 1}
    assert by_set["plain"] == {"metric_missing": 1, "too_few_peers": 1}
    assert by_set["peers"] == {"metric_missing": 1, "too_few_peers": 1}
    assert by_set["steps"] == by_set["entropy"] == by_set["bilstm"] == {"no_hook": 1, "warming_up": 1}
    assert by_set["minder-raw"] == by_set["mahalanobis"] == {"metric_missing": 1, "span_too_short": 1}
    index = (tmp_path / "out" / "index.html").read_text()
    assert "not judged: nothing_recorded" in index


def test_a_model_from_a_file_judges_from_the_begin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "deaf.json").write_bytes(write_numbers(DEAF))
    argv = ["backtest", str(busy(tmp_path / "busy", 1.1, 0.93)), "--detectors", "ours", "--json"]

    assert main(argv) == 0
    assert said_of(capsys) == ["n2"]
    assert main([*argv, "--model", f"peers={tmp_path / 'deaf.json'}"]) == 0
    assert said_of(capsys) == []


@pytest.mark.parametrize("text", ["no model", ""])
def test_a_file_that_is_no_model_is_named(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other").write_text(text)

    assert main(["backtest", str(busy(tmp_path / "busy")), "--model", f"peers={tmp_path / 'other'}"]) == 2
    assert str(tmp_path / "other") in capsys.readouterr().err


def test_a_minder_model_of_another_window_is_named_and_not_the_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "w16.bin").write_bytes(minder_payload(window_ticks=16))
    argv = ["backtest", str(busy(tmp_path / "busy")), "--detectors", "minder", "--model", f"minder={tmp_path}/w16.bin"]

    assert main(argv) == 2
    said = capsys.readouterr().err
    assert f"minder={tmp_path}/w16.bin" in said
    assert "window_ticks = 16: must be 8" in said


def test_a_model_out_of_the_registry_by_version_and_the_current_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording, registry = busy(tmp_path / "busy", 1.1, 0.93), Registry.open(str(tmp_path / "models"))
    added = registry.add(card("peers"), write_numbers(DEAF))
    argv = ["backtest", str(recording), "--detectors", "ours", "--json", "--registry", str(tmp_path / "models")]

    assert main(argv) == 0
    assert said_of(capsys) == ["n2"]
    assert main([*argv, "--model", f"peers={added.version}"]) == 0
    assert said_of(capsys) == []
    registry.promote("peers", added.version, {})
    assert main([*argv, "--model", "peers=current"]) == 0
    assert said_of(capsys) == []
    assert main([*argv, "--model", "peers=builtin"]) == 0
    assert said_of(capsys) == ["n2"]


def busy(folder: Path, cpu_factor: float = 1.9, link_factor: float = 0.5) -> Path:
    """Six machines, one of which has a busy CPU and a link that carries half from the second minute on."""
    noise = 1 + 0.01 * np.random.default_rng(1).standard_normal((300, 6))
    cpu, link = 0.5 * noise, 2e10 * noise
    cpu[60:, 2] *= cpu_factor
    link[60:, 2] *= link_factor
    columns = {"cpu_util_ratio": cpu, "rdma_bytes_per_second": link}
    table = metric_table([f"n{index}" for index in range(6)], columns)
    write_recording(folder, Recording(kit.manifest(300), {"host_metrics": table}))
    return folder


def said_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    [case] = reported(capsys)["cases"]
    return sorted({name for one in case["sets"]["ours"]["accusations"] for name in one["suspects"]})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--jobs", "0"], "at least 1"),
        (["--detectors", "mine"], "minder-no-continuity"),
        (["--detectors", ","], "one or more of ours"),
        (["--model", "peers"], "DETECTOR=FILE"),
        (["--model", "plain=x"], "one of peers, steps, minder, entropy, bilstm"),
        (["--model", "peers=absent"], "no such model"),
        (["--model", "peers=current"], "promoted"),
        (["--detectors", "minder", "--model", "minder=FILE"], "model file"),
    ],
)
def test_wrong_arguments(
    many: Path, tmp_path: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_bytes(b"no model at all" * 20)
    told_arguments = [argument.replace("FILE", str(tmp_path / "file")) for argument in arguments]
    registry = ["--registry", str(tmp_path / "registry")]

    assert main(["backtest", str(many / "b"), *told_arguments, *registry]) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert said.out == ""
