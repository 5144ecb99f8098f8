"""All cases together: figures, order, index."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from tests.pipeline.lab.backtest.kit import Says, cpu_recording, fault
from tocsin.pipeline.lab.backtest.summary import (
    CaseRow,
    by_worst,
    figures_of,
    headline,
    index_page,
    table_lines,
    to_object,
)
from tocsin.pipeline.lab.backtest.trial import Trial, judge
from tocsin.schemas.reasons import Reason

RIGHT, WRONG = (("n2", 230.0),), (("n4", 230.0),)
X = "{http://www.w3.org/1999/xhtml}"


def trial(ours: Says, other: Says, *, healthy: bool = False) -> Trial:
    return judge(cpu_recording(faults=() if healthy else [fault("n2", 200, 500)]), [ours, other])


def cases() -> list[CaseRow]:
    return [
        CaseRow("fine", trial(Says("ours", RIGHT), Says("other", RIGHT)), page="fine.html"),
        CaseRow("other-missed", trial(Says("ours", RIGHT), Says("other")), page="o.html"),
        CaseRow("broken", None, "steps.parquet: <cut>"),
        CaseRow("ours-false", trial(Says("ours", WRONG), Says("other"), healthy=True)),
        CaseRow("blind", judge(cpu_recording(faults=None), [Says("ours", WRONG), Says("other", (), Reason.NO_HOOK)])),
    ]


def test_figures_add_up_by_set() -> None:
    ours, other = figures_of([case.trial for case in cases() if case.trial is not None])

    assert (ours.total.hit_count, ours.total.missed_count, ours.total.false_count) == (2, 0, 1)
    assert (other.total.hit_count, other.total.missed_count, other.total.false_count) == (1, 1, 0)
    assert (ours.healthy_false_count, other.abstained) == (1, {"no_hook": 1})
    assert ours.kinds["fail_slow"].hit_count == ours.causes["power_cap"].hit_count == 2
    assert ours.total.median_seconds == 30.0
    assert figures_of([]) == []


def test_what_went_wrong_stands_first() -> None:
    assert [case.folder for case in by_worst(cases())] == ["ours-false", "other-missed", "blind", "fine", "broken"]


def test_the_table_has_a_line_a_set_and_names_what_was_not_judged() -> None:
    found = table_lines(figures_of([case.trial for case in cases() if case.trial is not None]))

    assert found[1].split() == ["ours", "2", "2", "0.667", "1.000", "0.800", "1", "8.000", "30.0", "30.0"]
    assert found[2].split()[:5] == ["other", "2", "1", "1.000", "0.500"]
    assert found[3] == "other could not judge: 1 no_hook"
    without = "1 without truth.json, not scored, 1 unreadable"
    assert headline(cases()) == f"5 recordings, 2 with a fault, 1 healthy, {without}"


def test_the_index_lists_and_links_the_cases() -> None:
    page = ET.fromstring(index_page(cases()))
    rows = [[" ".join("".join(cell.itertext()).split()) for cell in row] for row in page.iter(f"{X}tr")]

    assert ["ours-false", "6", "10:00", "healthy", "false: n4", "nobody"] in rows
    assert ["other-missed", "6", "10:00", "power_cap", "30.0 s", "missed 1"] in rows
    assert ["blind", "6", "10:00", "unknown", "n4", "not judged: no_hook"] in rows
    assert ["broken", "", "", "unreadable: steps.parquet: <cut>", "", ""] in rows
    assert [link.get("href") for link in page.iter(f"{X}a")] == ["o.html", "fine.html"]
    assert ET.fromstring(index_page([]))


def test_the_object_for_json_holds_sets_cases_and_what_was_unreadable() -> None:
    found = to_object(cases())

    assert found["sets"]["ours"]["all"]["hits"] == 2
    assert found["sets"]["other"]["not_judged"] == {"no_hook": 1}
    assert [one["folder"] for one in found["cases"]] == ["fine", "other-missed", "ours-false", "blind"]
    first = found["cases"][0]
    assert (first["machines"], first["faults"], first["page"]) == (6, ["power_cap"], "fine.html")
    assert first["sets"]["ours"]["accusations"][0]["delay_seconds"] == 30.0
    assert found["unreadable"] == [{"folder": "broken", "error": "steps.parquet: <cut>"}]
