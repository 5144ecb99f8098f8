"""What a drill that acts shows, and when it strikes."""

from __future__ import annotations

import argparse

import pytest

from tocsin.cli.drill import add_arguments
from tocsin.cli.drill.act.command import WANTED, plan_of
from tocsin.cli.drill.act.settings import CHECKPOINT_STEPS
from tocsin.cli.drill.command import check
from tocsin.cli.drill.faults import KINDS
from tocsin.cli.drill.judge import Heard
from tocsin.cli.drill.lines import verdict_texts
from tocsin.cli.drill.plan import make_plan
from tocsin.schemas.errors import ConfigError

LINE = {"update": 0, "evidence": (), "action": "restart", "reason": "process_stopped_peers_wait"}


@pytest.mark.parametrize(("acts", "is_said"), [(False, True), (True, False)])
def test_only_a_drill_that_does_not_act_says_that_nothing_is_executed(*, acts: bool, is_said: bool) -> None:
    shown = verdict_texts(Heard(0, LINE, "host n0: process frozen"), acts=acts)
    assert shown[0] == "VERDICT: host n0: process frozen"
    assert ("nothing is executed" in shown[-1]) is is_said


@pytest.mark.parametrize("kind", WANTED)
def test_a_drill_that_acts_strikes_between_its_first_checkpoint_and_the_third(kind: str) -> None:
    for seed in range(20):
        plan = plan_of(kind, seed, 4)
        assert CHECKPOINT_STEPS < plan.onset_step < 3 * CHECKPOINT_STEPS
        assert plan.rank == make_plan(KINDS[kind], seed, 4).rank


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (["--kafka"], "--kafka"),
        (["--json"], "--json"),
        (["--act", "--demo"], "--demo"),
        (["--act", "--all"], "--all"),
        (["--act", "--kind", "nan"], "--kind"),
    ],
)
def test_flags_that_a_drill_cannot_follow_are_named(flags: list[str], name: str) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    with pytest.raises(ConfigError, match=name):
        check(parser.parse_args(flags))
    check(parser.parse_args(["--act", "--kafka", "--json", "--kind", "host_down"]))
