"""``tocsin preflight`` as a person and a program see it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tocsin.cli.main import main
from tocsin.schemas.preflight import CheckName

QUICK = [
    "--each",
    "1s",
    *(word for name in set(CheckName) - {CheckName.DISK_WRITE_BANDWIDTH} for word in ("--without", name)),
]


def disk_only(folder: Path, *more: str) -> list[str]:
    return ["preflight", *QUICK, "--folder", str(folder), "--disk-mib", "4", *more]


def earlier(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    main(disk_only(folder, "--json"))
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def disk(found: dict[str, Any]) -> dict[str, Any]:
    return next(check for check in found["hosts"][0]["checks"] if check["name"] == "disk_write_bandwidth")


def test_json_has_every_check_with_the_keys_of_the_contract(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = earlier(tmp_path, capsys)

    assert set(found) == {"outcome", "failed_hosts", "hosts"}
    assert {"name", "outcome", "reason", "figure", "unit", "peers_median"} < set(disk(found))
    assert {check["name"] for check in found["hosts"][0]["checks"]} == set(CheckName) - {CheckName.ANSWER}


def test_a_disk_slower_than_the_earlier_ones_fails_with_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = earlier(tmp_path, capsys)
    for check in found["hosts"][0]["checks"]:
        check["outcome"] = "passed" if check["outcome"] == "failed" else check["outcome"]
    disk(found)["figure"] = 1e15
    hosts = [{**found["hosts"][0], "host": f"p{index}"} for index in range(3)]
    file = tmp_path / "peers.json"
    file.write_text(json.dumps({**found, "hosts": hosts}))

    assert main(disk_only(tmp_path, "--peers", str(file))) == 1

    text = capsys.readouterr().out
    assert "FAILED  disk_write_bandwidth" in text
    assert "(peers 1e+06 GB/s)" in text


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["otherhost"], "HOST = 'otherhost'"),
        (["--each", "soon"], "--each = 'soon'"),
        (["--folder", "/nowhere"], "--folder = '/nowhere'"),
        (["--disk-mib", "1"], "--disk-mib = 1"),
        (["--without", "computing"], "--without = 'computing'"),
        (["--peers", "/nowhere"], "--peers = '/nowhere'"),
    ],
)
def test_a_wrong_flag_is_named_with_status_2(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["preflight", *arguments]) == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[]", "{", '{"hosts": [{"version": 1, "host": "a", "checks": [{"name": 3}]}]}'])
def test_a_file_that_is_no_result_is_named(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "peers.json"
    file.write_text(text)

    assert main(["preflight", "--peers", str(file)]) == 2
    assert "peers.json" in capsys.readouterr().err
