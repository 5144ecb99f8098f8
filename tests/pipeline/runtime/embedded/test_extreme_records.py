"""Records of extreme values that the codec takes: no operator breaks on them, and their state comes back."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.pipeline.runtime.embedded.extremes import KINDS, drive
from tests.strategies import extreme_records_of
from tocsin.schemas.records import Record


@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    poison=st.lists(
        st.tuples(st.integers(2, 11), st.sampled_from(KINDS).flatmap(extreme_records_of)), min_size=4, max_size=24
    )
)
def test_operators_survive_what_is_accepted(poison: list[tuple[int, Record]]) -> None:
    assert drive(poison) > 0
