"""``tocsin placement`` as a person and an outside program call it."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tocsin.cli.main import main

CLUSTER = """\
SwitchName=core Switches=pod[1-2]
SwitchName=pod1 Switches=leaf[1-2]
SwitchName=pod2 Switches=leaf[3-4]
SwitchName=leaf1 Nodes=node[01-04]
SwitchName=leaf2 Nodes=node[05-08]
SwitchName=leaf3 Nodes=node[09-12]
SwitchName=leaf4 Nodes=node[13-18]
"""
JOB = ["--hosts", "node[01-16]", "--tp", "8", "--pp", "4"]


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    path = tmp_path / "topology.conf"
    path.write_text(CLUSTER)
    return str(path)


def recording(folder: Path, *, leaf: str = "leaf{}", minipod: str = "pod{}", dp: int = 2) -> str:
    """Four hosts of one rank each: two stages, the first stage's hosts in one minipod; ``dp`` below 1: unknown."""
    folder.mkdir()
    manifest = {"format_version": 1, "job_id": "job-7", "attempt": 0, "start_ns": 0, "end_ns": 10**9}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    ranks = range(4)
    table = {
        "rank": pa.array(ranks, pa.int32()),
        "host": [f"h{rank}" for rank in ranks],
        "dp": pa.array([rank % dp if dp > 0 else -1 for rank in ranks], pa.int16()),
        "pp": pa.array([rank // 2 for rank in ranks], pa.int16()),
        "tp": pa.array([0] * 4, pa.int16()),
        "leaf": [leaf.format(rank) for rank in ranks],
        "minipod": [minipod.format(rank // 2) for rank in ranks],
    }
    pq.write_table(pa.table(table), folder / "topology.parquet")
    return str(folder)


def test_the_first_line_says_what_re_placing_gains(cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["placement", cluster, *JOB]) == 0

    printed = capsys.readouterr().out
    assert printed.splitlines()[0] == (
        "Re-placing lowers the weighted number of minipods from 1.70 to 1.30 (data-parallel groups 1 to 2, pipeline "
        "groups 2 to 1); 8 places of 16 get another host."
    )
    assert "pp          4      4             2  2.00         2  pp of dp 0, tp 0" in printed
    assert "greedy, pp" in printed


def test_json_has_groups_candidates_moves_and_bound(cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["placement", cluster, *JOB, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)

    assert (found["now"]["max_pods_dp"], found["now"]["max_pods_pp"]) == (1, 2)
    assert found["reason"] == "less_spread"
    assert found["candidates"][0]["weighted_pods"] == pytest.approx(1.3)
    assert found["candidates"][0]["gap_ratio"] == 0
    assert found["candidates"][0]["bound"] == pytest.approx(1.3)
    assert len(found["moves"]) == 8
    assert {move["host"] for move in found["moves"]} == {move["new_host"] for move in found["moves"]}
    assert sum(group["kind"] == "pp" for group in found["groups"]) == 4


def test_the_page_is_whole_and_loads_nothing(cluster: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["placement", cluster, *JOB, "--html", str(page)]) == 0
    assert capsys.readouterr().out

    tree = ET.fromstring(page.read_text().removeprefix("<!DOCTYPE html>"))  # whole XML
    cells = [element for element in tree.iter() if element.tag.endswith("}title")]
    assert sum(": pod" in (cell.text or "") for cell in cells) == 32  # 16 hosts, now and re-placed
    assert "http" not in page.read_text().replace("http://www.w3.org/1999/xhtml", "").replace("http-equiv", "")


def test_spares_are_ranked_for_an_eviction(cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    job = ["--hosts", "node[01-03,09-11]", "--tp", "8", "--pp", "2", "--evict", "node10"]
    assert main(["placement", cluster, *job, "--spare", "node04,node18", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)

    assert [spare["host"] for spare in found["spares"]] == ["node18", "node04"]
    assert [spare["pod"] for spare in found["spares"]] == ["pod2", "pod1"]
    assert found["spares"][0]["change"] == 0


def test_a_recording_that_names_its_switches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["placement", recording(tmp_path / "r"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)

    assert (found["job"], found["hosts"], found["level"]) == ("job-7", 4, "minipod")
    assert (found["now"]["max_pods_dp"], found["now"]["max_pods_pp"]) == (1, 2)
    assert found["now"]["worst_groups"]["pp"] == "pp of dp 0, tp 0"


def test_switches_of_a_recording_come_from_the_topology(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = {"instances": [{"id": f"h{n}", "network_layers": [f"l{n}", f"s{n % 2}"]} for n in range(4)]}
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(graph))
    folder = recording(tmp_path / "r", leaf="", minipod="")

    assert main(["placement", folder]) == 2
    assert "the leaf of 'h0' is not known (4 of 4 hosts); --topology FILE names it" in capsys.readouterr().err
    assert main(["placement", folder, "--topology", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["now"]["max_pods_dp"], found["now"]["max_pods_pp"]) == (2, 1)


def test_recorded_groups_go_before_coordinates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = recording(tmp_path / "r", dp=0)
    assert main(["placement", folder]) == 2
    assert "there is no groups.parquet: the groups are not known" in capsys.readouterr().err
    groups = {
        "comm_id": ["a", "a", "b", "b"],
        "kind": ["pp"] * 4,
        "rank": pa.array([0, 1, 2, 3], pa.int32()),
    }
    pq.write_table(pa.table(groups), Path(folder, "groups.parquet"))

    assert main(["placement", folder]) == 0
    assert capsys.readouterr().out.startswith("No data-parallel or pipeline group touches a second minipod")


def test_leaves_are_counted_where_no_minipod_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["placement", recording(tmp_path / "r", minipod=""), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)

    assert (found["level"], found["now"]["max_pods_pp"]) == ("leaf", 2)
    assert found["reason"] == "no_better_placement"


def test_groups_without_weight_are_spread_all_the_same(cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    aligned = ["--hosts", "node[01-02,09-10]", "--tp", "8", "--pp", "1", "--alpha", "0"]
    assert main(["placement", cluster, *aligned]) == 0

    assert capsys.readouterr().out.startswith("No better placement was found; the weighted number of minipods is 1.00.")


def test_a_recording_names_its_own_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["placement", recording(tmp_path / "r"), "--hosts", "h0"]) == 2
    assert "a recording names its hosts" in capsys.readouterr().err


def test_a_cluster_alone(cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["placement", cluster]) == 0
    assert capsys.readouterr().out.splitlines()[:4] == [
        "18 hosts, 4 leaves, 2 minipods",
        "",
        "minipod              leaves  hosts",
        "pod2                      2     10",
    ]
    assert main(["placement", cluster, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hosts"]["node05"] == {"leaf": "leaf2", "minipod": "pod1"}


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ([*JOB, "--alpha", "1.5"], "--alpha"),
        ([*JOB, "--seconds", "nan"], "--seconds"),
        (["--hosts", "node[01-16]", "--tp", "3"], "sizes that divide 16 hosts x 8 GPUs"),
        (["--hosts", "node01,node01"], "hosts that are named once"),
        (["--hosts", "node[01-"], "--hosts = 'node[01-'"),
        (["--hosts", "node[01-19]"], "the leaf of 'node19' is not known (1 of 19 hosts)"),
        ([*JOB, "--spare", "node16"], "a host that carries no rank of the job"),
        ([*JOB, "--evict", "node17"], "one of the job's 16 hosts"),
        (["--evict", "node01"], "given with a recording or --hosts"),
        ([*JOB, "--html", "/nowhere/page.html"], "cannot be written"),
        ([*JOB, "--topology", "t.conf"], "FILE is a topology already"),
    ],
)
def test_wrong_arguments_are_named(
    cluster: str, extra: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["placement", cluster, *extra]) == 2
    assert said in capsys.readouterr().err


def test_wrong_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.conf"
    assert main(["placement", str(path)]) == 2
    assert "cannot be read" in capsys.readouterr().err
    path.write_bytes(b"SwitchName=\xff")
    assert main(["placement", str(path)]) == 2
    assert "byte 11 is not UTF-8" in capsys.readouterr().err
    path.write_text("SwitchName=s1 Nodes=n[3-1]\n")
    assert main(["placement", str(path)]) == 2
    assert "t.conf line 1: Nodes = '[3-1]'" in capsys.readouterr().err
