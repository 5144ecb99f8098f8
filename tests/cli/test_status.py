"""What ``tocsin status`` says of a job: why there is no verdict."""

from __future__ import annotations

from typing import Any

import pytest

from tocsin.cli.status import describe
from tocsin.schemas.reasons import Reason

ABSTENTIONS = list(Reason)[list(Reason).index(Reason.TOO_FEW_PEERS) :]
"""The last part of the list: why there is none."""


def job(abstained: dict[str, int]) -> dict[str, Any]:
    numbers = {"attempt": 0, "world_size": 2, "max_step": 7, "groups": 0, "step_seconds": 0.5}
    texts = {"job_id": "j", "cluster": "c", "ended": False, "hook_present": True}
    return {**numbers, **texts, "hosts": {}, "ranks": {}, "verdicts": [], "abstained": abstained}


@pytest.mark.parametrize("reason", ABSTENTIONS)
def test_every_reason_to_say_nothing_has_a_sentence(reason: Reason) -> None:
    [line] = [line for line in describe(job({reason.value: 3}), []) if "abstained" in line]

    assert line.startswith(f"  abstained 3 x {reason.value}: ")
    assert len(line.partition(": ")[2].split()) >= 4


def test_an_attempt_that_is_over_shows_no_steps() -> None:
    [line] = describe({**job({}), "superseded": True}, [])
    assert "over: a later attempt runs" in line
    assert len(describe({**job({}), "superseded": False}, [])) > 1


def test_the_most_frequent_reason_comes_first() -> None:
    lines = [line for line in describe(job({"no_model": 1, "too_few_peers": 9}), []) if "abstained" in line]

    assert [line.split()[3].rstrip(":") for line in lines] == ["too_few_peers", "no_model"]
