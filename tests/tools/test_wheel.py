"""A Python that is not there is a failure in CI, and is said elsewhere."""

from pathlib import Path

import pytest

from tests.tools import wheel


@pytest.mark.parametrize(("ci", "status", "said"), [("1", 1, "a failure in CI"), ("", 0, "NOT tested with it")])
def test_a_python_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ci: str, status: int, said: str
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(wheel, "build", lambda folder: folder / "tocsin.whl")
    monkeypatch.setattr(wheel, "interpreter", lambda version: Path("python") if version == "3.11" else None)
    monkeypatch.setattr(wheel, "test", lambda *_: (0, "3 passed"))
    monkeypatch.setattr("subprocess.run", lambda *_, **__: None)

    assert wheel.main(["3.11", "3.12"]) == status
    assert f"no Python 3.12 on the PATH or in pyenv: {said}" in " ".join(capsys.readouterr().out.split())


def test_no_python_at_all_is_a_failure_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(wheel, "build", lambda folder: folder / "tocsin.whl")
    monkeypatch.setattr(wheel, "interpreter", lambda _: None)

    assert wheel.main(["3.12"]) == 1


def test_each_python_is_told_of_and_one_that_fails_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wheel, "build", lambda folder: folder / "tocsin.whl")
    monkeypatch.setattr(wheel, "interpreter", lambda version: Path(f"python{version}"))
    monkeypatch.setattr(
        wheel, "test", lambda uv, environment, *_: (1, "1 failed") if environment.name == "3.11" else (0, "3 passed")
    )
    monkeypatch.setattr("subprocess.run", lambda *_, **__: None)

    assert wheel.main(["3.11", "3.12"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "1 failed wheel: Python 3.11: status 1 after" in said
    assert "3 passed wheel: Python 3.12: status 0 after" in said
