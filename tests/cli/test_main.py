import argparse
import subprocess
import sys
from types import ModuleType

import pytest

import tocsin
from tocsin.cli import main as front
from tocsin.schemas.errors import TocsinError


class FakeCommand(ModuleType):
    """A command's module whose run() does what the test says."""

    def __init__(self, outcome: int | BaseException) -> None:
        super().__init__("fake_command")
        self.outcome = outcome
        self.seen: argparse.Namespace | None = None

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--kind", default="none")
        parser.add_argument("rest", nargs=argparse.REMAINDER)

    def run(self, args: argparse.Namespace) -> int:
        self.seen = args
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


def install(monkeypatch: pytest.MonkeyPatch, outcome: int | BaseException) -> FakeCommand:
    command = FakeCommand(outcome)
    monkeypatch.setitem(sys.modules, "fake_command", command)
    monkeypatch.setattr(front, "COMMANDS", {"fake": ("fake_command", "do as told")})
    return command


def test_alone_it_prints_every_command_and_loads_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert front.main([]) == 0
    printed = capsys.readouterr().out

    assert all(name in printed for name in front.COMMANDS)


def test_each_command_stands_with_those_who_use_it(capsys: pytest.CaptureFixture[str]) -> None:
    grouped = [name for names in front.GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(front.COMMANDS)
    front.main([])
    printed = capsys.readouterr().out
    places = [printed.index(f"{who}:") for who in front.GROUPS]
    assert places == sorted(places)
    assert places[0] < printed.index("  incidents ") < places[1]


def test_help_loads_no_command_and_no_heavy_package() -> None:
    code = "import sys; from tocsin.cli.main import main; main([]); print(*sys.modules, file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ran.stderr.split())

    assert "tocsin.schemas" in loaded
    assert not loaded & {"numpy", "torch", "chdb", "kafka", "rich"}
    assert not loaded & {"tocsin.pipeline", "tocsin.models", "tocsin.collectors"}


def test_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        front.main(["--version"])

    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"tocsin {tocsin.__version__}\n"


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        front.main(["incident"])

    assert stopped.value.code == 2
    assert "unknown command 'incident'; did you mean 'incidents'?" in capsys.readouterr().err


def test_a_command_gets_its_arguments_and_gives_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    command = install(monkeypatch, 7)

    assert front.main(["fake", "--kind", "kill"]) == 7
    assert command.seen is not None
    assert command.seen.kind == "kill"


def test_what_follows_a_double_dash_reaches_the_command_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    command = install(monkeypatch, 0)
    front.main(["fake", "--", "python", "train.py", "--kind", "theirs", "--help"])

    assert command.seen is not None
    assert command.seen.kind == "none"
    assert command.seen.rest[-4:] == ["train.py", "--kind", "theirs", "--help"]


def test_an_error_on_purpose_is_one_line_and_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, TocsinError("no engine listens on /run/x"))

    assert front.main(["fake"]) == 2
    assert capsys.readouterr().err == "tocsin fake: no engine listens on /run/x\n"


@pytest.mark.parametrize(("module", "extra"), [("numpy", "engine"), ("pyflink.table", "flink"), ("torch", "train")])
def test_a_missing_package_names_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], module: str, extra: str
) -> None:
    install(monkeypatch, ModuleNotFoundError("gone", name=module))

    assert front.main(["fake"]) == 3
    package = module.split(".", maxsplit=1)[0]
    assert (
        capsys.readouterr().err
        == f"tocsin fake needs {package}: in a checkout of tocsin run pip install '.[{extra}]'\n"
    )


def test_a_package_missing_while_the_command_is_loaded_is_told_the_same_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(front, "COMMANDS", {"fake": ("chdb.not_there", "")})
    monkeypatch.setitem(sys.modules, "chdb", None)

    assert front.main(["fake"]) == 3
    assert "pip install '.[engine]'" in capsys.readouterr().err


def test_a_module_that_no_extra_brings_is_a_bug_and_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, ModuleNotFoundError("gone", name="tocsin.typo"))

    with pytest.raises(ModuleNotFoundError):
        front.main(["fake"])


def test_an_interrupt_is_status_130_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, KeyboardInterrupt())

    assert front.main(["fake"]) == 130
    assert capsys.readouterr().err == ""
