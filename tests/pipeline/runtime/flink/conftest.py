import pytest

from tests.pipeline.runtime.flink.stream import records_of_a_kill
from tocsin.schemas.records import JobRecord


@pytest.fixture(scope="module")
def records() -> list[JobRecord]:
    """A job of eight machines whose rank 3 is killed."""
    return records_of_a_kill()
