"""``tocsin preflight --group``: the file, srun and kubectl as programs on the PATH, and hosts that give no answer."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tocsin.cli.main import main
from tocsin.cli.preflight_answers import answer_lines
from tocsin.cli.preflight_group import answers_of, hosts_in, member_of
from tocsin.cli.preflight_kube import manifests
from tocsin.collectors.preflight.exchange import Rendezvous
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.preflight import CheckName, CheckOutcome, CheckReason, HostAnswer, PreflightResult

DISK_ONLY = [
    *(word for name in sorted(set(CheckName) - {CheckName.DISK_WRITE_BANDWIDTH}) for word in ("--without", name)),
    "--each",
    "1s",
    "--disk-mib",
    "4",
]
SRUN = """
import os, subprocess, sys
hosts = open(os.environ["SLURM_HOSTFILE"]).read().split()
first = next(index for index, word in enumerate(sys.argv) if index and not word.startswith("--"))
def run(rank):
    task = {"SLURM_PROCID": str(rank), "SLURM_NTASKS": str(len(hosts))}
    return subprocess.Popen(sys.argv[first:], env={**os.environ, **task})
children = [run(rank) for rank, host in enumerate(hosts) if host != "gone"]
sys.exit(max(child.wait() for child in children))
"""
KUBECTL = """
import json, os, subprocess, sys
state, verb = os.environ["KUBE_STATE"], sys.argv[1]
if verb == "create":
    open(state, "w").write(sys.stdin.read())
jobs = json.load(open(state))["items"]
if verb == "get":
    done = [{"type": "Complete", "status": "True"}]
    print(json.dumps({"items": [{"metadata": job["metadata"], "status": {"conditions": done}} for job in jobs]}))
if verb == "logs":
    job = next(job for job in jobs if sys.argv[2] == "job/" + job["metadata"]["name"])
    command = job["spec"]["template"]["spec"]["containers"][0]["command"]
    subprocess.run([sys.executable, "-m", *command], check=True)
if verb == "delete":
    os.rename(state, state + ".deleted")
"""
Tool = Callable[[str, str], None]


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def make(name: str, script: str) -> None:
        (folder / name).write_text(f"#!{sys.executable}\n{script}")
        (folder / name).chmod(0o755)

    return make


@pytest.fixture
def group(tmp_path: Path) -> Path:
    file = tmp_path / "hosts.txt"
    file.write_text("n0\nn1  # in rack 3\n\n")
    return file


def checked(file: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, Any]]:
    """Return status, and host -> (name, outcome, reason) of what was not left out."""
    status = main(["preflight", "--group", str(file), *DISK_ONLY, "--folder", str(file.parent), "--json", *more])
    found = json.loads(capsys.readouterr().out)
    hosts = {
        host["host"]: [(one["name"], one["reason"]) for one in host["checks"] if one["reason"] != "not_asked"]
        for host in found["hosts"]
    }
    return status, hosts


def test_the_tasks_of_srun_answer_under_the_names_of_the_file(
    group: Path, tool: Tool, capsys: pytest.CaptureFixture[str]
) -> None:
    tool("srun", SRUN)
    _, hosts = checked(group, capsys)

    assert list(hosts) == ["n0", "n1"]
    assert all([name for name, _ in found] == ["disk_write_bandwidth"] for found in hosts.values())


def test_a_host_without_an_answer_fails_with_what_srun_said(
    group: Path, tool: Tool, capsys: pytest.CaptureFixture[str]
) -> None:
    group.write_text("n0\ngone\n")
    tool("srun", SRUN + "print('srun: error: gone: down', file=sys.stderr)")
    status, hosts = checked(group, capsys)

    assert status == 1
    assert hosts["gone"] == [("answer", "no_answer")]
    assert [name for name, _ in hosts["n0"]] == ["disk_write_bandwidth"]


def test_jobs_of_kubernetes_answer_and_are_deleted(
    group: Path, tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBE_STATE", str(tmp_path / "jobs.json"))
    tool("kubectl", KUBECTL)
    _, hosts = checked(group, capsys, "--via", "kubectl", "--image", "tocsin:1")

    assert all([name for name, _ in found] == ["disk_write_bandwidth"] for found in hosts.values())
    assert (tmp_path / "jobs.json.deleted").exists()


def test_a_refusal_of_kubernetes_is_told_in_one_line(
    group: Path, tool: Tool, capsys: pytest.CaptureFixture[str]
) -> None:
    tool("kubectl", "import sys; print('Forbidden:\\n no rights', file=sys.stderr); sys.exit(1)")

    assert main(["preflight", "--group", str(group), "--via", "kubectl", "--image", "x"]) == 2
    assert capsys.readouterr().err == "tocsin preflight: kubectl create: Forbidden: no rights\n"


def test_what_would_run_is_shown_and_nothing_runs(group: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preflight", "--group", str(group), "--show", "--port", "5"]) == 0
    line = capsys.readouterr().out
    assert line.startswith(f"SLURM_HOSTFILE={group} srun --nodes=2 --ntasks=2 ")
    assert line.rstrip().endswith("--member slurm@n0:5")

    assert main(["preflight", "--group", str(group), "--show", "--via", "kubectl", "--image", "x", "--gpus", "8"]) == 0
    jobs = json.loads(capsys.readouterr().out)["items"]
    pods = [job["spec"]["template"]["spec"] for job in jobs]
    assert [pod["nodeName"] for pod in pods] == ["n0", "n1"]
    assert {pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] for pod in pods} == {"8"}
    assert [pod["containers"][0]["command"][-1] for pod in pods] == ["0/2@n0:29400", "1/2@n0:29400"]


def test_a_job_names_its_node_and_tolerates_every_taint_and_ends() -> None:
    settings = {"run": "r", "image": "i", "namespace": "n", "gpus": "0"}
    listed: Any = manifests(["a", "b"], ["tocsin"], 1, 90, settings)
    spec = listed["items"][1]["spec"]

    assert (spec["activeDeadlineSeconds"], spec["backoffLimit"]) == (90, 0)
    assert spec["template"]["spec"]["tolerations"] == [{"operator": "Exists"}]
    assert "resources" not in spec["template"]["spec"]["containers"][0]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("# nobody\n", "1 to 1024 hosts, not 0"),
        ("n0\nn1\nn0\n", "line 3 = 'n0'"),
        ("n0\n-x\n", "line 2 = '-x'"),
        ("n0\na b\n", "line 2 = 'a b'"),
        ("n0\n--help\n", "line 2 = '--help'"),
    ],
)
def test_a_wrong_line_of_the_file_is_named(text: str, named: str, tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text(text)
    with pytest.raises(ConfigError, match=named):
        hosts_in(str(file))


@pytest.mark.parametrize(
    "arguments",
    [
        ["n9", "--group", "FILE"],
        ["--group", "FILE", "--first-failure"],
        ["--group", "FILE", "--port", "0"],
        ["--group", "FILE", "--via", "kubectl"],
        ["--group", "/nowhere"],
        ["--group", "FILE"],
        ["--show"],
        ["--member", "3/2@n0:1"],
    ],
)
def test_wrong_flags_have_status_2(
    arguments: list[str], group: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    words = [str(group) if word == "FILE" else word for word in arguments]
    assert main(["preflight", *words]) == 2
    assert "must be" in capsys.readouterr().err


def test_the_place_of_a_member_is_its_number_or_the_tasks() -> None:
    assert member_of("1/4@n0:29400", {}) == Rendezvous(1, 4, "n0", 29_400)
    assert member_of("slurm@n0:5", {"SLURM_PROCID": "2", "SLURM_NTASKS": "3"}) == Rendezvous(2, 3, "n0", 5)
    for text in ("slurm@n0:5", "4/4@n0:5", "1/4@n0:99999", "1@n0:5", ""):
        with pytest.raises(ConfigError):
            member_of(text, {})


def test_ranks_become_names_and_nonsense_between_the_answers_is_passed_over() -> None:
    pair = PreflightResult(
        CheckName.PAIR_ALL_REDUCE, CheckOutcome.FAILED, CheckReason.WRONG_RESULT, 1.0, "bytes_per_second",
        detail="2 pairs, slowest with rank 1", against=("1",),
    )  # fmt: skip
    told = answer_lines(0, HostAnswer("x", (pair,)))
    lines = [
        "noise",
        "tocsin-preflight-answer {",
        "tocsin-preflight-answer 1 1/1 {}",
        *(f"0: {line}" for line in told),
    ]
    found = answers_of(["n0", "n1"], "\n".join(lines), "no answer in 5 s")

    assert [answer.host for answer in found] == ["n0", "n1"]
    assert found[0].checks[0].detail == "2 pairs, slowest with n1"
    assert found[0].checks[0].against == ("n1",)
    assert (found[1].checks[0].reason, found[1].checks[0].detail) == (CheckReason.NO_ANSWER, "no answer in 5 s")
