"""One line a trouble and interval; what is held back is counted, and nothing that a peer chose makes lines long."""

from __future__ import annotations

import logging

import pytest

from tests.hand_clock import HandClock
from tocsin.schemas.trouble_log import MAX_KEYS, TroubleLog

LOGGER = logging.getLogger("tocsin.test-troubles")


def test_a_flood_is_one_line_an_interval_with_a_count(caplog: pytest.LogCaptureFixture) -> None:
    clock = HandClock()
    troubles = TroubleLog(LOGGER, 10.0, clock)
    with caplog.at_level(logging.INFO, LOGGER.name):
        for _ in range(1000):
            troubles.warn("dead letter", "undecodable", host="x" * 5000)
        troubles.warn("dead letter", "too_large")
        clock.seconds = 11.0
        troubles.warn("dead letter", "undecodable")
        troubles.flush()

    assert [record.message for record in caplog.records] == ["dead letter"] * 3
    assert [vars(record).get("more_count") for record in caplog.records] == [None, None, 999]
    assert len(vars(caplog.records[0])["host"]) == 500


def test_what_came_no_more_is_said_by_flush(caplog: pytest.LogCaptureFixture) -> None:
    clock = HandClock()
    troubles = TroubleLog(LOGGER, 10.0, clock)
    with caplog.at_level(logging.INFO, LOGGER.name):
        for _ in range(3):
            troubles.info("gone", "silent")
        troubles.flush()
        clock.seconds = 10.0
        troubles.flush()
        troubles.flush()

    assert [record.message for record in caplog.records] == ["gone", "gone: silent, again"]
    assert vars(caplog.records[1])["more_count"] == 2


def test_an_exception_is_one_line_that_says_where(caplog: pytest.LogCaptureFixture) -> None:
    troubles = TroubleLog(LOGGER)
    with caplog.at_level(logging.INFO, LOGGER.name):
        for error in (OverflowError("int too large"), ValueError(10**5000)):
            try:
                raise error
            except Exception:  # noqa: BLE001  # what is logged may be anything
                troubles.exception("operators failed", type(error).__name__)

    first, second = caplog.records
    assert vars(first)["error"] == "OverflowError: int too large"
    assert "test_trouble_log.py" in vars(first)["where"]
    assert vars(second)["error"] == "ValueError: (cannot be shown)"
    assert not first.exc_info


def test_the_number_of_troubles_is_bounded() -> None:
    troubles = TroubleLog(LOGGER)
    for number in range(3 * MAX_KEYS):
        troubles.info("gone", str(number))

    assert troubles.key_count == MAX_KEYS
