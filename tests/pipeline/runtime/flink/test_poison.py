"""A message that nobody can decode harms that message alone, whatever is raised on its way."""

from __future__ import annotations

from typing import Any

import pytest

from tests.hostile_records import HOSTILE_RECORDS, exit_of_400_digits
from tocsin.pipeline.runtime.flink import driver as driver_module
from tocsin.pipeline.runtime.flink import held_windows as windows_module
from tocsin.pipeline.runtime.flink import reduce as reduce_module
from tocsin.pipeline.runtime.flink.driver import OPERATOR_FAILED, DriverConfig, JobDriver
from tocsin.pipeline.runtime.flink.memory_state import MemoryState
from tocsin.pipeline.runtime.flink.outputs import Output
from tocsin.pipeline.runtime.flink.packing import pack, unpack
from tocsin.pipeline.runtime.flink.reduce import reduce_and_pack
from tocsin.schemas.kafka.topics import DEAD_LETTER
from tocsin.schemas.records import NS_PER_SECOND

KEY = b"evil/x"
END_NS = 1_800_000_000 * NS_PER_SECOND
PATHS = pytest.mark.parametrize("group", ["all", ""], ids=["evil/x/all as frames", "evil/x"])


def dead_letters(values: list[bytes], group: str) -> list[Output]:
    """What becomes of these messages of one second, on the way that their key names."""
    origins = [f"in.events:0:{number}" for number in range(len(values))]
    packed = reduce_and_pack(values, origins, group, KEY.decode(), END_NS // NS_PER_SECOND)
    driver = JobDriver(DriverConfig(), KEY, MemoryState())
    driver.on_window(END_NS, packed)
    found = driver.on_time(END_NS)
    assert driver.counters["dead_letters"] == len(values)
    return found


@PATHS
def test_a_code_of_400_digits_is_a_dead_letter(group: str) -> None:
    [dead_letter] = dead_letters([exit_of_400_digits()], group)

    assert (dead_letter.topic, dead_letter.value) == (DEAD_LETTER, exit_of_400_digits())
    assert (dead_letter.headers["reason"], dead_letter.headers["offset"]) == (b"undecodable", b"0")


@PATHS
def test_each_hostile_record_is_a_dead_letter_by_name(group: str) -> None:
    values = [make() for _, make in HOSTILE_RECORDS.values()]

    assert {dead_letter.headers["reason"] for dead_letter in dead_letters(values, group)} == {
        b"undecodable",
        b"bad_field",
    }


@PATHS
@pytest.mark.parametrize(
    "error", [OverflowError("int too large"), RecursionError(), MemoryError(), ZeroDivisionError()]
)
def test_whatever_is_raised_harms_that_record_only(
    group: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: Any, **__: Any) -> None:
        raise error

    for module in (reduce_module, windows_module, driver_module):
        monkeypatch.setattr(module, "decode", breaks)
    for module in (reduce_module, windows_module):
        monkeypatch.setattr(module, "decode_many", breaks)

    found = dead_letters([b"one", b"two"], group)

    assert [(dead_letter.value, dead_letter.headers["reason"]) for dead_letter in found] == [
        (b"one", OPERATOR_FAILED.encode()),
        (b"two", OPERATOR_FAILED.encode()),
    ]


def test_what_the_reducer_cannot_decode_goes_on_as_it_came() -> None:
    packed = reduce_and_pack([exit_of_400_digits(), b"", b"x"], ["t:0:1", "t:0:2", None], "all", "evil/x", 1)

    assert list(unpack(packed)) == list(unpack(pack([exit_of_400_digits(), b"", b"x"], ["t:0:1", "t:0:2", "::"])))
