"""Every ClickHouse query of the dashboards, as Grafana sends it, over the migrated tables with a small fleet's past."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clickhouse_fixtures import opened_store
from tests.deploy.grafana_macros import Page
from tests.pipeline.stores.samples import verdict
from tests.tools.grafana.board import Board, Sql
from tests.tools.grafana.boards import BOARDS
from tocsin.pipeline.stores.alert_sent import AlertSent
from tocsin.pipeline.stores.attempt_starts import AttemptStart, StartStage
from tocsin.pipeline.stores.attempt_times import AttemptTime, TimePart
from tocsin.pipeline.stores.base import ActionChange, EvidencePoint, HostHealth, JobStatus
from tocsin.pipeline.stores.sql_store import SqlStore
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.operator_notes import Feedback, Maintenance
from tocsin.schemas.records import JobKey
from tocsin.schemas.verdicts import (
    ActionKind,
    Advice,
    Component,
    ComponentKind,
    Evidence,
    Suspect,
    Verdict,
    VerdictState,
)

SECOND = 1_000_000_000
NOW = time.time_ns() // (60 * SECOND) * 60 * SECOND
OPEN, CONFIRMED, CANCELLED = VerdictState.OPEN, VerdictState.CONFIRMED, VerdictState.CANCELLED
HERE, OTHER = JobKey("c1", "it's", 1), JobKey("c2", "other", 0)
N3 = Component(ComponentKind.HOST, "n3")
PEERS = Evidence("peers", "gpu_power_watts", 2.0, NOW, NOW, "it draws less", model_version="v7")
CHOSEN = {"cluster": ("c1",), "job": ("it's",), "host": ("n3", "n4"), "verdict": ("stands",)}
ALL: dict[str, tuple[str, ...]] = {"cluster": (), "job": (), "host": ()}
RANGE = NOW // SECOND - 30 * 86_400, NOW // SECOND + 60

QUERIES = {
    f"{board.name}: {panel.title} {number}".removesuffix(" 0"): query
    for board in BOARDS
    for panel in board.panels
    for number, query in enumerate(panel.queries)
    if isinstance(query, Sql)
}
VARIABLES = {f"{board.name}: {one.name}": one.query for board in BOARDS for one in board.variables}


def lines(name: str, ago_seconds: int, *states: VerdictState, job: JobKey = HERE, host: str = "n3") -> list[Verdict]:
    onset = NOW - ago_seconds * SECOND
    base: dict[str, Any] = {
        "job": job,
        "suspects": (Suspect(Component(ComponentKind.HOST, host)),) if host else (),
        "onset_ns": onset,
        "expires_ns": NOW + 600 * SECOND,
        "evidence": (PEERS,),
        "cause": "ecc_error",
    }
    return [
        verdict(name, update, state=state, detected_ns=onset + (10 + 20 * update) * SECOND, **base)
        for update, state in enumerate(states)
    ]


def fill(store: SqlStore, *, by_serve: bool = False) -> None:
    """Write what a fleet leaves behind, by the store's own methods; ``by_serve``: what tocsin serve writes of it."""
    for line in (
        *lines("stands", 120, OPEN, CONFIRMED),
        *lines("former", 3 * 86_400, OPEN, CONFIRMED, VerdictState.RESOLVED),
        *lines("freed", 2 * 86_400, OPEN, CONFIRMED, CANCELLED, host="n4"),
        *lines("elsewhere", 4 * 86_400, OPEN, CONFIRMED, job=OTHER, host="n9"),
    ):
        store.write_verdicts([line])
    [canary] = lines("canary", 300, OPEN, host="")
    store.write_verdicts([verdict("canary", job=HERE, detected_ns=canary.detected_ns, suspects=(), reason="canary")])
    store.write_evidence([EvidencePoint("stands", "own_seconds", N3, NOW - SECOND, 1.5, 1.0, 0.9, 1.1, 7)])
    action = Advice("stands", 1, HERE, ActionKind.RESTART, None, "x", "job", NOW, NOW + SECOND, dry_run=True)
    store.write_actions([ActionChange(action, ActionState.PROPOSED, NOW)])
    store.write_alerts_sent(
        [AlertSent(HERE, "stands", 1, "all", "pager", "webhook", "firing", "page", "delivered", "", 1, NOW, NOW + 1)]
    )
    minutes = [NOW - at * 60 * SECOND for at in range(5)]
    store.write_host_health([HostHealth(HERE, "n3", at, 60, 1, 2, 1.5, "gpu_power_watts") for at in minutes])
    if not by_serve:
        state = {"host_count": 2, "rank_count": 16, "stepping_rank_count": 16, "max_step": 12, "step_seconds": 0.5}
        store.write_job_status(
            [JobStatus(HERE, NOW, True, {**state, "mfu": {"mfu_ratio": 0.4}, "abstained": {"too_few_peers": 3}}, [])]
        )
    began, ended = NOW - 100 * SECOND, NOW - 70 * SECOND
    stage = StartStage("full", "env_setup", began, ended, 2, 0, 0, 25.0, "n3", began, ended, "n3", 40 * SECOND)
    store.write_attempt_starts([AttemptStart(HERE, began, ended, ended, 2, 16, (stage,))])
    parts = {TimePart.PRODUCTIVE: 60 * SECOND, TimePart.DETECTION: 10 * SECOND}
    store.write_attempt_times([AttemptTime(HERE, began, NOW, NOW, False, parts, 80, 2, 12, gpu_count=16)])
    work = Maintenance("m1", "c1", N3, NOW - 60 * SECOND, NOW + 3_600 * SECOND, "new fan", "uid:1000", NOW)
    words = [Feedback("c1", name, True, "card", "uid:1000", NOW) for name in ("former", "stands")]
    store.write_notes([*words, work])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlStore]:
    with opened_store("chdb", tmp_path_factory.mktemp("grafana")) as opened:
        fill(opened)
        yield opened


def ask(store: SqlStore, sql: str, variables: dict[str, tuple[str, ...]]) -> list[dict[str, Any]]:
    text = Page(*RANGE, variables).sql(sql)
    return [json.loads(line) for line in store.query(text, "JSONEachRow").splitlines()]


@functools.cache
def chosen(store: SqlStore, text: str) -> list[dict[str, Any]]:
    """The rows of a query with ``CHOSEN``, asked once."""
    return ask(store, text, CHOSEN)


@pytest.mark.parametrize("name", QUERIES)
def test_each_query_finds_something_and_a_series_has_its_time(store: SqlStore, name: str) -> None:
    query = QUERIES[name]
    found = chosen(store, query.text)

    assert found
    assert ("time" in found[0]) == query.is_series
    assert any(value not in {None, ""} for value in found[0].values() if not isinstance(value, list))


@pytest.mark.parametrize("name", VARIABLES)
def test_each_variable_has_values(store: SqlStore, name: str) -> None:
    assert ask(store, VARIABLES[name], CHOSEN)


@pytest.mark.parametrize("name", [name for name in QUERIES if name.startswith(("fleet", "monitor"))])
def test_with_all_chosen_there_is_at_least_as_much(store: SqlStore, name: str) -> None:
    assert len(ask(store, QUERIES[name].text, ALL)) >= len(chosen(store, QUERIES[name].text))


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: str(board.name))
def test_units_and_links_are_those_of_columns_that_are_there(store: SqlStore, board: Board) -> None:
    for panel in board.panels:
        columns = {
            column
            for query in panel.queries
            if isinstance(query, Sql)
            for row in chosen(store, query.text)
            for column in row
        }
        assert set(panel.units) <= columns, panel.title
        assert not panel.leads_to_job or {"job", "cluster"} <= columns, panel.title


def value(store: SqlStore, name: str, variables: dict[str, tuple[str, ...]] = CHOSEN) -> Any:
    [row] = ask(store, QUERIES[name].text, variables)
    [found] = row.values()
    return found


def test_the_figures_of_the_fleet(store: SqlStore) -> None:
    assert int(value(store, "fleet: Incidents that stand")) == 1
    assert int(value(store, "fleet: Incidents that stand", ALL)) == 2
    assert int(value(store, "fleet: Incidents that stand", {**ALL, "host": ("n9",)})) == 1
    assert int(value(store, "fleet: Hosts under maintenance")) == 1
    assert int(value(store, "fleet: Repeat offenders (90 days)")) == 1
    found = ask(store, QUERIES["fleet: Accused falsely"].text, CHOSEN)
    assert [(row["verdict_id"], row["how_known"]) for row in found] == [("freed", "taken back")]
    [alarms] = ask(store, QUERIES["fleet: Alarms for each machine-day, by detector and model version"].text, CHOSEN)
    assert (alarms["detector"], alarms["model_version"], int(alarms["alarms"])) == ("peers", "v7", 3)
    assert alarms["alarms_per_machine_day"] == pytest.approx(3 * 1440 / 5, rel=0.01)
    [detected] = ask(store, QUERIES["fleet: Time to detect, by cause"].text, {**CHOSEN, "host": ("n3",)})
    assert (detected["mean_to_open"], detected["mean_to_confirm"]) == (10, 30)


def test_the_figures_of_a_job(store: SqlStore) -> None:
    assert value(store, "job: Time of a step") == 0.5
    assert value(store, "job: Effective training time") == pytest.approx(0.6)
    [pace] = ask(store, QUERIES["job: Attempts"].text, CHOSEN)
    assert pace["mean_step_seconds"] == 0.75
    [parts] = ask(store, QUERIES["job: Wall time by part, all attempts"].text, CHOSEN)
    assert (parts["productive"], parts["detection"], parts["unattributed"]) == (60, 10, 30)
    [abstained] = ask(store, QUERIES["job: Why no verdict was given"].text, CHOSEN)
    assert (abstained["reason"], int(abstained["times"])) == ("too_few_peers", 3)


def test_outside_the_time_range_there_is_nothing(store: SqlStore) -> None:
    past = Page(1, 2, CHOSEN)
    for name in ("fleet: Accused falsely", "fleet: Time to detect, by cause", "monitor: From slice to table"):
        assert store.query(past.sql(QUERIES[name].text), "JSONEachRow").strip() in {"", b""}


def test_a_value_that_is_not_quoted_is_seen() -> None:
    with pytest.raises(AssertionError, match="must be quoted"):
        Page(0, 1, CHOSEN).sql("SELECT ${job}")
    with pytest.raises(KeyError):
        Page(0, 1, CHOSEN).sql("SELECT $__timeFilterr(since)")
