"""The quick attacks, and the suite's own bookkeeping."""

from __future__ import annotations

import json

import pytest

from tests.attacks.registry import Attack, Outcome, attacks, line_of, missing, outcome_of


@pytest.mark.parametrize("tried", [one for one in attacks() if not one.is_slow], ids=lambda one: one.label)
def test_an_attack_is_withstood(tried: Attack) -> None:
    outcome = outcome_of(tried)
    assert outcome.held, outcome.effect
    assert outcome.tries > 0


def _raises() -> Outcome:
    raise OverflowError("int too large")


def test_an_attack_that_raises_did_not_hold() -> None:
    tried = Attack("C1", "raises", is_slow=False, run=_raises)
    line = json.loads(line_of(tried, outcome_of(tried)))
    assert (line["finding"], line["held"]) == ("C1", False)
    assert "OverflowError" in line["effect"]


def test_a_finding_without_attack_is_named() -> None:
    tried = Attack("C1", "one", is_slow=False, run=_raises)
    assert "C1" not in missing([tried])
    assert "L" in missing([tried])
