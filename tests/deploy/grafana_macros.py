"""What the ClickHouse plugin and Grafana put in the place of macros and variables, before a query goes out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.tools.grafana.board import Sql
from tests.tools.grafana.boards import BOARDS

Values = tuple[str, ...]
"""Chosen values of a variable; () while "All" is chosen."""
_CALL = re.compile(r"\$__(\w+)")
_VARIABLE = re.compile(r"\$\{(\w+)(?::(\w+))?\}|\$(\w+)")


@dataclass(frozen=True)
class Page:
    """A dashboard as a person has set it.

    Attributes:
        from_seconds: begin of the time range, Unix time.
        to_seconds: its end.
        variables: the chosen values.
    """

    from_seconds: int
    to_seconds: int
    variables: Mapping[str, Values] = field(default_factory=dict)

    def sql(self, text: str) -> str:
        """Return SQL as it reaches ClickHouse; a macro or variable that nobody knows raises KeyError."""
        while found := _last_macro(text):
            name, begin, end, arguments = found
            text = text[:begin] + self._macro(name, arguments) + text[end:]
        return _VARIABLE.sub(self._quoted, text)

    def promql(self, text: str) -> str:
        """Return PromQL as it reaches Prometheus."""
        text = text.replace("$__rate_interval", "1m")
        assert "$__" not in text, text
        return _VARIABLE.sub(lambda found: self._pattern(found[1] or found[3]), text)

    def _macro(self, name: str, arguments: list[str]) -> str:
        begin, end = f"toDateTime({self.from_seconds})", f"toDateTime({self.to_seconds})"
        if name == "conditionalAll":
            condition, variable = arguments
            return condition if self.variables[variable.strip(" ${}")] else "1=1"
        days = [f"toDate(toDateTime({at}), 'UTC')" for at in (self.from_seconds, self.to_seconds)]
        macros: dict[str, Callable[[], str]] = {
            "fromTime": lambda: begin,
            "toTime": lambda: end,
            "timeFilter": lambda: f"{arguments[0]} >= {begin} AND {arguments[0]} <= {end}",
            "dateFilter": lambda: f"{arguments[0]} >= {days[0]} AND {arguments[0]} <= {days[1]}",
        }
        return macros[name]()

    def _quoted(self, found: re.Match[str]) -> str:
        assert found[2] == "singlequote", f"{found[0]}: a value in SQL must be quoted"
        return ",".join("'" + one.replace("'", "\\'") + "'" for one in self.variables[found[1]])

    def _pattern(self, name: str) -> str:
        values = self.variables[name]
        return "|".join(map(re.escape, values)) if values else ".*"


def _last_macro(text: str) -> tuple[str, int, int, list[str]] | None:
    """Return name, begin, end and arguments of the last macro in a text."""
    found = list(_CALL.finditer(text))
    if not found:
        return None
    last = found[-1]
    if text[last.end() : last.end() + 1] != "(":
        return last[1], last.start(), last.end(), []
    depth, begin, arguments = 0, last.end() + 1, []
    for at in range(last.end(), len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if (text[at] == "," and depth == 1) or depth == 0:
            arguments.append(text[begin:at])
            begin = at + 1
        if depth == 0:
            return last[1], last.start(), at + 1, arguments
    raise ValueError(f"$__{last[1]} has no end")


def dashboard_queries() -> list[str]:
    """Return every SQL query of the dashboards and their variables, as it reaches ClickHouse, each once."""
    found: list[str] = []
    for board in BOARDS:
        page = Page(0, 60, {one.name: ("a", "b") if one.many else ("a",) for one in board.variables})
        queries = [query for panel in board.panels for query in panel.queries if isinstance(query, Sql)]
        found += [page.sql(text) for text in (*(one.text for one in queries), *(one.query for one in board.variables))]
    return list(dict.fromkeys(found))
