"""The exchange between hosts: who meets whom, what an answer says, who is charged, and a real one over gloo."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.collectors.preflight._exchange_work import partner_of
from tocsin.collectors.preflight.blame import attributed, charged
from tocsin.collectors.preflight.bounded import ChildAnswer, module_command, run_all
from tocsin.collectors.preflight.exchange import exchange_results
from tocsin.schemas.preflight import CheckName, CheckOutcome, CheckReason, HostAnswer, PreflightResult, failed

GROUP, PAIR = CheckName.GROUP_ALL_REDUCE, CheckName.PAIR_ALL_REDUCE


@given(st.integers(2, 40))
def test_in_a_tournament_each_meets_each_once_and_both_sides_agree(world: int) -> None:
    met = set()
    for turn in range(world - 1 + world % 2):
        partners = [partner_of(rank, world, turn) for rank in range(world)]
        for rank, other in enumerate(partners):
            if other is not None:
                assert partners[other] == rank != other
                met.add((min(rank, other), max(rank, other), turn))
        assert sum(other is None for other in partners) == world % 2
    assert sorted((one, other) for one, other, _ in met) == list(combinations(range(world), 2))


def reasons(**values: object) -> list[str]:
    return [str(result.reason) for result in exchange_results(ChildAnswer(values))]


def test_each_answer_of_the_child_has_its_reasons() -> None:
    assert reasons(missing="torch") == ["no_torch"] * 2
    assert reasons(absent=[2, 3]) == ["group_incomplete"] * 2
    assert reasons(absent=[]) == ["group_incomplete"] * 2
    assert reasons(unreachable="n0:29400: timed out") == ["unreachable"] * 2
    late = exchange_results(ChildAnswer(reason=CheckReason.TIMED_OUT))
    assert [str(result.reason) for result in late] == ["timed_out"] * 2
    assert reasons(wrong_count=1, pairs=[]) == ["wrong_result", "exact"]


def test_the_figure_of_pairs_is_their_median_and_the_wrong_ones_are_named() -> None:
    pairs = [{"peer": peer, "bytes_per_second": rate, "wrong_count": peer == 2} for peer, rate in enumerate((5, 9, 7))]
    result = exchange_results(ChildAnswer({"wrong_count": 0, "pairs": pairs}))[1]

    assert (result.figure, result.against, result.detail) == (7, ("2",), "3 pairs, slowest with rank 0")
    assert result.outcome is CheckOutcome.FAILED


def host(name: str, *against: str, group: CheckReason = CheckReason.WRONG_RESULT) -> HostAnswer:
    def result(check: CheckName, reason: CheckReason, peers: tuple[str, ...] = ()) -> PreflightResult:
        outcome = CheckOutcome.FAILED if reason is CheckReason.WRONG_RESULT else CheckOutcome.PASSED
        return PreflightResult(check, outcome, reason, 1.0, "bytes_per_second", against=peers)

    pair = CheckReason.WRONG_RESULT if against else CheckReason.EXACT
    return HostAnswer(name, (result(GROUP, group), result(PAIR, pair, against)))


def test_the_host_in_most_wrong_pairs_is_charged_and_the_others_are_not() -> None:
    answers = [host("n0", "n2"), host("n1", "n2"), host("n2"), host("n3", "n2")]
    found = attributed(answers)

    assert [answer.host for answer in found if answer.is_failed] == ["n2"]
    assert {str(check.reason) for check in found[0].checks} == {"group_incomplete"}
    assert found[0].checks[0].detail == "failed because of n2"


def test_of_two_hosts_both_are_charged_and_without_wrong_pairs_everybody() -> None:
    both = attributed([host("n0", "n1"), host("n1", "n0"), host("n2")])
    assert [answer.host for answer in both if answer.is_failed] == ["n0", "n1"]
    assert all(answer.is_failed for answer in attributed([host("n0"), host("n1")]))


def test_an_exchange_that_broke_off_is_charged_to_the_host_without_an_answer() -> None:
    broken = tuple(failed(name, CheckReason.CHECK_DIED) for name in (GROUP, PAIR))
    gone = HostAnswer("n2", (failed(CheckName.ANSWER, CheckReason.NO_ANSWER),))
    found = attributed([HostAnswer("n0", broken), HostAnswer("n1", broken), gone])
    assert [answer.host for answer in found if answer.is_failed] == ["n2"]
    assert all(answer.is_failed for answer in attributed([HostAnswer("n0", broken), HostAnswer("n1", broken)]))


@given(st.sets(st.tuples(st.integers(0, 6), st.integers(0, 6)).filter(lambda pair: pair[0] != pair[1])))
def test_the_charged_explain_every_wrong_pair_and_nobody_else_is_charged(pairs: set[tuple[int, int]]) -> None:
    wrong = [frozenset(map(str, pair)) for pair in pairs]
    found = charged(wrong)
    assert all(pair & found for pair in wrong)
    assert found <= frozenset().union(*wrong)


@pytest.mark.slow
def test_three_ranks_sum_exactly_over_gloo_and_two_miss_the_third() -> None:
    pytest.importorskip("torch")

    def run(ranks: int, port: int, wait: int) -> list[list[PreflightResult]]:
        commands = [
            module_command("_exchange_work", "cpu", rank, 3, "127.0.0.1", port, 0.5, 1 << 20, wait)
            for rank in range(ranks)
        ]
        return [exchange_results(answer) for answer in run_all(commands, 150)]

    whole = run(3, 29_471, 100)
    assert {str(result.reason) for results in whole for result in results} == {"exact"}
    assert all(result.figure for results in whole for result in results)

    missing = run(2, 29_472, 30)
    assert {str(result.reason) for results in missing for result in results} == {"group_incomplete"}
    assert missing[0][0].detail in {"did not come: rank 2", "did not come: rank 1, rank 2"}
