"""Recent values by second: bounded, exact, and the same after a restart."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.pipeline.core.operator import UNCHANGED
from tocsin.pipeline.runtime.value_table import ValueTable
from tocsin.schemas.errors import SnapshotError

KEPT = st.tuples(st.integers(0, 400), st.sampled_from("abcdef"), st.floats(-9, 9) | st.just(math.nan))


def contents(table: ValueTable) -> dict[int, dict[str, float]]:
    return {second: table.column(second, 0) for second in table.seconds(0, 10_000)}


def test_the_highest_value_stays_and_a_missing_one_does_not_count() -> None:
    table = ValueTable(2, 10, 10)
    for values in ((1.0, math.nan), (3.0, math.inf), (math.nan, 2.0)):
        table.keep(5, "a", values)

    assert (table.column(5, 0), table.column(5, 1)) == ({"a": 3.0}, {"a": 2.0})
    assert table.column(6, 0) == {}


def test_the_newest_seconds_stay() -> None:
    table = ValueTable(1, 30, 10)
    for second in range(100):
        table.keep(second, "a", (float(second),))

    assert contents(table) == {second: {"a": float(second)} for second in range(70, 100)}


def test_a_second_holds_all_components_to_a_bound_and_a_sample_above() -> None:
    table = ValueTable(1, 10, 64)
    for number in range(5_000):
        table.keep(1, str(number), (1.0,))

    found = table.column(1, 0)
    assert len(found) == 128
    assert set(map(str, range(64))) <= found.keys()


@given(st.lists(KEPT, max_size=60), st.lists(KEPT, max_size=30))
def test_a_restart_changes_nothing(before: list[tuple[int, str, float]], after: list[tuple[int, str, float]]) -> None:
    table, other = ValueTable(1, 20, 4), ValueTable(1, 20, 4)
    for second, name, value in before:
        table.keep(second, name, (value,))
    other.restore(table.snapshot())
    for second, name, value in after:
        table.keep(second, name, (value,))
        other.keep(second, name, (value,))

    assert contents(other) == contents(table)


def test_only_pages_that_changed_are_written_again() -> None:
    table = ValueTable(1, 600, 10)
    for second in range(300):
        table.keep(second, "a", (float(second),))
    first = table.snapshot()
    table.keep(290, "b", (1.0,))
    second_time = table.snapshot(first.keys())

    assert [name for name, data in second_time.items() if data != UNCHANGED] == ["4"]
    other = ValueTable(1, 600, 10)
    other.restore({**first, "4": second_time["4"]})
    assert contents(other) == contents(table)


def test_a_damaged_page_is_refused() -> None:
    with pytest.raises(SnapshotError, match="damaged"):
        ValueTable(1, 10, 10).restore({"0": b"{"})
