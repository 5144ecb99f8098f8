"""The dashboards' files: those of the declaration, as Grafana's own package reads them, with sources that are there."""

from __future__ import annotations

import json
import re
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.cog.runtime import UnknownDataquery
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.deploy import files
from tests.deploy.grafana_types import misfits
from tests.deploy.sre_user import FILE, NAME
from tests.tools.grafana.board import CLICKHOUSE, PROMETHEUS, Board, Panel, Prom, Sql, model
from tests.tools.grafana.boards import BOARDS, FOLDER, texts, write

register_default_plugins()
PROVISIONED = files.DEPLOY / "grafana" / "provisioning"
SQL_TARGET = {"refId", "datasource", "queryType", "format", "editorType", "rawSql"}
"""What the ClickHouse plugin reads of a query in SQL; Grafana's package does not know that plugin."""


def loaded(board: Board) -> dict[str, Any]:
    return dict(json.loads((FOLDER / f"{board.name}.json").read_text("utf-8")))


def sources() -> dict[str, dict[str, Any]]:
    text = (PROVISIONED / "datasources" / "tocsin.yaml").read_text("utf-8")
    return {one["type"]: one for one in yaml.safe_load(text)["datasources"]}


def test_the_files_are_those_of_the_declaration() -> None:
    found = {path.name: path.read_text("utf-8") for path in FOLDER.iterdir()}
    assert found == texts(), "make dashboards"


def test_a_file_of_no_dashboard_is_removed_and_the_same_text_is_left_alone(tmp_path: Any) -> None:
    (tmp_path / "old.json").write_text("{}")
    assert write(tmp_path) == ["old.json", "fleet.json", "job.json", "monitor.json"]
    assert write(tmp_path) == []


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: str(board.name))
def test_grafana_s_own_classes_know_each_field_and_each_value(board: Board) -> None:
    read = Dashboard.from_json(loaded(board))

    assert misfits(read) == []
    assert lost(loaded(board), json.loads(json.dumps(read, cls=JSONEncoder))) == []


def lost(ours: Any, theirs: Any, at: str = "") -> list[str]:
    """Return what the classes lose or change; they may add their defaults."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        gone = [f"{at}.{name}" for name in ours if name not in theirs]
        return gone + [x for name in ours if name in theirs for x in lost(ours[name], theirs[name], f"{at}.{name}")]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [x for n, pair in enumerate(zip(ours, theirs, strict=True)) for x in lost(*pair, f"{at}[{n}]")]
    return [] if ours == theirs else [at]


@pytest.mark.parametrize(
    ("place", "wrong", "where"),
    [
        (("graphTooltip",), 7, "graph_tooltip"),
        (("panels", 1, "options", "colorMode"), "loud", "color_mode"),
        (("panels", 1, "gridPos", "w"), "wide", "grid_pos"),
        (("panels", 1, "fieldConfig", "defaults", "thresholds", "mode"), "odd", "thresholds"),
        (("templating", "list", 0, "type"), "source", "type_val"),
    ],
)
def test_a_wrong_value_is_found(place: tuple[Any, ...], wrong: object, where: str) -> None:
    told = loaded(BOARDS[0])
    inner: Any = told
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = wrong
    assert any(where in one for one in misfits(Dashboard.from_json(told)))


@pytest.mark.parametrize("place", [(), ("panels", 1), ("panels", 1, "options"), ("templating", "list", 0)])
def test_a_field_that_grafana_does_not_know_is_found(place: tuple[Any, ...]) -> None:
    told = loaded(BOARDS[0])
    inner: Any = told
    for step in place:
        inner = inner[step]
    inner["nonsense"] = 1
    read = json.loads(json.dumps(Dashboard.from_json(told), cls=JSONEncoder))
    assert [one.rpartition(".")[2] for one in lost(told, read)] == ["nonsense"]


def test_queries_are_of_the_form_that_their_plugin_reads() -> None:
    for board in BOARDS:
        for panel in Dashboard.from_json(loaded(board)).panels or []:
            for target in getattr(panel, "targets", None) or []:
                is_unknown = isinstance(target, UnknownDataquery)
                source = target.data["datasource"]["type"] if is_unknown else target.datasource.type_val
                assert source == (CLICKHOUSE if is_unknown else PROMETHEUS)
                assert not is_unknown or set(target.data) == SQL_TARGET


def test_panels_lie_beside_each_other_and_have_names_of_their_own() -> None:
    for board in BOARDS:
        panels = loaded(board)["panels"]
        assert len({one["id"] for one in panels}) == len(panels)
        assert len({one.title for one in board.panels}) == len(board.panels)
        taken: set[tuple[int, int]] = set()
        for one in panels:
            place = one["gridPos"]
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not cells & taken
            assert max(x for x, _ in cells) < 24
            taken |= cells


def test_each_variable_of_a_query_is_one_of_its_dashboard() -> None:
    for board in BOARDS:
        texts_of = [query.text for panel in board.panels for query in panel.queries]
        used = set(re.findall(r"\$\{?(?!_)(\w+)", " ".join((*texts_of, *(one.query for one in board.variables)))))
        assert used == {one.name for one in board.variables}


def test_the_link_to_a_job_sets_the_variables_of_its_dashboard() -> None:
    jobs = next(board for board in BOARDS if board.name == "job")
    leading = [panel for board in BOARDS for panel in loaded(board)["panels"] if "tocsin-job?" in json.dumps(panel)]

    assert len(leading) == sum(panel.leads_to_job for board in BOARDS for panel in board.panels) > 0
    for panel in leading:
        url = panel["fieldConfig"]["overrides"][-1]["properties"][0]["value"][0]["url"]
        assert url.startswith(f"/d/{loaded(jobs)['uid']}?")
        assert set(re.findall(r"var-(\w+)=", url)) == {"cluster", "job"} <= {one.name for one in jobs.variables}


def test_a_panel_with_two_data_sources_is_refused() -> None:
    panel = Panel("both", "table", (Sql("SELECT 1"), Prom("up")))
    with pytest.raises(ValueError, match="'both': its queries are of 2 data sources"):
        model(Board("x", "x", "", "now-1h", (), {"row": (panel,)}))


def test_the_data_sources_are_those_that_the_dashboards_choose_at_first() -> None:
    for board in BOARDS:
        chosen = {
            one["query"]: one["current"] for one in loaded(board)["templating"]["list"] if one["type"] == "datasource"
        }
        assert {kind: (one["text"], one["value"]) for kind, one in chosen.items()} == {
            kind: (one["name"], one["uid"]) for kind, one in sources().items()
        }


def test_the_data_source_asks_as_the_user_who_only_reads_and_within_its_time() -> None:
    settings = sources()[CLICKHOUSE]["jsonData"]
    most = ET.fromstring(FILE.read_text("utf-8")).find(f"profiles/{NAME}/constraints/max_execution_time/max")

    assert settings["username"] == NAME
    assert most is not None
    assert int(settings["queryTimeout"]) + 5 <= int(most.text or "0"), "its client asks for five seconds more"


def test_no_password_is_in_a_file() -> None:
    assert sources()[CLICKHOUSE]["secureJsonData"] == {"password": "$TOCSIN_SRE_PASSWORD"}


def test_the_docs_say_where_the_files_go() -> None:
    [provider] = yaml.safe_load((PROVISIONED / "dashboards" / "tocsin.yaml").read_text("utf-8"))["providers"]
    text = (files.ROOT / "docs" / "grafana.md").read_text("utf-8")

    assert provider["options"]["path"] in text
    assert all(f"`{board.name}`" in text for board in BOARDS)
    assert "TOCSIN_SRE_PASSWORD" in text
