"""Building blocks of self-contained HTML pages: well-formed XML, no scripts, nothing loaded from the network."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from tocsin.schemas.records import NS_PER_SECOND

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML documents must not contain; machine names come from other people's files."""

STYLE = """
body{font:14px/1.45 system-ui,sans-serif;margin:1.5rem auto;max-width:76rem;padding:0 1rem;color:#1c1c1c}
table{border-collapse:collapse;margin:.6rem 0 1.2rem}
th,td{text-align:left;padding:.2rem .7rem .2rem 0;border-bottom:1px solid #ddd;vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
h1{font-size:1.35rem;margin:0 0 .3rem}h2{font-size:1.05rem;margin:1.4rem 0 .2rem}
.hit{color:#0a6b2d}.false,.missed{color:#b00020;font-weight:600}.quiet{color:#666}
svg{display:block;width:100%;height:auto;font:22px system-ui,sans-serif}
"""


def text(value: object) -> str:
    """Return any value as escaped text for a page or an attribute."""
    return html.escape(_NOT_XML.sub("\ufffd", str(value)), quote=True)


def page(title: str, body: Iterable[str], style: str = "") -> str:
    """Return a whole HTML page; ``body``: markup of its parts, ``style``: CSS added to the common one."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en" xmlns="http://www.w3.org/1999/xhtml">',
            f'<head><meta charset="utf-8"/><meta http-equiv="Content-Security-Policy" content="{policy}"/>',
            f"<title>{text(title)}</title><style>{STYLE}{style}</style></head>",
            "<body>",
            *body,
            "</body></html>\n",
        ]
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = ()) -> str:
    """Return an HTML table; cells are markup, headings are plain text.

    Args:
        head: headings of the columns.
        rows: rows with one cell per column.
        numbers: indices of columns with numbers, which are aligned right.
    """
    right = frozenset(numbers)
    kinds = [' class="n"' if index in right else "" for index in range(len(head))]

    def line(tag: str, cells: Iterable[str]) -> str:
        tagged = (f"<{tag}{kind}>{cell}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))
        return f"<tr>{''.join(tagged)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return f"<table><thead>{line('th', map(text, head))}</thead><tbody>{body}</tbody></table>"


def marked(kind: str, value: object) -> str:
    """Return text in one of the styles ``hit``, ``false``, ``missed`` or ``quiet``."""
    return f'<span class="{kind}">{text(value)}</span>'


def since(seconds: float) -> str:
    """Return a duration as text, e.g. 4:05 or 1:02:03."""
    whole = round(abs(seconds))
    sign = "-" if seconds < 0 and whole else ""
    hours, rest = divmod(whole, 3600)
    return f"{sign}{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{sign}{rest // 60}:{rest % 60:02}"


def utc(ts_ns: int) -> str:
    """Return a time in Unix nanoseconds as text in UTC."""
    try:
        return f"{datetime.fromtimestamp(ts_ns // NS_PER_SECOND, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):  # a year that no calendar has: a recording may begin there
        return f"{ts_ns} ns"
