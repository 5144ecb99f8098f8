"""What a dashboard is made of, and its JSON model as Grafana 11 reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

Json = dict[str, object]
"""A JSON object."""

CLICKHOUSE: Final = "grafana-clickhouse-datasource"
"""Type of the data source with tocsin's tables, the plugin of Grafana Labs."""
PROMETHEUS: Final = "prometheus"
"""Type of the data source with tocsin's metrics."""
ALL: Final = "$__all"
"""Value of a variable while "All" is chosen."""
SCHEMA_VERSION: Final = 41
"""Version of the dashboard model, that of Grafana 11.6."""
_JOB_URL: Final = (
    "/d/tocsin-job?var-cluster=${__data.fields.cluster:percentencode}"
    "&var-job=${__data.fields.job:percentencode}&${__url_time_range}"
)
"""The dashboard of the job in a table's row."""
_WIDTH: Final = 24
"""Columns of Grafana's grid."""


@dataclass(frozen=True)
class Sql:
    """A query of ClickHouse.

    Attributes:
        text: SQL with the macros and variables of Grafana.
        is_series: whether the answer is a series, with a column ``time``; else it is a table.
    """

    text: str
    is_series: bool = False


@dataclass(frozen=True)
class Prom:
    """A query of Prometheus.

    Attributes:
        text: PromQL with the variables of Grafana.
        legend: name of a series; ``{{label}}`` stands for a label's value.
    """

    text: str
    legend: str = ""


Query = Sql | Prom
"""A query of one of the two data sources."""


@dataclass(frozen=True)
class Panel:
    """A panel.

    Attributes:
        title: its title, unique in the dashboard.
        kind: type of the visualisation: ``stat``, ``table``, ``timeseries`` or ``bargauge``.
        queries: its queries, all of one data source.
        text: what the figures mean.
        width: columns of the grid, 1 to 24.
        height: rows of the grid.
        unit: Grafana's name of the unit of all numbers.
        units: column -> Grafana's name of its unit.
        red_above: value from which a figure is red; None: never.
        red_below: value below which a figure is red; None: never.
        none_word: what stands where there is no value.
        leads_to_job: whether the column ``job`` leads to that job's dashboard; needs a column ``cluster``.
    """

    title: str
    kind: str
    queries: tuple[Query, ...]
    text: str = ""
    width: int = 12
    height: int = 8
    unit: str = "none"
    units: dict[str, str] = field(default_factory=dict)
    red_above: float | None = None
    red_below: float | None = None
    none_word: str = ""
    leads_to_job: bool = False


@dataclass(frozen=True)
class Variable:
    """A variable with the values that a query finds.

    Attributes:
        name: its name in queries.
        label: its name on the page.
        query: SQL for its values.
        many: whether several values, or all, can be chosen.
    """

    name: str
    label: str
    query: str
    many: bool = True


@dataclass(frozen=True)
class Board:
    """A dashboard.

    Attributes:
        name: name of its file; ``tocsin-NAME`` is its uid.
        title: its title.
        text: what it is for.
        since: begin of the time range, in Grafana's words.
        variables: its variables beside the two data sources.
        rows: title of a row -> its panels, from left to right and from top to bottom.
    """

    name: str
    title: str
    text: str
    since: str
    variables: tuple[Variable, ...]
    rows: dict[str, tuple[Panel, ...]]

    @property
    def panels(self) -> tuple[Panel, ...]:
        """All panels, in their order."""
        return tuple(panel for panels in self.rows.values() for panel in panels)


def model(board: Board) -> Json:
    """Return the JSON model of a dashboard."""
    variables = [_source("clickhouse", "ClickHouse", CLICKHOUSE), _source("prometheus", "Prometheus", PROMETHEUS)]
    return {
        "uid": f"tocsin-{board.name}",
        "title": board.title,
        "description": board.text,
        "tags": ["tocsin"],
        "timezone": "utc",
        "editable": True,
        "graphTooltip": 1,
        "time": {"from": board.since, "to": "now"},
        "fiscalYearStartMonth": 0,
        "refresh": "1m",
        "schemaVersion": SCHEMA_VERSION,
        "panels": list(_panels(board)),
        "templating": {"list": [*variables, *map(_variable, board.variables)]},
        "annotations": {"list": []},
        "links": [_link()],
    }


def _link() -> Json:
    """Return the menu that leads to the other dashboards; it keeps time range and variables."""
    return {
        "title": "tocsin",
        "type": "dashboards",
        "icon": "external link",
        "tooltip": "",
        "tags": ["tocsin"],
        "asDropdown": False,
        "targetBlank": False,
        "includeVars": True,
        "keepTime": True,
    }


def _source(name: str, label: str, kind: str) -> Json:
    """Return the variable that chooses a data source; at first it is the provisioned one."""
    current = {"selected": False, "text": f"tocsin {label}", "value": f"tocsin-{name}"}
    return _any_variable("datasource", name, label) | {"query": kind, "current": current, "refresh": 1, "regex": ""}


def _variable(variable: Variable) -> Json:
    """Return a variable whose values a query finds."""
    found = _any_variable("query", variable.name, variable.label) | {
        "query": variable.query,
        "datasource": _datasource(CLICKHOUSE),
        "refresh": 2,
        "sort": 1,
        "regex": "",
        "multi": variable.many,
        "includeAll": variable.many,
    }
    if variable.many:
        # ClickHouse gets no condition at all ($__conditionalAll), Prometheus a pattern for everything.
        found |= {"allValue": ".*", "current": {"selected": True, "text": "All", "value": ALL}}
    return found


def _any_variable(kind: str, name: str, label: str) -> Json:
    """Return what all variables have."""
    return {
        "type": kind,
        "name": name,
        "label": label,
        "hide": 0,
        "skipUrlSync": False,
        "multi": False,
        "includeAll": False,
        "allowCustomValue": True,
        "auto": False,
        "auto_min": "10s",
        "auto_count": 30,
    }


def _datasource(kind: str) -> Json:
    """Return the reference to the data source that the dashboard's variable chooses."""
    return {"type": kind, "uid": "${clickhouse}" if kind == CLICKHOUSE else "${prometheus}"}


def _panels(board: Board) -> Iterator[Json]:
    """Yield the rows and panels with their ids and places."""
    number, top = 0, 0
    for title, panels in board.rows.items():
        number += 1
        place = {"h": 1, "w": _WIDTH, "x": 0, "y": top}
        yield {"type": "row", "id": number, "title": title, "collapsed": False, "gridPos": place, "panels": []}
        top += 1
        for line in _lines(panels):
            left = 0
            for panel in line:
                number += 1
                place = {"h": panel.height, "w": panel.width, "x": left, "y": top}
                yield _panel(panel, number, place)
                left += panel.width
            top += max(panel.height for panel in line)


def _lines(panels: Iterable[Panel]) -> Iterator[list[Panel]]:
    """Yield the panels that stand beside each other."""
    line: list[Panel] = []
    for panel in panels:
        if sum(one.width for one in line) + panel.width > _WIDTH:
            yield line
            line = []
        line.append(panel)
    if line:
        yield line


def _panel(panel: Panel, number: int, place: dict[str, int]) -> Json:
    """Return one panel."""
    kinds = {_kind(query) for query in panel.queries}
    if len(kinds) != 1:
        raise ValueError(f"panel {panel.title!r}: its queries are of {len(kinds)} data sources, not of one")
    [kind] = kinds
    return {
        "type": panel.kind,
        "id": number,
        "title": panel.title,
        "description": panel.text,
        "transparent": False,
        "datasource": _datasource(kind),
        "gridPos": place,
        "targets": [_target(query, chr(ord("A") + at), panel.kind) for at, query in enumerate(panel.queries)],
        "options": _OPTIONS[panel.kind],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": list(_overrides(panel))},
    }


def _kind(query: Query) -> str:
    """Return the type of a query's data source."""
    return CLICKHOUSE if isinstance(query, Sql) else PROMETHEUS


def _target(query: Query, name: str, panel_kind: str) -> Json:
    """Return one query of a panel, as the data source's plugin reads it."""
    base: Json = {"refId": name, "datasource": _datasource(_kind(query))}
    if isinstance(query, Sql):
        form = {"queryType": "timeseries", "format": 0} if query.is_series else {"queryType": "table", "format": 1}
        return base | form | {"editorType": "sql", "rawSql": query.text}
    is_instant = panel_kind != "timeseries"
    form = {"instant": is_instant, "range": not is_instant, "editorMode": "code", "format": "time_series"}
    return base | form | {"expr": query.text, "legendFormat": query.legend or "__auto"}


def _defaults(panel: Panel) -> Json:
    """Return the settings of all fields of a panel."""
    steps: list[Json] = [{"value": None, "color": "red" if panel.red_below is not None else "green"}]
    if panel.red_below is not None:
        steps.append({"value": panel.red_below, "color": "green"})
    if panel.red_above is not None:
        steps.append({"value": panel.red_above, "color": "red"})
    found: Json = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.none_word:
        found["noValue"] = panel.none_word
    if panel.kind == "timeseries":
        found |= {"custom": {"lineWidth": 1, "fillOpacity": 10, "showPoints": "auto"}}
    else:
        found |= {"color": {"mode": "thresholds"}}
    return found


def _overrides(panel: Panel) -> Iterator[Json]:
    """Yield the rules that give single columns their unit, or their link."""
    for column, unit in panel.units.items():
        yield _override(column, "unit", unit)
    if panel.leads_to_job:
        yield _override("job", "links", [{"title": "This job", "url": _JOB_URL}])


def _override(column: str, name: str, value: object) -> Json:
    """Return the rule that gives one column a property."""
    return {"matcher": {"id": "byName", "options": column}, "properties": [{"id": name, "value": value}]}


def _reduced(**more: object) -> Json:
    """Return the options of a visualisation that shows the newest value of each field."""
    return {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "orientation": "auto", **more}


def _legend(place: str, names: Sequence[str] = ()) -> Json:
    """Return a legend's options."""
    return {"displayMode": "list", "placement": place, "showLegend": True, "calcs": list(names)}


_OPTIONS: Final[dict[str, Json]] = {
    "stat": _reduced(
        graphMode="none",
        colorMode="value",
        justifyMode="auto",
        textMode="auto",
        wideLayout=True,
        showPercentChange=False,
        percentChangeColorMode="standard",
    ),
    "bargauge": _reduced(
        displayMode="basic",
        valueMode="text",
        namePlacement="auto",
        showUnfilled=True,
        sizing="auto",
        minVizWidth=8,
        minVizHeight=16,
        maxVizHeight=300,
        legend={"displayMode": "list", "placement": "bottom", "showLegend": False, "calcs": []},
    ),
    "table": {
        "frameIndex": 0,
        "showHeader": True,
        "cellHeight": "sm",
        "footer": {"show": False, "reducer": ["sum"], "countRows": False},
    },
    "timeseries": {"legend": _legend("bottom"), "tooltip": {"mode": "multi", "sort": "desc"}},
}
"""Type of a visualisation -> its options."""
