"""The tool that leaves out guards."""

from __future__ import annotations

import pytest

from tests.tools.mutants import guard_names, main


def test_it_takes_the_guards_from_the_code() -> None:
    names = guard_names()

    assert "budgets" in names
    assert len(names) == len(set(names))


def test_a_guard_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["budgets", "nonsense"])
    assert "nonsense: no guard" in capsys.readouterr().err
