"""The slots as Flink gives them out."""

import pytest
from pyflink.java_gateway import get_gateway

from tests.kafka_fixtures import need_java
from tocsin.cli.main import main
from tocsin.pipeline.runtime.flink.placement import group_count, slot_of


def test_slots_are_those_that_flink_itself_computes() -> None:
    need_java()
    flink = get_gateway().jvm.org.apache.flink.runtime.state.KeyGroupRangeAssignment
    names = [f"prod/train-{number}" for number in range(300)] + ["cl\u00fcster/\u8bad\u7ec3", "c/\U0001f514"]
    for slots in (2, 3, 7, 90):
        groups = flink.computeDefaultMaxParallelism(slots)
        assert groups == group_count(slots)
        assert [slot_of(one, slots) for one in names] == [
            flink.assignKeyToParallelOperator(one, groups, slots) for one in names
        ]


@pytest.mark.parametrize(("slots", "groups"), [(1, 128), (2, 128), (85, 128), (86, 256), (30_000, 32_768)])
def test_key_groups_grow_with_the_slots(slots: int, groups: int) -> None:
    assert group_count(slots) == groups


def test_many_jobs_fall_into_all_slots() -> None:
    assert {slot_of(f"prod/train-{number}", 7) for number in range(200)} == set(range(7))


@pytest.mark.parametrize("job", ["train", "/train", "prod/"])
def test_a_job_without_its_cluster_is_refused(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["flink", "status", "--rest", "http://127.0.0.1:1", "--job", job]) == 2
    assert f"--job = {job!r}: must be CLUSTER/JOB" in capsys.readouterr().err
