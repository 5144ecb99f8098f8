"""``tocsin policy``: path, check, schema, explain and replay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.actions.policy.samples import event, event_line, verdict, write_lines
from tocsin.cli.main import main
from tocsin.pipeline.actions.policy.policy_file import DEFAULT_POLICY

KEYS = ["at_ns", "verdict_id", "target", "kind", "outcome", "by"]


def test_the_policy_that_ships_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "path"]) == 0
    path = capsys.readouterr().out.strip()
    assert main(["policy", "check", path]) == 0
    out = capsys.readouterr().out

    assert Path(path) == DEFAULT_POLICY
    assert "hang_without_culprit: notify; if fault hang; nobody is named" in out
    assert out.endswith(f"{path}: right\n")


def test_check_names_a_typo_by_line_and_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("version: 1\nrules:\n  - name: a\n    match: {casue: ecc_error}\n    do: evict\n")

    assert main(["policy", "check", str(path)]) == 2
    assert "policy.yaml:4: rules.0.match.casue = 'casue': must be one of" in capsys.readouterr().err


def test_check_warns_of_an_exception_that_nobody_knows_and_takes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "policy.yaml"
    errors = "error: [KeyError, KeyEror,\n        OurDataError]"
    path.write_text(f"version: 1\nrules:\n  - name: a\n    match:\n      {errors}\n    do: notify\n")

    assert main(["policy", "check", str(path)]) == 0
    out = capsys.readouterr().out
    typo, own = (line for line in out.splitlines() if line.startswith("warning: "))
    what = "no exception of Python or PyTorch"
    after = "it counts where your program raises it"
    assert typo == f"warning: {path}:5: rules.0.match.error.1: KeyEror is {what} (did you mean KeyError?); {after}"
    assert own == f"warning: {path}:6: rules.0.match.error.2: OurDataError is {what}; {after}"
    assert out.endswith(f"{path}: right\n")


def test_the_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["required"] == ["version", "rules"]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["ecc_error"], "machine_fault: evict"),
        (["xid", "13"], "user_code: restart"),
        (["xid:79"], "machine_fault: evict"),
        (["XID", "999"], "unknown_code: notify"),
        (["DCGM_FR_VOLATILE_DBE_DETECTED"], "COMPONENT_RESET"),
        (["ib_port"], "network_alert: evict"),
        (["process_frozen"], "no machine is taken for it"),
    ],
)
def test_explain_says_what_something_leads_to(
    words: list[str], wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["policy", "explain", *words]) == 0
    assert wanted in capsys.readouterr().out


def test_explain_refuses_what_nobody_knows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "explain", "ecc_eror"]) == 2
    assert "did you mean ecc_error?" in capsys.readouterr().err


def _line(**changes: Any) -> dict[str, Any]:
    return {**verdict().to_line(), **changes}


def test_replay_prints_a_line_a_decision(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [_line(), _line(id="b", cause="process_frozen", fault="hang"), _line(id="c", action="reboot", witnesses=[])]
    verdicts = write_lines(tmp_path / "v.jsonl", lines)
    events = write_lines(tmp_path / "e.jsonl", [event_line(event("xid", {"code": 13}, second)) for second in (0, 600)])
    assert main(["policy", "replay", str(verdicts), str(events), "--policy", str(DEFAULT_POLICY), "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert [list(one) for one in found] == [KEYS] * 4
    assert [(one["verdict_id"], one["target"], one["kind"], one["outcome"], one["by"]) for one in found] == [
        (verdict().verdict_id, "n1", "evict", "act", "machine_fault"),
        ("b", "n1", "restart", "act", "process_is_named"),
        ("c", "n1", "evict", "refused", "one_witness"),
        ("", "n1", "probe", "wait_approval", "job_runs"),
    ]


def test_replay_for_people_ends_with_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "replay", str(write_lines(tmp_path / "v.jsonl", [_line()]))]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "act 1, wait_approval 0, refused 0, notify 0"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fault": "broken"}, "v.jsonl:2, column fault: fault = 'broken': must be one of fail_stop"),
        (
            {"suspects": [{"kind": "host"}]},
            "v.jsonl:2, column suspects[0].name: suspects[0].name = None: must be present",
        ),
        ({"confidence": 7}, "v.jsonl:2, column confidence: confidence = 7"),
        ({"action": "explode"}, "v.jsonl:2, column action: action = 'explode'"),
        ({"detected_ns": "soon"}, "v.jsonl:2, column detected_ns: detected_ns = 'soon'"),
        ({"witnesses": [{"host": "n", "kind": "hearsay"}]}, "v.jsonl:2, column witnesses[0].kind"),
    ],
)
def test_a_wrong_verdict_is_named_by_file_line_field_and_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], words: str
) -> None:
    path = write_lines(tmp_path / "v.jsonl", [_line(), _line(**changes)])

    assert main(["policy", "replay", str(path), "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{]\n", "v.jsonl:1: line is no JSON"),
        ("[]\n", "v.jsonl:1, column line: line = []: must be a JSON object"),
        ("\n\n{}\n", "v.jsonl:3, column detected_ns"),
    ],
)
def test_a_line_that_is_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str) -> None:
    path = tmp_path / "v.jsonl"
    path.write_text(text)

    assert main(["policy", "replay", str(path)]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"source": "rumour"}, "e.jsonl:1, column source: source = 'rumour'"),
        ({"payload": "[1]"}, "e.jsonl:1, column payload: payload = '[1]': must be JSON text of an object"),
        ({"payload": 3}, "e.jsonl:1, column payload: payload = 3"),
        ({"ts_ns": -1}, "e.jsonl:1, column ts_ns: ts_ns = -1"),
    ],
)
def test_a_wrong_event_is_named_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], words: str
) -> None:
    verdicts = write_lines(tmp_path / "v.jsonl", [])
    events = write_lines(tmp_path / "e.jsonl", [{**event_line(event("xid", {"code": 1})), **changes}])

    assert main(["policy", "replay", str(verdicts), str(events)]) == 2
    assert words in capsys.readouterr().err


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "replay", str(tmp_path / "absent.jsonl")]) == 2
    assert "absent.jsonl" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("replay-groups --pp 4 --dp 6 --faulty 3 1", {"suspects": [13]}),
        ("standby --machines 1024 --failure-rate 0.0012", {"standbys": 4}),
        (
            "over-evict --layout tp=2,pp=4,dp=4 --gpus-per-machine 2 --outliers 13,14",
            {"group": "pp", "machines": [12, 13, 14, 15], "healthy": 2},
        ),
        (
            "over-evict --layout tp=2,pp=4,dp=4 --gpus-per-machine 2 --outliers 1,14",
            {"group": None, "instead": "stop-time checks"},
        ),
        ("backup --layout tp=2,dp=2,pp=4 --gpus-per-machine 2", {"shares_no_group": True}),
    ],
)
def test_plans(words: str, wanted: dict[str, object], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "plan", *words.split(), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)

    assert {name: found[name] for name in wanted} == wanted
    assert main(["policy", "plan", *words.split()]) == 0


def test_a_plan_of_nonsense(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "plan", "over-evict", "--layout", "pp=4", "--gpus-per-machine", "1", "--outliers", "x"]) == 2
    assert "--outliers = 'x'" in capsys.readouterr().err
