"""The page of one incident on a terminal and as HTML, and the filters of the list."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.cli.incident_samples import EVIL
from tests.pipeline.stores.samples import ONSET
from tocsin.cli.incident_page import by_hand_lines
from tocsin.cli.incidents import since_of
from tocsin.cli.main import main
from tocsin.pipeline.lab.backtest.people import read_judged
from tocsin.pipeline.stores.incident_queries import IncidentFilter, incidents_query, is_incidents_query, page_queries
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.printable import plain
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import FaultKind, VerdictState


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, repo_root: Path) -> Path:
    folder = tmp_path_factory.mktemp("page")
    subprocess.run(
        [sys.executable, "-m", "tests.cli.incident_samples", str(folder)], check=True, timeout=60, cwd=repo_root
    )
    return folder


@pytest.fixture(scope="module")
def shown(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The page of the incident on a terminal, and as HTML."""
    file = tmp_path_factory.mktemp("html") / "ticket.html"
    command = [sys.executable, "-m", "tocsin", "incidents", "show", "stor", "--html", str(file), "--data", str(data)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, "no engine runs"
    return done.stdout, file.read_text(encoding="utf-8")


def asked(data: Path, *args: str) -> list[str]:
    command = [sys.executable, "-m", "tocsin", "incidents", *args, "--json", "--data", str(data)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return sorted(json.loads(line)["verdict_id"] for line in done.stdout.splitlines())


def section(page: str, name: str) -> list[str]:
    """The lines of one section."""
    found: list[str] = []
    current = ""
    for line in page.splitlines()[1:]:
        current = line[2:13].strip() or current
        if current == name:
            found.append(line[13:])
    return found


def test_a_page_names_what_an_incident_of_the_fleet_stands_for(shown: tuple[str, str]) -> None:
    [told] = section(shown[0], "stands for")
    assert told.startswith("n5")
    assert told.endswith("(cancelled) [other]")


def test_the_latest_judgement_of_a_person_is_on_the_page(shown: tuple[str, str]) -> None:
    [told] = section(shown[0], "feedback")
    assert told.startswith("upheld by uid:1000: the fan was \\x1b[31mdead (20")
    assert "upheld by uid:1000" in shown[1]


def test_judged_verdicts_are_exported_as_backtest_reads_them(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "said.jsonl"
    command = [sys.executable, "-m", "tocsin", "feedback", "--data", str(data), "--export"]
    done = subprocess.run([*command, str(file)], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == f"1 judged verdict in {file}\n"
    [judged] = read_judged(file)
    assert (judged.verdict_id, judged.is_true, judged.fault) == ("story", True, "fail_slow")
    assert (judged.suspects, judged.onset_ns) == (("n3",), ONSET)
    assert json.loads(file.read_text())["actor"] == "uid:1000"

    done = subprocess.run([*command, "-"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == file.read_text()


def test_the_page_says_how_sure_it_is_and_who_saw_it(shown: tuple[str, str]) -> None:
    reported = section(shown[0], "confidence")
    assert reported[0] == "93%, almost sure: 1 piece of evidence by steps"
    assert reported[1].startswith("seen by n3: its own driver")
    assert reported[2].startswith("seen by n1, n2: ")


def test_the_page_has_evidence_with_its_id_and_numbers(shown: tuple[str, str]) -> None:
    sentence, numbers = section(shown[0], "evidence")
    assert len(sentence.rpartition("[")[2].rstrip("]")) == 16
    assert numbers.strip() == "own_seconds: 0.4, its peers 0.2 (steps)"


def test_the_page_says_what_was_excluded(shown: tuple[str, str]) -> None:
    cause, neighbour = section(shown[0], "excluded")
    assert cause == "cause unknown: named until 2025-11-01T00:00:04Z"
    assert neighbour.startswith("n5: fail slow, cause unknown; taken back at 2025-10-31T23:59:55Z, works harder (Takes")
    assert neighbour.endswith("it has more to do) [other]")


def test_the_history_has_each_update_and_no_renewal(shown: tuple[str, str]) -> None:
    reported = section(shown[0], "history")
    assert [line.split()[:3] for line in reported] == [
        ["2025-10-31T23:59:55Z", "open", "probe,"],
        ["2025-11-01T00:00:04Z", "confirmed", "probe,"],
        ["2025-11-01T00:00:35Z", "confirmed", "drain,"],
    ]
    assert "by the engine" in reported[0]
    assert "still true" not in shown[0]


def test_the_page_says_what_was_done_and_what_to_do(shown: tuple[str, str]) -> None:
    assert [line.split("  ")[1][:25] for line in section(shown[0], "done")] == [
        "probe n3: cancelled by to",
        "drain n3: proposed by toc",
    ]
    by_hand = section(shown[0], "by hand")
    assert by_hand[0].startswith("let no new job onto the machine")
    assert "runbook: docs/runbooks/thermal_throttle.md" in by_hand
    [drain] = [line for line in by_hand if "scontrol" in line]
    assert 'NodeName=n3 State=DRAIN Reason="tocsin stor' in drain
    assert [line.partition(".")[0] for line in by_hand[1:-4]] == ["1", "2", "3", "4", "5"]
    assert [line[line.rindex("tocsin ") :] for line in by_hand[-3:]] == [
        "tocsin maintenance n3 --for 2h --reason TEXT",
        "tocsin feedback story true --note TEXT",
        "tocsin incidents close story --note TEXT",
    ]


def test_nothing_on_the_page_reaches_the_terminal_or_the_browser(shown: tuple[str, str]) -> None:
    page, html = shown
    assert "\x1b" not in page
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "\x1b" not in html


def test_the_html_page_is_whole_and_loads_nothing(shown: tuple[str, str]) -> None:
    html = shown[1]
    root = ET.fromstring(html.removeprefix("<!DOCTYPE html>"))  # our own file
    space = "{http://www.w3.org/1999/xhtml}"
    assert [one.text for one in root.iter(f"{space}th")][:3] == ["what", "since", "machine"]
    assert "default-src 'none'" in html
    assert not [one for one in root.iter() if set(one.keys()) & {"src", "href"}]
    [svg] = list(root.iter("{http://www.w3.org/2000/svg}svg"))
    lines = {one.get("class"): one.get("points") for one in svg}
    assert len(str(lines["suspect"]).split()) == 119, "120 points, one of which has no sample"
    assert len(str(lines["peers"]).split()) == 120
    assert any(one.get("class") == "onset" for one in svg)
    assert plain(EVIL) in "".join(next(root.iter(f"{space}h2")).itertext())


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ([], ["story"]),
        (["--host", "n3"], ["story"]),
        (["--host", "n5"], []),
        (["--all", "--host", "n5"], ["other"]),
        (["--state", "cancelled"], ["other"]),
        (["--state", "open"], []),
        (["--state", "confirmed", "--fault", "fail_slow"], ["story"]),
        (["--fault", "hang"], []),
        (["--since", "2025-10-31T00:00:00Z"], ["other", "story"]),
        (["--since", "2025-11-01T00:01:00"], ["story"]),
        (["--since", "1h"], []),
        (["list", "--all"], ["other", "story"]),
    ],
)
def test_the_list_is_filtered(data: Path, flags: list[str], found: list[str]) -> None:
    assert asked(data, *flags) == found


def test_no_match_is_not_nothing_wrong(data: Path) -> None:
    command = [sys.executable, "-m", "tocsin", "incidents", "--host", "nix", "--data", str(data)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "no incident fits the conditions\n"


def test_a_time_before_now() -> None:
    now_ns = 10_000_000 * NS_PER_SECOND
    assert since_of("2h", now_ns) == now_ns - 7200 * NS_PER_SECOND
    assert since_of("30min", now_ns) == now_ns - 1800 * NS_PER_SECOND
    assert since_of("1970-01-02", now_ns) == 86_400 * NS_PER_SECOND
    for wrong in ("", "yesterday", "-2h", "2w"):
        with pytest.raises(ConfigError, match="--since"):
            since_of(wrong, now_ns)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--html", "x.html"], "--html"),
        (["watch", "--html", "x.html"], "--html"),
        (["--renewals"], "--renewals"),
        (["show", "a", "--host", "n3"], "--host"),
        (["close", "a", "--note", "n", "--since", "2h"], "--since"),
    ],
)
def test_a_flag_of_another_verb_is_refused(
    data: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["incidents", *words, "--data", str(data)]) == 2
    assert said in capsys.readouterr().err


def test_all_queries_have_slots_of_their_own_and_no_other_has() -> None:
    wishes = [
        IncidentFilter(host="n'3", fault=FaultKind.HANG, state=VerdictState.EXPIRED, since_ns=5),
        IncidentFilter(state=VerdictState.OPEN, written_within_seconds=64),
        IncidentFilter(),
    ]
    for wish in wishes:
        assert is_incidents_query(incidents_query(wanted=wish, job_id="j"))
    for query in page_queries("a' OR 1").values():
        assert is_incidents_query(query)
        assert not is_incidents_query(query + " UNION ALL SELECT 1")


def test_a_name_that_a_shell_could_split_stays_out_of_the_commands() -> None:
    row = {"cause": "machine_unreachable", "action": "evict n1 (proposed)", "verdict_id": "0123456789abcdef"}

    good = by_hand_lines({**row, "machine": "n1.rack-2", "job": "j1"})
    evil = by_hand_lines({**row, "machine": "n1;$(reboot)", "job": "j1"})
    several = by_hand_lines({**row, "machine": "n1, n2", "job": "j1"})

    assert any("ping -c 3 n1.rack-2" in line for line in good)
    assert not any("reboot)" in line for line in evil)
    assert any("ping -c 3 HOST" in line for line in evil)
    assert any("NodeName=HOST" in line and "tocsin 01234567" in line for line in several)
