"""Every query of Prometheus in the dashboards: its metrics and labels are on a page that tocsin's own code made."""

from __future__ import annotations

import re

import pytest

from tests.deploy.exposed import Pages, pages
from tests.deploy.test_prometheus import metrics
from tests.tools.grafana.board import Prom
from tests.tools.grafana.boards import BOARDS
from tests.tools.grafana.monitor import MONITOR

SCRAPED = {"job", "instance"}
"""Labels that Prometheus itself gives each series."""
QUERIES = {
    f"{board.name}: {panel.title} {number}".removesuffix(" 0"): query
    for board in BOARDS
    for panel in board.panels
    for number, query in enumerate(panel.queries)
    if isinstance(query, Prom)
}
_METRIC = re.compile(r"\b((?:tocsin|flink)_\w+|up)\b(?:\{(.*?)\})?")


def names_in(text: str) -> list[tuple[str, set[str]]]:
    """Return each metric of a query with the labels that it is chosen by."""
    found = _METRIC.findall(re.sub(r"\bby \([^)]*\)", "", text))
    return [(name, set(re.findall(r"(\w+)\s*[=!]~?", matchers))) for name, matchers in found]


def grouped_by(query: Prom) -> set[str]:
    """Return the labels that a query groups by or names its series by."""
    groups = re.findall(r"\bby \(([^)]*)\)", query.text)
    return {label for text in groups for label in re.split(r",\s*", text)} | set(
        re.findall(r"\{\{(\w+)\}\}", query.legend)
    )


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    return pages(tmp_path_factory.mktemp("pages"))


@pytest.fixture(scope="module")
def labels(shown: Pages) -> dict[str, set[str]]:
    """Each metric with the labels of its samples, as Prometheus stores them; a training job's is ``exported_job``."""
    found: dict[str, set[str]] = {"up": set(SCRAPED)}
    for families in shown.values():
        for family in families:
            for sample in family.samples:
                own = {f"exported_{name}" if name in SCRAPED else name for name in sample.labels}
                found.setdefault(family.name + sample.suffix, set(SCRAPED)).update(own)
    return found


@pytest.mark.parametrize("name", QUERIES)
def test_each_metric_and_each_label_is_on_a_page(labels: dict[str, set[str]], name: str) -> None:
    query = QUERIES[name]
    used = names_in(query.text)

    assert used
    for metric, chosen_by in used:
        assert metric in labels
        assert chosen_by <= labels[metric], metric
    assert grouped_by(query) <= set().union(*(labels[metric] for metric, _ in used))


def test_a_label_that_is_missing_would_be_seen(labels: dict[str, set[str]]) -> None:
    [(metric, chosen_by)] = names_in('sum by (role) (tocsin_active{rolle="x"})')
    assert (metric, chosen_by) == ("tocsin_active", {"rolle"})
    assert not chosen_by <= labels[metric]
    assert grouped_by(Prom("sum by (a, b) (up)", "{{c}}")) == {"a", "b", "c"}


def test_the_monitor_shows_each_metric_that_an_alert_of_tocsin_reads() -> None:
    text = " ".join(query.text for panel in MONITOR.panels for query in panel.queries)
    assert metrics() <= set(re.findall(r"\w+", text))


def test_the_scrape_jobs_of_the_queries_are_those_that_have_pages(shown: Pages) -> None:
    jobs = {job for query in QUERIES.values() for job in re.findall(r'\bjob="([\w-]+)"', query.text)}
    assert jobs <= set(shown)
