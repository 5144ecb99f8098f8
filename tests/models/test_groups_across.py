"""Groups across minipods beside equal groups within one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tocsin.models.groups_across import OperationSpeed, PlacedGroup, find_groups_across

LEAST = 2.0, 0.004
"""Least ratio, least excess in seconds."""


def group(transfer_seconds: float, *, is_across: bool = False, size_bytes: int = 1 << 28) -> PlacedGroup:
    """A data-parallel group of four that runs one operation twice a second."""
    return PlacedGroup("dp", 4, is_across, (OperationSpeed("AllReduce", size_bytes, transfer_seconds, 2.0),), 10, 20)


WITHIN = [group(0.04), group(0.05), group(0.04)]


def test_groups_across_minipods_that_are_all_slower_cost_what_the_dearest_takes_beyond_the_others() -> None:
    found = find_groups_across([*WITHIN, group(0.1, is_across=True), group(0.14, is_across=True)], *LEAST)
    assert found is not None
    assert (found.count, found.other_count) == (2, 3)
    assert (found.ratio, found.excess_ratio) == pytest.approx((2.0, 0.2))


@pytest.mark.parametrize(
    "groups",
    [
        pytest.param([*WITHIN, group(0.1, is_across=True), group(0.05, is_across=True)], id="one is as fast"),
        pytest.param([*WITHIN, group(0.09), group(0.1, is_across=True)], id="one within is as slow"),
        pytest.param([group(0.001), group(0.004, is_across=True)], id="too little"),
        pytest.param(WITHIN, id="none crosses"),
        pytest.param([group(0.1, is_across=True)], id="none lies within"),
        pytest.param([*WITHIN, group(0.1, is_across=True, size_bytes=1 << 30)], id="more bytes"),
        pytest.param([*WITHIN, replace(group(0.1, is_across=True), kind="pp")], id="another kind"),
        pytest.param([*WITHIN, replace(group(0.1, is_across=True), rank_count=8)], id="more members"),
        pytest.param([], id="nothing"),
    ],
)
def test_nothing_is_found_where_not_all_are_slower_or_none_is_equal(groups: list[PlacedGroup]) -> None:
    assert find_groups_across(groups, *LEAST) is None


def test_the_kind_that_costs_most_is_told() -> None:
    ep = [replace(one, kind="ep") for one in (group(0.04), group(0.1, is_across=True))]
    found = find_groups_across([*WITHIN, group(0.2, is_across=True), *ep], *LEAST)
    assert found is not None
    assert found.other_count == 3


def test_only_operations_that_both_sides_have_count() -> None:
    more = OperationSpeed("AllGather", 1 << 30, 0.9, 2.0)
    crossing = group(0.1, is_across=True)
    found = find_groups_across([*WITHIN, replace(crossing, operations=(*crossing.operations, more))], *LEAST)
    assert found is not None
    assert found.excess_ratio == pytest.approx(0.12)
