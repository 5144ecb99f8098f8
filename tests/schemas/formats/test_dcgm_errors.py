"""DCGM's errors: the table is NVSentinel's, and a name that it does not hold is unknown."""

from __future__ import annotations

import csv
from pathlib import Path

from tocsin.schemas.formats.dcgm_errors import DCGM_ACTIONS, action_of_error, errors_in


def test_the_table_is_the_published_one(shared_data: Path) -> None:
    with (shared_data / "dcgm" / "dcgmerrorsmapping.csv").open(newline="") as file:
        published = dict(csv.reader(file))

    assert published == DCGM_ACTIONS


def test_a_name_that_is_not_in_the_table_is_unknown() -> None:
    assert action_of_error("DCGM_FR_OF_TOMORROW") == "UNKNOWN"
    assert action_of_error("VOLATILE_DBE_DETECTED") == "UNKNOWN"


def test_names_in_a_text_are_found_once_and_in_order() -> None:
    text = "n1: DCGM_FR_NVLINK_DOWN, DCGM_FR_OF_TOMORROW (again DCGM_FR_NVLINK_DOWN), XDCGM_FR_NOT"

    assert errors_in(text) == ("DCGM_FR_NVLINK_DOWN", "DCGM_FR_OF_TOMORROW")
