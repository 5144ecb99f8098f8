"""What the documents mention exists: files, links, anchors, make targets, commands with their verbs and options."""

import argparse
import importlib
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.workers import GATE
from tocsin.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs/runbooks").glob("*.md"),
    ]
)
LINKED = sorted([*PAGES, ROOT / "CHANGELOG.md", ROOT / "SECURITY.md", *(ROOT / "docs" / "adr").glob("*.md")])
NARROW = sorted(str(page.relative_to(ROOT)) for page in LINKED)
"""Tables and code are as wide as they must be."""
WIDE_CODE = re.compile(r"\s*`[^`]+`[.,;:]?")
TOP_FOLDERS = ("collectors", "deploy", "docs", "models", "pipeline", "schemas", "src", "tests")
FILES_OF_USERS = frozenset({"deploy/.env"})
"""Paths that a reader is told to make."""

FOREIGN_NAMES = frozenset(
    {"AlterConfigs", "DescribeConfigs", "NoResourceAvailableException", "ReplicatedReplacingMergeTree"}
    | {"AdminLevel", "ResumeAfter", "SlurmUser"}
)
"""Names of Kafka's, Flink's, ClickHouse's and Slurm's that only a page says."""

FENCE = re.compile(r"^ *```[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`]+)`")
FOLDER_PATH = re.compile(rf"(?<![\w./~-])((?:{'|'.join(TOP_FOLDERS)})/[\w./-]*)")
CLASS_NAME = re.compile(r"\b[A-Z][a-z0-9]+(?:[A-Z][A-Za-z0-9]*)+\b")
MODULE_FILE = re.compile(r"(?<![\w./-])([\w/]+\.py)\b")
LINK = re.compile(r"\]\(([^)\s]+)\)")
TARGET = re.compile(r"\bmake ([a-z][a-z-]*)")
COMMENT = re.compile(r"(?:^| )#.*")
COMMAND = re.compile(r"(?<![\w.-])(?<!-n )tocsin ([a-z][a-z-]*)((?: [^;#&|]*(?:\| *(?=[a-z-]+))?)*)")
OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]*)")


class Code(NamedTuple):
    """A piece of code in a page."""

    page: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"


def codes(page: Path) -> list[Code]:
    """Return the lines of code blocks and the code spans of a page."""
    text = page.read_text()
    name = str(page.relative_to(ROOT))
    lines = [COMMENT.sub("", line).strip() for block in FENCE.findall(text) for line in block.splitlines()]
    spans = [" ".join(span.split()) for span in SPAN.findall(FENCE.sub("\n", text))]
    return [Code(name, code) for code in [*lines, *spans] if code]


@cache
def tracked() -> frozenset[str]:
    """Return the files of the tree, links of ``src/tocsin`` followed, and their folders."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
        )
        files = listed.stdout.splitlines()
    else:
        files = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if ".venv" not in path.parts]
    folders = {str(parent) for file in files for parent in Path(file).parents}
    return frozenset([*files, *folders])


@cache
def parser_of(command: str) -> argparse.ArgumentParser:
    """Return the parser of one command."""
    parser = argparse.ArgumentParser(prog=command)
    importlib.import_module(COMMANDS[command][0]).add_arguments(parser)
    return parser


def verbs_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the words that must come first, each with the parser of what follows it."""
    for action in parser._actions:  # noqa: SLF001  # argparse has no public list
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001  # the same
            return dict(action.choices)
        if action.choices is not None and not action.option_strings:
            return dict.fromkeys(map(str, action.choices), parser)
    return {}


def wrong_parts(command: str, rest: str) -> Iterator[str]:
    """Yield the verbs and options of one mention of a command that it does not have."""
    parser = parser_of(command)
    rest = rest.partition(" -- ")[0]  # what follows is another program's
    verbs = verbs_of(parser)
    said = re.match(r" *([a-z][a-z-]*(?: *\| *[a-z][a-z-]*)*)", rest)
    named = re.split(r" *\| *", said[1]) if said else []
    yield from (f"{command} {verb}" for verb in named if verbs and verb not in verbs)
    found = [verbs[verb] for verb in named if verb in verbs]
    parsers = [parser, *found, *(inner for verb in found for inner in verbs_of(verb).values())]
    known = {text for each in parsers for text in each._option_string_actions}  # noqa: SLF001  # the same
    yield from (f"{command} {option}" for option in OPTION.findall(rest) if option not in known)


def slug(heading: str) -> str:
    """Return the anchor that a heading has on GitHub."""
    words = re.sub(r"[^\w\- ]", "", heading.replace("`", "").strip().lower())
    return words.replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_path_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    paths = {found.rstrip("./") for found in FOLDER_PATH.findall(text)}
    missing = paths - tracked() - FILES_OF_USERS
    # "docs/adr/0010" and "deploy/compose" are names of files without their ends
    assert sorted(path for path in missing if not any(file.startswith(path) for file in tracked())) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_module_that_a_page_names_exists(page: Path) -> None:
    named = {found for code in codes(page) for found in MODULE_FILE.findall(code.text)}
    ours = {"train.py"}  # a reader's own script
    assert sorted(name for name in named - ours if not any(f"/{file}".endswith(f"/{name}") for file in tracked())) == []


def test_each_class_that_a_page_names_exists() -> None:
    sources = [ROOT / file for file in tracked() if file.endswith((".py", ".sql", ".toml", ".yaml", ".yml"))]
    known = {name for file in sources if file.is_file() for name in CLASS_NAME.findall(file.read_text())}
    spans = [Code(page.name, span) for page in PAGES for span in SPAN.findall(FENCE.sub("\n", page.read_text()))]
    missing = {(name, span.page) for span in spans for name in CLASS_NAME.findall(span.text) if name not in known}
    assert sorted(found for found in missing if found[0] not in FOREIGN_NAMES) == []


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.name)
def test_each_link_leads_somewhere(page: Path) -> None:
    broken = []
    for target in LINK.findall(FENCE.sub("\n", page.read_text())):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE) if anchor and file.is_file() else []
        if not file.exists() or (anchor and anchor not in map(slug, headings)):
            broken.append(target)
    assert broken == []


def test_each_make_target_that_a_page_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {(target, str(code)) for page in PAGES for code in codes(page) for target in TARGET.findall(code.text)}
    assert sorted(code for target, code in named if target not in targets) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_command_that_a_page_names_has_these_verbs_and_options(page: Path) -> None:
    wrong = []
    for code in codes(page):
        for command, rest in COMMAND.findall(code.text):
            found = [command] if command not in COMMANDS else list(wrong_parts(command, rest))
            wrong += [f"{part} in {code.text!r}" for part in found]
    assert wrong == []


@pytest.mark.parametrize("name", NARROW)
def test_lines_of_prose_are_at_most_120_characters_long(name: str) -> None:
    lines = FENCE.sub("\n", (ROOT / name).read_text()).splitlines()
    assert [line for line in lines if len(line) > 120 and not (line.startswith("|") or WIDE_CODE.fullmatch(line))] == []


def test_a_command_that_does_not_exist_is_found() -> None:
    assert list(wrong_parts("topics", " aply --keep-hours 3 --for-ever")) == ["topics aply", "topics --for-ever"]
    assert list(wrong_parts("flink", " submit | status | stop")) == ["flink stop"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_test_runs_what_a_page_says_it_runs(page: Path) -> None:
    named = re.findall(r'`make test ARGS="?([^"`]*)"?`', page.read_text("utf-8"))
    paths = [word for words in named for word in words.split() if word.startswith("tests/")]
    assert [path for path in paths if path.startswith(tuple(name.rstrip("/") for name in GATE))] == []


@pytest.mark.parametrize("page", [*PAGES, ROOT / "SECURITY.md"], ids=lambda page: page.name)
def test_no_page_says_that_actions_are_never_carried_out(page: Path) -> None:
    words = " ".join(page.read_text().split())
    assert not re.search(r"(?i)nothing (acts|is executed|executes \w+) yet", words)


def test_the_picture_of_the_walk_goes_on_to_the_system_that_is_changed() -> None:
    picture = (ROOT / "docs/architecture.md").read_text().split("```mermaid")[1].split("```")[0]
    edges = set(re.findall(r"^ *(\w+) .*?-->(?:\|[^|]*\|)? (\w+)", picture, re.MULTILINE))
    assert {("incidents", "actions"), ("fleet", "actions"), ("actions", "executors"), ("executors", "site")} <= edges
