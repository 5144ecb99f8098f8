"""The drill's judge, its plans and its report: pure functions."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from typing import Any

import pytest

from tocsin.cli.drill import add_arguments, report
from tocsin.cli.drill.board import Board, RankOrder
from tocsin.cli.drill.command import check
from tocsin.cli.drill.faults import KINDS, ExpectedVerdict, Target
from tocsin.cli.drill.judge import Answer, Heard, ever_wrong, host_name, judge
from tocsin.cli.drill.orders import OrderKind
from tocsin.cli.drill.plan import DrillPlan, make_plan
from tocsin.cli.drill.result import DrillResult
from tocsin.cli.drill.runner import named_meanwhile
from tocsin.schemas.causes import CAUSES
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.verdicts import FaultKind as FaultWord

ONSET_NS = 1_000_000_000_000
STRUCK = 3


def plan_of(kind: str) -> DrillPlan:
    return DrillPlan(KINDS[kind], 0, 8, STRUCK, 50, 1.0, OrderKind.NOTHING)


def heard(seconds: float, suspects: list[str], **changes: Any) -> Heard:
    """A line ``seconds`` after the onset; by default right for ``kill``."""
    line = {
        "id": "a",
        "job_id": "kill-1",
        "fault": "fail_stop",
        "cause": "process_exit",
        "suspects": [{"kind": "host", "name": name, "ranks": [int(name[1:])]} for name in suspects],
        "reason": "first_fatal_exit",
        "state": "open",
    }
    return Heard(ONSET_NS + int(seconds * 1e9), line | changes)


def answer_to(kind: str, *lines: Heard) -> Answer:
    return judge(plan_of(kind), ONSET_NS, lines)


class TestAccusation:
    def test_the_struck_host_with_the_right_words_is_right(self) -> None:
        answer = answer_to("kill", heard(1.5, ["n3"]))

        assert answer.right
        assert answer.seconds == pytest.approx(1.5)

    def test_no_verdict_is_wrong(self) -> None:
        assert not answer_to("kill").right

    def test_a_verdict_without_suspects_is_no_answer_to_a_fault_of_a_rank(self) -> None:
        assert not answer_to("kill", heard(1.5, [])).right

    def test_somebody_else_is_wrong(self) -> None:
        answer = answer_to("kill", heard(1.5, ["n4"]))

        assert not answer.right
        assert "n4" in answer.why

    def test_a_victim_beside_the_struck_is_wrong(self) -> None:
        assert not answer_to("kill", heard(1.5, ["n3", "n4"])).right

    def test_a_second_incident_against_a_victim_is_wrong(self) -> None:
        assert not answer_to("kill", heard(1.5, ["n3"]), heard(4.0, ["n4"], id="b")).right

    def test_a_false_accusation_is_wrong_even_when_taken_back(self) -> None:
        lines = (heard(1.0, ["n4"]), heard(2.0, ["n4"], state="cancelled"), heard(3.0, ["n3"], id="b"))

        assert not answer_to("kill", *lines).right

    def test_an_accusation_before_the_onset_is_wrong(self) -> None:
        assert not answer_to("kill", heard(-1.0, ["n3"]), heard(1.0, ["n3"])).right

    def test_two_incidents_for_one_fault_are_wrong(self) -> None:
        assert not answer_to("kill", heard(1.0, ["n3"]), heard(2.0, ["n3"], id="b")).right

    def test_the_right_verdict_taken_back_is_wrong(self) -> None:
        assert not answer_to("kill", heard(1.0, ["n3"]), heard(2.0, ["n3"], state="cancelled")).right

    def test_a_degraded_line_accuses_nobody(self) -> None:
        assert answer_to("kill", heard(0.5, ["n4"], id="b", fault="degraded"), heard(1.0, ["n3"])).right


class TestWords:
    def test_wrong_fault_is_wrong(self) -> None:
        assert not answer_to("kill", heard(1.0, ["n3"], fault="hang")).right

    def test_wrong_cause_is_wrong(self) -> None:
        assert not answer_to("slow_compute", heard(1.0, ["n3"], fault="fail_slow", cause="cpu_contention")).right

    def test_the_last_update_counts(self) -> None:
        first = heard(1.0, ["n3"], fault="hang", cause="unknown")
        second = heard(2.0, ["n3"], fault="hang", cause="process_frozen")

        answer = answer_to("freeze", first, second)

        assert answer.right
        assert answer.seconds == pytest.approx(1.0)

    @pytest.mark.parametrize("kind", [kind for kind in KINDS.values() if kind.causes], ids=lambda k: k.name)
    def test_the_table_uses_documented_words_only(self, kind: Any) -> None:
        assert kind.causes <= set(CAUSES)
        assert kind.faults <= {word.value for word in FaultWord}


class TestNobodyAtFault:
    def test_a_shared_service_wants_a_verdict_without_suspects(self) -> None:
        line = heard(2.0, [], fault="fail_slow", cause="shared_service")

        assert answer_to("loader_stall_all", line).right
        assert not answer_to("loader_stall_all").right

    def test_a_shared_service_accuses_nobody(self) -> None:
        line = heard(2.0, [], fault="fail_slow", cause="shared_service")

        assert not answer_to("loader_stall_all", line, heard(3.0, ["n3"], id="b")).right

    def test_losing_an_agent_is_nobodys_fault(self) -> None:
        assert answer_to("agent_killed").right
        assert not answer_to("agent_killed", heard(3.0, ["n3"])).right

    def test_a_healthy_job_gets_no_verdict_at_all(self) -> None:
        assert answer_to("none").right
        assert not answer_to("none", heard(3.0, [], fault="fail_slow", cause="unknown")).right

    def test_a_verdict_before_the_watch_began_counts_on_a_healthy_job(self) -> None:
        assert not answer_to("none", heard(-3.0, [], cause="unknown")).right


class TestPlan:
    @pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
    def test_the_seed_decides_everything(self, kind: Any) -> None:
        assert make_plan(kind, 7, 8) == make_plan(kind, 7, 8)

    @pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
    def test_plans_stay_within_the_table(self, kind: Any) -> None:
        for seed in range(50):
            plan = make_plan(kind, seed, 8)

            assert 0 <= plan.rank < 8
            assert kind.magnitude[0] <= plan.magnitude <= kind.magnitude[1]
            assert (plan.order is OrderKind.NOTHING) == (not kind.orders)

    def test_every_rank_gets_its_turn(self) -> None:
        assert {make_plan(KINDS["kill"], seed, 8).rank for seed in range(60)} == set(range(8))

    def test_a_fault_that_needs_peers_gets_more_ranks(self) -> None:
        assert [make_plan(KINDS["slow_startup"], 1, count).rank_count for count in (2, 8)] == [6, 8]
        assert [make_plan(KINDS["uneven_data"], 1, count).rank_count for count in (2, 8)] == [4, 8]

    def test_half_an_hour_has_checkpoints_and_evaluations_between_steps_in_order(self) -> None:
        pauses = make_plan(KINDS["none"], 1, 8, healthy_seconds=1800.0).pauses

        assert {pause.phase for pause in pauses} == {"checkpoint", "evaluation"}
        assert [pause.after_step for pause in pauses] == sorted({pause.after_step for pause in pauses})
        assert all(5.0 <= pause.seconds <= 20.0 for pause in pauses)

    def test_a_long_drill_is_the_usual_one_with_more_time_and_without_pauses(self) -> None:
        usual = make_plan(KINDS["slow_compute"], 1, 8)

        assert make_plan(KINDS["slow_compute"], 1, 8, 120.0, 60.0) == replace(
            usual, healthy_seconds=120.0, fault_seconds=60.0
        )

    @pytest.mark.parametrize(
        ("flags", "text"),
        [
            (
                ["--kind", "kill", "--fault-minutes", "1"],
                "--fault-minutes = 1.0: must be used with one of --kind slow_",
            ),
            (
                ["--kind", "none", "--fault-minutes", "1"],
                "--fault-minutes = 1.0: must be used with one of --kind slow_",
            ),
            (["--fault-minutes", "1"], "--fault-minutes = 1.0: must be used with --kind"),
            (["--all", "--healthy-minutes", "1"], "--healthy-minutes = 1.0: must be used with --kind"),
            (["--kind", "none", "--healthy-minutes", "-1"], "--healthy-minutes = -1.0: must be a number, 0 or more"),
            (["--kind", "none", "--healthy-minutes", "nan"], "--healthy-minutes = nan: must be a number, 0 or more"),
        ],
    )
    def test_minutes_that_a_drill_has_not_are_refused(self, flags: list[str], text: str) -> None:
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        with pytest.raises(ConfigError, match=re.escape(text)):
            check(parser.parse_args(flags))

    def test_a_kind_that_strikes_says_how(self) -> None:
        for kind in KINDS.values():
            strikes = bool(kind.orders) or kind.outside is not None
            assert strikes == (kind.target is not Target.NOBODY)
            assert bool(kind.causes) == (kind.wanted in {ExpectedVerdict.ACCUSE, ExpectedVerdict.EXPLAIN})


class TestFailedDrill:
    def test_whom_the_engine_accused_before_is_said(self) -> None:
        lines = [heard(5.0, ["n3"]), heard(9.0, ["n3"], state="cancelled"), heard(12.0, ["n1"]), heard(12.0, ["n1"])]

        assert named_meanwhile(lines) == " (the engine named n1, n3 before)"

    def test_nobody_is_said_of_lines_that_accuse_nobody(self) -> None:
        assert not named_meanwhile([])
        assert not named_meanwhile([heard(5.0, ["n3"], fault="degraded"), heard(9.0, [], fault="fail_slow")])


class TestStage:
    def test_a_stage_is_slow_on_all_its_replicas_and_on_no_other_rank(self) -> None:
        plans = [make_plan(KINDS["slow_stage"], seed, 8) for seed in range(20)]

        assert {tuple(plan.affected_ranks) for plan in plans} == {(0, 1, 2, 3), (4, 5, 6, 7)}
        assert all(plan.rank in plan.affected_ranks for plan in plans)

    @pytest.mark.parametrize(
        ("kind", "ranks"), [("gc_pauses", [0, 1, 2, 3]), ("uneven_data", [0, 1, 2, 3]), ("slow_compute", [STRUCK])]
    )
    def test_other_kinds_strike_all_ranks_or_one(self, kind: str, ranks: list[int]) -> None:
        assert list(replace(plan_of(kind), rank_count=4).affected_ranks) == ranks

    @pytest.mark.parametrize(("count", "fits"), [(2, False), (4, True), (5, False), (6, True), (8, True)])
    def test_each_stage_needs_two_replicas_and_others_need_no_stages(self, count: int, fits: bool) -> None:
        assert KINDS["slow_stage"].fits(count) is fits
        assert KINDS["gc_pauses"].fits(count)

    def test_an_answer_is_the_stage_and_any_name_is_wrong(self) -> None:
        line = heard(40.0, [], fault="degraded", cause="stage_imbalance")

        assert answer_to("slow_stage", line).right
        assert not answer_to("slow_stage", line, heard(50.0, ["n3"], fault="fail_slow", id="b")).right
        assert not answer_to("slow_stage", heard(40.0, [], fault="fail_slow", cause="unknown")).right

    def test_uneven_data_are_to_be_told_and_accuse_nobody_even_for_a_moment(self) -> None:
        line = heard(40.0, [], fault="degraded", cause="data_imbalance")
        named = heard(5.0, ["n3"], fault="fail_slow", id="b"), heard(9.0, ["n3"], state="cancelled", id="b")

        assert answer_to("uneven_data", line).right
        assert not answer_to("uneven_data").right
        assert not answer_to("uneven_data", *named, line).right

    def test_pauses_may_be_told_and_accuse_nobody(self) -> None:
        assert answer_to("gc_pauses").right
        assert answer_to("gc_pauses", heard(40.0, [], fault="degraded", cause="software_jitter")).right
        assert not answer_to("gc_pauses", heard(40.0, ["n3"], fault="fail_slow")).right


class TestBoard:
    def test_an_order_reaches_its_rank_only(self, tmp_path: Any) -> None:
        drill = Board.create(tmp_path / "board", 3)
        drill.give_order(1, RankOrder(OrderKind.SLOW_LOADER, 0.25))
        ranks = Board(tmp_path / "board", 3)

        assert ranks.order(1) == RankOrder(OrderKind.SLOW_LOADER, 0.25)
        assert ranks.order(0) == ranks.order(2) == RankOrder(OrderKind.NOTHING, 0.0)

    def test_gate_steps_and_end(self, tmp_path: Any) -> None:
        drill = Board.create(tmp_path / "board", 2)
        rank = Board(tmp_path / "board", 2)
        assert not rank.gate_is_open()
        assert drill.steps() == [-1, -1]

        drill.open_gate()
        drill.set_last_step(12)
        rank.set_step(1, 4)

        assert rank.gate_is_open()
        assert rank.last_step() == 12
        assert drill.steps() == [-1, 4]


def result_of(kind: str, answer: Answer) -> DrillResult:
    return DrillResult(plan_of(kind), f"{kind}-1", ONSET_NS, answer, (), (), 0.18, 0.6)


class TestReport:
    def test_counts_kind_by_kind_and_lists_what_was_wrong(self) -> None:
        right = result_of("kill", Answer(True, "as it should be", 2.0))
        wrong = result_of("freeze", Answer(False, "accuses n4", 1.0))

        text = report.markdown([right, wrong])

        assert "| kill | 1 of 1 | 2.0 | 2.0 |" in text
        assert "| freeze | 0 of 1 | - | - |" in text
        assert "accuses n4" in text
        assert "poses as a host" in text

    def test_who_was_ever_named_wrongly_is_counted(self) -> None:
        lines = (heard(1, ["n0", "n1"]), heard(2, ["n2"], state="cancelled"), heard(3, ["n1"]))
        result = replace(result_of("kill", Answer(False, "x")), heard=lines)
        guilty = host_name(result.plan.rank)

        assert ever_wrong(result.plan, lines) == {"n0", "n1"} - {guilty}
        assert report.summary_line([result]).endswith(f"; ever named wrongly: {len({'n0', 'n1'} - {guilty})}")

    def test_a_line_says_right_or_wrong_and_how_long(self) -> None:
        assert "right" in report.result_line(result_of("kill", Answer(True, "x", 2.04)))
        assert "2.0 s" in report.result_line(result_of("kill", Answer(True, "x", 2.04)))
        assert "WRONG" in report.result_line(result_of("kill", Answer(False, "x")))
