"""Runbooks: each cause has one, it contradicts no table, and the pages in docs/runbooks/ say the same."""

from __future__ import annotations

import argparse
import importlib
import re
from pathlib import Path

import pytest

from tests.tools.runbooks import FOLDER, pages, write
from tocsin.cli.incident_page import MAX_LINES_COUNT
from tocsin.schemas.causes import CAUSES
from tocsin.schemas.formats.xid import meaning_of_xid
from tocsin.schemas.runbooks import ACTION_BY_HAND, RUNBOOKS, Runbook, telling_steps
from tocsin.schemas.verdicts import ActionKind

ALL = pytest.mark.parametrize("runbook", RUNBOOKS.values(), ids=lambda one: str(one.cause))
LINES_BESIDE_STEPS = 5
"""Action, blame or what to announce, where the runbook lies, how to judge and to close it."""
OF_INCIDENT = {"HOST", "JOB", "ID", "TEXT"}
"""Placeholders that the index explains, or that explain themselves."""
FOREIGN = {
    "CLOCK",
    "CONT",
    "DETAIL",
    "DOWN",
    "DRAIN",
    "ECC",
    "KILL",
    "PERFORMANCE",
    "POWER",
    "ROW_REMAPPER",
    "TEMPERATURE",
}
"""Words of the programs that are called."""


def codes_of(text: str) -> set[int]:
    """Return the XIDs that a sentence lists."""
    found: set[int] = set()
    for listed in re.findall(r"XID ((?:\d+(?:, | or | to | and )?)+)", text):
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", listed):
            found |= set(range(int(first), int(last or first) + 1))
    return found


def test_each_cause_has_a_runbook_and_each_action_a_meaning() -> None:
    assert set(RUNBOOKS) == set(CAUSES)
    assert set(ACTION_BY_HAND) == set(ActionKind)


@ALL
def test_a_runbook_says_all_of_it_and_fits_a_screen(runbook: Runbook) -> None:
    assert runbook.signs
    assert runbook.lookalikes
    assert any(step.command for step in runbook.steps)
    assert len(runbook.steps) + LINES_BESIDE_STEPS <= MAX_LINES_COUNT
    for text in (*runbook.signs, *(one.difference for one in runbook.lookalikes), *(one.text for one in runbook.steps)):
        assert re.search(r"[.?]$", text), text
        assert all(len(sentence.split()) <= 25 for sentence in re.split(r"[.?:] ", text)), text


@ALL
def test_a_lookalike_is_another_cause_or_no_cause(runbook: Runbook) -> None:
    names = [one.name for one in runbook.lookalikes]
    assert runbook.cause not in names
    assert len(set(names)) == len(names)
    assert [name for name in names if "_" in name and name not in CAUSES] == []


@ALL
def test_each_placeholder_of_a_command_is_explained(runbook: Runbook) -> None:
    said = " ".join(step.text for step in runbook.steps)
    for step in runbook.steps:
        bare = re.sub(r"'[^']*'|\b[A-Z_]+=|%\w+", " ", step.command)  # patterns, variables
        words = set(re.findall(r"(?<![\w-])[A-Z][A-Z_]*\b", bare)) - FOREIGN - OF_INCIDENT
        assert [word for word in words if not re.search(rf"\b{word}\b", said)] == [], step.command


@pytest.mark.parametrize("cause", ["ecc_error", "gpu_card_drop", "nvlink_error", "gpu_execution_error"])
def test_the_codes_that_a_gpu_s_runbook_names_first_are_those_of_its_cause(cause: str) -> None:
    codes = codes_of(RUNBOOKS[cause].signs[0]) - {154}  # 154 means what its line says
    assert codes
    assert {meaning_of_xid(code).cause for code in codes} == {cause}


def test_a_program_s_own_codes_accuse_no_machine() -> None:
    codes = codes_of(RUNBOOKS["cuda_execution_error"].signs[0])
    assert codes == {13, 31, 43}
    assert not any(meaning_of_xid(code).accuses for code in codes)


def test_the_pages_are_those_of_the_declaration() -> None:
    wanted = pages()
    found = {path.name: path.read_text("utf-8") for path in FOLDER.glob("*.md")}
    assert sorted(found) == sorted(wanted)
    assert [name for name in wanted if found[name] != wanted[name]] == [], "make runbooks"


def test_writing_the_pages_changes_what_differs_and_removes_what_is_no_cause(tmp_path: Path) -> None:
    assert len(write(tmp_path)) == len(CAUSES) + 1
    (tmp_path / "gone.md").write_text("an older cause")
    (tmp_path / "unknown.md").write_text("changed by hand")

    assert sorted(write(tmp_path)) == ["gone.md", "unknown.md"]
    assert write(tmp_path) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(pages())


@pytest.mark.parametrize(
    ("blames", "verbs"),
    [
        ("machine", ["maintenance", "feedback", "incidents"]),
        ("program", ["feedback", "incidents"]),
        ("nobody", ["feedback", "incidents"]),
    ],
)
def test_what_a_person_tells_tocsin_are_commands_that_it_takes(blames: str, verbs: list[str]) -> None:
    commands = [step.command.split() for step in telling_steps(blames)]

    assert [words[1] for words in commands] == verbs
    for words in commands:
        assert words[0] == "tocsin"
        parser = argparse.ArgumentParser()
        importlib.import_module(f"tocsin.cli.{words[1]}").add_arguments(parser)
        parser.parse_args(words[2:])


@pytest.mark.parametrize("cause", ["ecc_error", "machine_unreachable", "network_slow"])
def test_the_page_of_a_machine_says_where_its_repair_is_announced_and_its_verdict_judged(cause: str) -> None:
    page = pages()[f"{cause}.md"]

    assert "`tocsin maintenance HOST --for 2h --reason TEXT`" in page
    assert "`tocsin feedback ID true --note TEXT`" in page
