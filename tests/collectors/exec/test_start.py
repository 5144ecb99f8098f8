"""The begin of a start as ``tocsin exec`` tells it: of ranks, and not of what starts them."""

import json
import socket
import sys
from pathlib import Path

import pytest

from tocsin.cli.main import main
from tocsin.collectors.exec.start import is_rank

TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1"}
SLURM = {"SLURM_PROCID": "3"}


@pytest.mark.parametrize(
    ("command", "env", "expected"),
    [
        ("python train.py", TORCHRUN, True),
        ("bash run.sh", TORCHRUN, True),
        ("python train.py", {"TOCSIN_RANK": "0"}, True),
        ("/opt/env/bin/python3.11 train.py", SLURM, True),
        ("bash run.sh", SLURM, False),
        ("torchrun train.py", SLURM, False),
        ("/usr/bin/torchrun train.py", TORCHRUN, False),
        ("python -m torch.distributed.run train.py", SLURM, False),
        ("python train.py", {"RANK": "3"}, False),
        ("python train.py", {}, False),
    ],
)
def test_a_rank_is_told_from_its_launcher(command: str, env: dict[str, str], *, expected: bool) -> None:
    assert is_rank(command.split(), env) is expected


def test_the_start_is_told_before_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOCSIN_JOB_ID", "train")
    monkeypatch.setenv("TOCSIN_STARTED_NS", "")
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
        agent.bind(str(tmp_path / "agent.sock"))
        agent.settimeout(60)
        assert main(["exec", "--agent-socket", agent.getsockname(), "--", sys.executable, "-S", "-c", ""]) == 0
        told = [json.loads(agent.recv(1 << 16)) for _ in range(2)]

    assert [one["t"] for one in told] == ["stage", "exit"]
    wanted = {"rank": 3, "stage": "env_setup", "edge": "begin", "start_kind": "full"}
    assert {key: told[0][key] for key in wanted} == wanted
    assert capfd.readouterr().err == ""
