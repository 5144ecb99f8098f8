"""A host beside its peers: slower ones and those with another result fail, and only they."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tocsin.collectors.preflight.judge import judged
from tocsin.schemas.preflight import CheckName, CheckOutcome, CheckReason, HostAnswer, PreflightResult

DISK = PreflightResult(
    CheckName.DISK_WRITE_BANDWIDTH,
    CheckOutcome.PASSED,
    CheckReason.TOO_FEW_PEERS,
    100.0,
    "bytes_per_second",
    kind="vda",
)
TENSOR = PreflightResult(
    CheckName.TENSOR_COMPUTATION,
    CheckOutcome.PASSED,
    CheckReason.EXACT,
    9.0,
    "flop_per_second",
    digest="a",
    kind="H100",
)


def host(name: str, check: PreflightResult) -> HostAnswer:
    return HostAnswer(name, (check,), 1.0)


def hosts(*figures: float) -> list[HostAnswer]:
    return [host(f"n{index}", replace(DISK, figure=figure)) for index, figure in enumerate(figures)]


def reasons(answers: list[HostAnswer]) -> list[str]:
    return [str(answer.checks[0].reason) for answer in answers]


def test_a_host_far_below_its_peers_fails_and_the_median_is_told() -> None:
    found = judged(hosts(100, 102, 98, 60))

    assert reasons(found) == ["as_peers"] * 3 + ["slower_than_peers"]
    assert found[3].checks[0].peers_median == 100
    assert [answer.is_failed for answer in found] == [False, False, False, True]


def test_with_fewer_than_three_peers_nothing_is_compared() -> None:
    assert reasons(judged(hosts(100, 100, 1))) == ["too_few_peers"] * 3


def test_hosts_of_another_kind_are_no_peers() -> None:
    other = host("n9", replace(DISK, figure=10.0, kind="nvme0n1"))
    assert reasons(judged([*hosts(100, 100, 100, 100), other]))[4] == "too_few_peers"


def test_earlier_answers_of_others_count_and_own_ones_where_peers_are_few() -> None:
    slow = host("n0", replace(DISK, figure=10.0))
    of_others = [host(f"p{index}", DISK) for index in range(3)]
    own = [host("n0", DISK)] * 3

    assert reasons(judged([slow], of_others)) == ["slower_than_peers"]
    assert reasons(judged([slow], own)) == ["slower_than_peers"]
    assert reasons(judged([slow], own[:2])) == ["too_few_peers"]


def test_earlier_answers_that_failed_are_no_measure() -> None:
    bad = replace(DISK, outcome=CheckOutcome.FAILED, reason=CheckReason.OTHER_WRITER)
    assert reasons(judged([host("n0", DISK)], [host(f"p{index}", bad) for index in range(5)])) == ["too_few_peers"]


def test_another_result_than_most_peers_fails_and_without_a_majority_nobody() -> None:
    other = replace(TENSOR, digest="b")
    found = judged([host("n0", TENSOR), host("n1", TENSOR), host("n2", TENSOR), host("n3", other)])
    assert reasons(found) == ["exact"] * 3 + ["differs_from_peers"]

    halves = [host(f"n{index}", TENSOR if index % 2 else other) for index in range(4)]
    assert not any(answer.is_failed for answer in judged([host("n9", replace(TENSOR, digest="c")), *halves])[:1])


def test_a_failure_keeps_its_own_reason() -> None:
    wrong = replace(TENSOR, outcome=CheckOutcome.FAILED, reason=CheckReason.WRONG_RESULT, figure=1.0)
    found = judged([host("n0", wrong), *(host(f"n{index}", TENSOR) for index in range(1, 5))])
    assert reasons(found)[0] == "wrong_result"


@given(st.lists(st.floats(0.71, 1.0), min_size=4, max_size=12))
def test_no_host_within_the_limit_of_the_fastest_fails(figures: list[float]) -> None:
    assert not any(answer.is_failed for answer in judged(hosts(*figures)))
