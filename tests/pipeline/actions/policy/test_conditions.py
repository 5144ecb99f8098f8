"""Conditions that no verdict can fulfil, and names of exceptions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.pipeline.actions.policy.config import Policy
from tocsin.pipeline.actions.policy.policy_file import load_policy
from tocsin.schemas.errors import ConfigError


def policy_of(folder: Path, match: str) -> Policy:
    """Read a policy of one rule."""
    path = folder / "policy.yaml"
    path.write_text(f"version: 1\nrules:\n  - name: a\n    match: {match}\n    do: notify\n")
    return load_policy(path)


@pytest.mark.parametrize(
    ("match", "key", "must"),
    [
        ("{cause: ecc_error, blames: program}", "blames = 'program'", "machine, which is what ecc_error blames"),
        ("{cause: [process_exit, divergence], blames: machine}", "blames", "nobody or program, which is what process_"),
        ("{code: RESTART_APP, words_only: true}", "words_only = True", "left out or false"),
        ("{code: [RESET_GPU, RESTART_BM], error: KeyError}", "error = 'KeyError'", "left out: beside a code"),
        ("{error: torch.cuda.OutOfMemoryError}", "error = 'torch.cuda.OutOfMemoryError'", "one word"),
        ("{error: [KeyError, 'KeyError:']}", "error.1 = 'KeyError:'", "one word"),
        ("{error: Key Error}", "error = 'Key Error'", "one word"),
    ],
)
def test_what_can_never_hold_is_refused_by_line_and_key(tmp_path: Path, match: str, key: str, must: str) -> None:
    with pytest.raises(ConfigError) as caught:
        policy_of(tmp_path, match)

    assert f"policy.yaml:4: rules.0.match.{key}" in str(caught.value)
    assert f": must be {must}" in str(caught.value)


@pytest.mark.parametrize(
    "match",
    [
        "{cause: [ecc_error, process_exit], blames: program}",
        "{code: [RESTART_APP, RESET_GPU], error: KeyError}",
        "{code: RESTART_APP, words_only: false}",
        "{cause: unknown, blames: machine, error: [OutOfMemoryError, ExceptionGroup]}",
    ],
)
def test_what_may_hold_is_right_and_warns_of_nothing(tmp_path: Path, match: str) -> None:
    assert policy_of(tmp_path, match).warnings == ()


def test_an_exception_that_nobody_knows_may_be_the_users_own(tmp_path: Path) -> None:
    found = policy_of(tmp_path, "{error: [OurError, ValueErorr]}").warnings

    assert ["policy.yaml:4: rules.0.match.error" in one for one in found] == [True, True]
    assert ["did you mean ValueError?" in one for one in found] == [False, True]


def test_the_policy_that_ships_has_nothing_to_warn_of() -> None:
    assert load_policy().warnings == ()
