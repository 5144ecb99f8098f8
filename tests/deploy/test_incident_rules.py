"""Rules about incidents: what they name exists, and they follow the tables in the code."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.deploy import files
from tocsin.pipeline.incidents.standing import incident_families
from tocsin.schemas.actions import HARD_KINDS
from tocsin.schemas.causes import CAUSES
from tocsin.schemas.job_key import FLEET_JOB_ID
from tocsin.schemas.runbooks import RUNBOOKS
from tocsin.schemas.verdicts import ActionKind, FaultKind, VerdictState

FOLDER = files.DEPLOY / "prometheus"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((FOLDER / "incidents.yml").read_text("utf-8"))["groups"] for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]
EXPRESSIONS = " ".join(rule["expr"] for rule in RULES)
NO_MACHINE = {ActionKind.NONE, ActionKind.NOTIFY, ActionKind.PROBE}


def values_of(label: str) -> set[str]:
    """Return the values of a label that expressions compare it with."""
    found = re.findall(rf'\b{label}(?:=|!=|=~|!~)"([^"]+)"', EXPRESSIONS)
    return {value for text in found for value in text.split("|")}


def test_each_metric_is_on_a_page_or_recorded() -> None:
    recorded = {rule["record"] for rule in RULES if "record" in rule}
    shown = {family.name for family in incident_families(())}
    named = set(re.findall(r"\btocsin[\w:]+", re.sub(r'"[^"]*"', "", EXPRESSIONS)))
    assert named - recorded == shown
    assert recorded <= named


def test_what_is_silenced_or_planned_pages_nobody() -> None:
    read = [rule["expr"] for rule in RULES if re.search(r"\btocsin_incident\b", rule["expr"])]
    assert [rule.count('tocsin_incident{silenced=""}') for rule in read] == [1]
    [fleet] = [rule["expr"] for rule in ALERTS if rule["alert"] == "TocsinFleetIncident"]
    assert 'cause!="planned_work"' in fleet


def test_each_value_of_a_label_is_one_that_verdicts_have() -> None:
    assert values_of("fault") <= set(FaultKind)
    assert values_of("state") <= set(VerdictState)
    assert values_of("job") == {FLEET_JOB_ID}


def test_slow_machines_page_by_the_causes_for_which_something_must_be_done() -> None:
    [page] = [rule for rule in RULES if rule.get("record") == "tocsin:incident:page"]
    [text] = re.findall(r'cause!~"([^"]+)"', page["expr"])
    assert set(text.split("|")) == {cause.name for cause in CAUSES.values() if cause.action in NO_MACHINE}
    assert not NO_MACHINE & HARD_KINDS


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: str(rule["alert"]))
def test_each_alert_says_how_bad_it_is_where_its_runbook_is_and_outlasts_a_gap(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert rule["alert"].startswith("Tocsin")
    link = rule["annotations"]["runbook_url"]
    assert link.startswith("https://runbooks.example/tocsin/")
    fixed = re.search(r"/tocsin/(\w+)\.md$", link)
    assert fixed is None or fixed[1] in {*RUNBOOKS, "index"}
    assert "keep_firing_for" in rule or rule["alert"] == "TocsinIncidentsNotShown"


def test_no_alert_is_known_by_what_changes_while_an_incident_lasts() -> None:
    for rule in ALERTS:
        assert set(rule["labels"]) == {"severity"}
        grouped = re.findall(r"\bby \(([\w, ]+)\)", rule["expr"])
        assert not {"state", "fault"} & {label for text in grouped for label in text.split(", ")}


def test_names_of_both_rule_files_are_apart_and_alertmanager_knows_those_of_incidents() -> None:
    health = yaml.safe_load((FOLDER / "alerts.yml").read_text("utf-8"))["groups"]
    ours = {rule["alert"] for rule in ALERTS}
    assert not ours & {rule["alert"] for group in health for rule in group["rules"]}
    rules = yaml.safe_load((FOLDER / "alertmanager.yml").read_text("utf-8"))["inhibit_rules"]
    named = {
        name
        for rule in rules
        for matcher in (*rule["source_matchers"], *rule["target_matchers"])
        for name in re.findall(r"Tocsin\w+", matcher)
    }
    assert named <= ours


def test_the_docs_name_each_alert() -> None:
    text = files.DOCS.read_text("utf-8")
    assert [rule["alert"] for rule in ALERTS if f"`{rule['alert']}`" not in text] == []
