import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.bench import __main__ as bench


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two benches, of which the first one fails; the list says which were run."""
    ran: list[str] = []

    def bad() -> None:
        ran.append("bad")
        raise ValueError("measured nothing")

    for name, main in (("bad", bad), ("good", lambda: ran.append("good"))):
        module = ModuleType(name)
        module.main = main  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, f"tests.bench.bench_{name}", module)
    monkeypatch.setattr(bench, "bench_names", lambda _: ["bad", "good"])
    return ran


def test_a_bench_that_fails_does_not_keep_the_others_from_running(ran: list[str]) -> None:
    assert bench.main([]) == 1
    assert ran == ["bad", "good"]


def test_only_the_named_benches_run(ran: list[str]) -> None:
    assert bench.main(["good"]) == 0
    assert ran == ["good"]


def test_an_unknown_name_runs_nothing(ran: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["godo"]) == 2
    assert ran == []
    assert "there are: bad, good" in capsys.readouterr().err


def test_benches_are_the_files_with_the_prefix(tmp_path: Path) -> None:
    for name in ("bench_hook.py", "bench_codec.py", "helper.py"):
        (tmp_path / name).touch()

    assert bench.bench_names(tmp_path) == ["codec", "hook"]
