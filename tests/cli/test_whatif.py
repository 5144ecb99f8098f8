"""``tocsin whatif`` as a person and an outside program call it."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.models.whatif.plain import Layout
from tests.models.whatif.traces import Effects, make
from tests.pipeline.recording.test_op_trace import table_of
from tocsin.cli.main import main

KEYS = {
    *("S", "T_seconds", "T_ideal_seconds", "S_t", "S_by_dp_rank", "S_by_stage", "M_W", "M_S", "cause", "shares"),
    *("verdict_on_machines", "step_slowdown", "S_t_by_step", "S_by_dp_rank_by_step", "S_by_stage_by_step"),
    *("S_by_worker", "waste", "discrepancy"),
}


@pytest.fixture
def files(shared_data: Path) -> list[str]:
    folder = shared_data / "whatif"
    if not folder.is_dir():
        pytest.skip(f"no public what-if trace at {folder}")
    return [str(folder / "trace-ST.parquet"), "--meta", str(folder / "meta-ST.yaml")]


def test_json_is_one_object_with_the_keys_of_the_contract(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", *files, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)

    assert set(found) >= KEYS
    assert found["S"] == pytest.approx(1.1787, abs=1e-4)
    assert found["cause"] == "stage_imbalance"
    assert found["verdict_on_machines"] == []
    assert sum(found["shares"].values()) == pytest.approx(1.0)
    assert found["shares"]["stage_imbalance"] > 0.8
    assert found["S_by_worker"][1][3] == pytest.approx(found["S_by_dp_rank"][1])
    assert set(found["S_by_stage_by_step"]) == set(found["step_slowdown"])


def test_the_first_line_says_why(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", *files]) == 0

    said = capsys.readouterr().out.splitlines()[0]
    assert said.startswith("The last stage is the reason: 14 % of the job's time (the job takes 18 % longer")
    assert "balance it by moving 29 % of its work" in said


def test_the_page_is_whole_and_loads_nothing(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert main(["whatif", *files, "--html", str(page)]) == 0
    assert capsys.readouterr().out

    text = page.read_text(encoding="utf-8")
    root = ET.fromstring(text.partition("\n")[2])
    drawn = [node for node in root.iter() if node.tag.endswith("svg")]
    assert len(drawn) == 2
    assert "http:" not in text.replace("http://www.w3.org/1999/xhtml", "")
    assert "https:" not in text
    assert "last stage is the reason" in text


SENTENCES = {
    "Rank 11 is the reason: ": Effects(workers={(2, 3): 1.6}),
    "The first stage is the reason: ": Effects(stages={0: 2.4}),
    "Stage 2 is the reason: ": Effects(stages={2: 1.6}),
    "The data are the reason: ": Effects(data_sigma=0.5),
    "Pauses of the program are the reason: ": Effects(pause_probability=0.08, pause_seconds=0.3),
    "Communication is the reason: ": Effects(slow_transfers={"grads-reduce-scatter": (0.4, 60.0)}),
    "No straggler: ": Effects(),
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_each_reason_has_its_sentence(sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, meta = tmp_path / "trace.parquet", tmp_path / "meta.yaml"
    pq.write_table(table_of(make(Layout(3, 4, microbatches=6), SENTENCES[sentence], 2, step_count=6).trace), trace)
    meta.write_text("dp_size: 3\npp_size: 4\n")

    assert main(["whatif", str(trace), "--meta", str(meta), "--html", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out.startswith(sentence)
    assert sentence in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("meta", "said"),
    [
        ("dp_size: 2\n", "pp_size"),
        ("dp_size: 2\npp_size: four\n", "meta.yml:2: pp_size = 'four'"),
        ("dp_size: 2\npp_size: 4\nworld_size: 9\n", "meta.yml:3: world_size = 9: must be"),
        (
            "dp_size: 1\npp_size: 4\n",
            "meta.yml:1: dp_size = 1: must be at least 2 (there is a data-parallel rank 1), by trace-ST.parquet",
        ),
        (
            "dp_size: 4\npp_size: 4\n",
            "meta.yml:1: dp_size = 4: must be 2, the number of data-parallel ranks, by trace-ST.parquet",
        ),
        ("dp_size: 2\npp_size: 8\n", "meta.yml:2: pp_size = 8: must be 4, the number of stages, by trace-ST.parquet"),
        ("dp_size: 2\npp_size: 2\n", "meta.yml:2: pp_size = 2: must be 4, the number of stages, by trace-ST.parquet"),
        (
            "dp_size: 2\npp_size: 4\nvpp_size: 2\n",
            "meta.yml:3: vpp_size = 2: must be 1, the number of model chunks of a stage, by trace-ST.parquet",
        ),
        ("dp_size: 2\npp_size: 4\nnum_microbatches: 8\n", "meta.yml:3: num_microbatches = 8: must be 4, the number of"),
        ("dp_size: [\n", "YAML"),
    ],
)
def test_a_wrong_description_is_refused_by_file_and_field(
    meta: str, said: str, files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "meta.yml"
    path.write_text(meta)

    assert main(["whatif", files[0], "--meta", str(path)]) == 2
    assert said in capsys.readouterr().err


def test_a_missing_trace_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    meta = tmp_path / "meta.yml"
    meta.write_text("dp_size: 1\npp_size: 1\n")

    assert main(["whatif", str(tmp_path / "none.parquet"), "--meta", str(meta)]) == 2
    assert "none.parquet: there is no such file" in capsys.readouterr().err
