"""What people tell tocsin crosses files and topics unchanged; what is no note is refused by field and value."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tocsin.schemas.errors import FieldError
from tocsin.schemas.operator_notes import (
    Feedback,
    Maintenance,
    OperatorNote,
    check_note,
    check_target,
    maintenance_id_of,
    note_from,
    note_object,
)
from tocsin.schemas.verdicts import Component, ComponentKind

LEAF = Component(ComponentKind.LEAF, "leaf3")
JUDGED = Feedback("c1", "v1", False, "the card was fine", "uid:1000", 7)
WORK = Maintenance("00ff", "c1", LEAF, 10, 20, "new optics", "k-1", 7)


@pytest.mark.parametrize("note", [JUDGED, WORK])
def test_a_note_comes_back_from_json_as_it_was(note: OperatorNote) -> None:
    assert note_from(json.loads(json.dumps(note_object(note)))) == note


@pytest.mark.parametrize(
    ("note", "changed", "field"),
    [
        (JUDGED, {"kind": "wish"}, "kind"),
        (JUDGED, {"is_true": 1}, "is_true"),
        (JUDGED, {"verdict_id": ""}, "verdict_id"),
        (JUDGED, {"note": "x" * 1001}, "note"),
        (JUDGED, {"actor": "a" * 201}, "actor"),
        (JUDGED, {"ts_ns": -1}, "ts_ns"),
        (WORK, {"target_kind": "rank"}, "target_kind"),
        (WORK, {"target": ""}, "target"),
        (WORK, {"end_ns": 9}, "end_ns"),
        (WORK, {"reason": " "}, "reason"),
    ],
)
def test_what_is_no_note_is_refused_by_field(note: OperatorNote, changed: dict[str, Any], field: str) -> None:
    with pytest.raises(FieldError) as raised:
        note_from({**note_object(note), **changed})
    assert raised.value.field == field


def test_a_text_is_kept_without_the_spaces_at_its_ends() -> None:
    assert check_note("  new optics ", "reason") == "new optics"
    assert check_note(" ", "note", empty=True) == ""


def test_work_is_planned_on_hosts_leaves_and_jobs() -> None:
    assert check_target("leaf", "leaf3") == LEAF
    with pytest.raises(FieldError, match="host, leaf, job"):
        check_target("gpu", "0")


def test_the_id_of_a_work_is_stable_and_tells_works_apart() -> None:
    one = maintenance_id_of("c1", LEAF, 10, "uid:7", 7)
    assert one == maintenance_id_of("c1", LEAF, 10, "uid:7", 7)
    assert len(one) == 16
    assert one != maintenance_id_of("c2", LEAF, 10, "uid:7", 7)


def test_work_goes_on_from_its_first_moment_up_to_its_end() -> None:
    assert [WORK.is_on(at_ns) for at_ns in (9, 10, 19, 20)] == [False, True, True, False]
