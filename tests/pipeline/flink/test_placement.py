"""The slots as Flink gives them out."""

import pytest

from tocsin.pipeline.flink.placement import group_count, slot_of


@pytest.mark.parametrize(
    ("job", "slot"), [("bench/job-0", 1), ("bench/job-1", 1), ("bench/job-2", 1), ("bench/job-3", 1)]
)
def test_jobs_that_a_running_flink_worked_off_in_one_slot(job: str, slot: int) -> None:
    """Seen with Flink 2.2.1: one of two subtasks was busy, the other one idle."""
    assert slot_of(job, 2) == slot


@pytest.mark.parametrize(("slots", "groups"), [(1, 128), (2, 128), (85, 128), (86, 256), (30_000, 32_768)])
def test_key_groups_grow_with_the_slots(slots: int, groups: int) -> None:
    assert group_count(slots) == groups


def test_many_jobs_fall_into_all_slots() -> None:
    assert {slot_of(f"prod/train-{number}", 7) for number in range(200)} == set(range(7))
