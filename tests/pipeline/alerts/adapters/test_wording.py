"""What a notice says of the action that its verdict proposes."""

from __future__ import annotations

import pytest

from tests.pipeline.actions.kit import verdict_on
from tocsin.pipeline.alerts.adapters.wording import proposal_text
from tocsin.schemas.verdicts import ActionKind


def test_a_proposal_claims_nothing_about_what_is_carried_out() -> None:
    told = proposal_text(verdict_on("n1"))
    assert told.startswith("evict")
    assert told.endswith("(proposed; tocsin actions list says what is done)")


@pytest.mark.parametrize("kind", [ActionKind.NONE, ActionKind.NOTIFY])
def test_a_notice_alone_is_no_action(kind: ActionKind) -> None:
    assert proposal_text(verdict_on("n1", action=kind)) == "none"
