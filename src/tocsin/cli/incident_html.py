"""One incident as one self-contained HTML file for a ticket: all text escaped, nothing loaded from anywhere."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import groupby
from typing import Final

from tocsin.cli.incident_page import IncidentPage
from tocsin.cli.incident_source import Row
from tocsin.cli.incident_text import moment_text, time_of
from tocsin.pipeline.lab.backtest.markup import page as html_page
from tocsin.pipeline.lab.backtest.markup import text
from tocsin.schemas.printable import plain

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 960, 220, 110, 945, 16, 186
MAX_PLOTS_COUNT: Final = 12
"""Most plots of one page."""
STYLE = """
th{white-space:nowrap;padding-right:1.2rem}td{overflow-wrap:anywhere}svg{max-width:60rem;font:12px system-ui,sans-serif}
.band{fill:#dde4ea}.peers{fill:none;stroke:#6f7b86;stroke-width:1.5}.suspect{fill:none;stroke:#c40000;stroke-width:2}
.onset{stroke:#c40000;stroke-dasharray:5 4}.axis{fill:none;stroke:#888}
"""


def html_of(page: IncidentPage) -> str:
    """Return the page as HTML, with a plot of each metric of which the database has a series."""
    rows = [
        f"<tr><th>{_text(section.name)}</th><td>{'<br/>'.join(map(_text, section.lines))}</td></tr>"
        for section in page.sections
    ]
    body = [f"<h1>{_text(page.title)}</h1>", f"<table><tbody>{''.join(rows)}</tbody></table>"]
    plots = list(_plots(page.points, page.onset))
    if plots:
        body.append(
            '<p class="quiet">red: the suspect; grey: the median of its peers, and 90 in a hundred of them;'
            " dashed: when the fault began. Times are UTC.</p>"
        )
    return html_page(plain(page.title), [*body, *plots], STYLE)


def _text(value: object) -> str:
    """Return a value as escaped text without control and invisible characters."""
    return text(plain(value))


def _plots(points: Sequence[Row], onset: datetime) -> Iterator[str]:
    """Yield heading and SVG of each metric and suspect."""
    grouped = groupby(points, key=lambda row: (str(row["metric"]), str(row["component"])))
    for _, ((metric, component), rows) in zip(range(MAX_PLOTS_COUNT), grouped, strict=False):
        drawn = _plot(sorted(rows, key=lambda row: str(row["ts"])), onset)
        if drawn:
            yield f"<h2>{_text(metric)}: {_text(component)}</h2>{drawn}"


def _plot(rows: Sequence[Row], onset: datetime) -> str:
    """Return the SVG of one suspect's series against its peers; "" where nothing is to be drawn."""
    times = [time_of(row["ts"]).timestamp() for row in rows]
    columns = {name: [_number(row[name]) for row in rows] for name in _COLUMNS}
    known = [value for column in columns.values() for value in column if math.isfinite(value)]
    if not known:
        return ""
    low, high = min(known), max(known)
    margin = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    low, high = low - margin, high + margin
    first, last = times[0], max(times[-1], times[0] + 1.0)

    def x(at: float) -> float:
        return round(_LEFT + (at - first) / (last - first) * (_RIGHT - _LEFT), 1)

    def y(value: float) -> float:
        return round(_BOTTOM - (value - low) / (high - low) * (_BOTTOM - _TOP), 1)

    def line(name: str) -> list[str]:
        found = zip(times, columns[name], strict=True)
        return [f"{x(at)},{y(value)}" for at, value in found if math.isfinite(value)]

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" xmlns="http://www.w3.org/2000/svg">']
    band = [*line("peer_p05"), *reversed(line("peer_p95"))]
    parts.append(f'<polygon class="band" points="{" ".join(band)}"/>')
    parts.append(f'<polyline class="peers" points="{" ".join(line("peer_median"))}"/>')
    parts.append(f'<polyline class="suspect" points="{" ".join(line("suspect_value"))}"/>')
    begun = onset.timestamp()
    if first <= begun <= last:
        parts.append(f'<path class="onset" d="M{x(begun)} {_TOP}V{_BOTTOM}"/>')
    parts.append(f'<path class="axis" d="M{_LEFT} {_TOP}V{_BOTTOM}H{_RIGHT}"/>')
    labels = [(_LEFT - 6, _TOP + 8, "end", f"{high:.4g}"), (_LEFT - 6, _BOTTOM, "end", f"{low:.4g}")]
    labels += [(_LEFT, _HEIGHT - 8, "start", moment_text(time_of(rows[0]["ts"])))]
    labels += [(_RIGHT, _HEIGHT - 8, "end", moment_text(time_of(rows[-1]["ts"])))]
    parts += [f'<text x="{at}" y="{up}" text-anchor="{side}">{_text(label)}</text>' for at, up, side, label in labels]
    return "".join([*parts, "</svg>"])


_COLUMNS: Final = ("suspect_value", "peer_median", "peer_p05", "peer_p95")


def _number(value: object) -> float:
    """Return a value of a series; NaN where there is no sample (JSON has no NaN)."""
    return float(value) if isinstance(value, int | float) else math.nan
