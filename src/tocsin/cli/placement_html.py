"""What ``tocsin placement`` found, as one self-contained page: groups as lines, hosts coloured by minipod."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tocsin.cli.placement_text import JudgedPlacement, sentence_of, text_of
from tocsin.models.placement.groups import HostGroups, IntArray
from tocsin.pipeline.lab.backtest.markup import page, text
from tocsin.schemas.kinds import GroupKind
from tocsin.schemas.printable import plain

MOST_LINES: Final = 1_024
"""Most groups of a picture; of more, those that touch most minipods are shown."""
MOST_COLUMNS: Final = 512
"""Most hosts of a group in a picture."""
_LEFT, _TOP, _WIDTH = 150, 22, 860
STYLE = "svg{max-width:66rem;font:11px system-ui,sans-serif}pre{overflow-x:auto}.sentence{font-size:1.1rem}"


def html_of(found: JudgedPlacement) -> str:
    """Return the page: the sentence, a picture of the job as it is and as advised, and the tables."""
    job, best = found.job, found.advice.best
    pods = np.concatenate([job.pod, job.spare_pod])
    names = (*job.hosts, *job.spares)
    kind = GroupKind.PP if GroupKind.PP in job.groups else next(iter(job.groups))
    title = f"Placement of {job.name}"
    legend = (
        f"Lines are {kind} groups, cells their hosts in the order of stages; a colour is a {job.level}. "
        "A line of one colour does not leave it."
    )
    body = [
        f"<h1>{text(plain(title))}</h1>",
        f'<p class="sentence">{text(sentence_of(found))}</p>',
        f'<p class="quiet">{text(legend)}</p>',
        "<h2>Now</h2>",
        _picture(found, job.groups[kind], np.arange(len(job.hosts)), (names, pods)),
    ]
    if best is not None:
        body += ["<h2>Re-placed</h2>", _picture(found, job.groups[kind], best.new_host, (names, pods))]
    body += ["<h2>Figures</h2>", f"<pre>{text(text_of(found))}</pre>"]
    return page(plain(title), body, STYLE)


def _picture(
    found: JudgedPlacement, groups: HostGroups, new_host: IntArray, hosts: tuple[tuple[str, ...], IntArray]
) -> str:
    """Return the groups as SVG.

    Args:
        found: the findings.
        groups: the groups that are lines.
        new_host: index of the host that takes each host's place.
        hosts: names of hosts and spares, and the index of each one's minipod.
    """
    names, pods = hosts
    lines = [new_host[groups.hosts_of(at)][:MOST_COLUMNS] for at in range(len(groups.names))]
    touched = np.array([np.unique(pods[line]).size for line in lines])
    shown = np.sort(np.argsort(-touched, kind="stable")[:MOST_LINES]).tolist()
    height = max(4.0, min(18.0, 720.0 / len(shown)))
    width = _WIDTH / max(len(lines[at]) for at in shown)
    total = _TOP + height * len(shown) + 8
    every = max(1, -(-12 // int(height)))
    drawn = [
        f'<text x="{_LEFT - 6}" y="{_TOP + (row + 0.5) * height + 4:.1f}" text-anchor="end">'
        f"{text(plain(groups.names[at])[:26])}</text>"
        for row, at in enumerate(shown)
        if row % every == 0
    ]
    count = len(found.job.pods)
    for row, at in enumerate(shown):
        top = _TOP + row * height
        for column, host in enumerate(lines[at].tolist()):
            said = f"{names[host]}: {found.job.pods[pods[host]]}"
            drawn.append(
                f'<rect x="{_LEFT + column * width:.2f}" y="{top:.2f}" width="{width:.2f}" height="{height:.2f}" '
                f'fill="{_colour(int(pods[host]), count)}" stroke="#fff" stroke-width="0.4">'
                f"<title>{text(plain(said))}</title></rect>"
            )
    return f'<svg viewBox="0 0 {_LEFT + _WIDTH + 5} {total:.0f}">{"".join(_key(found))}{"".join(drawn)}</svg>'


def _key(found: JudgedPlacement) -> Iterator[str]:
    """Yield the names of the first minipods in their colours."""
    for at, pod in enumerate(found.job.pods[:8]):
        left = _LEFT + at * 105
        colour = _colour(at, len(found.job.pods))
        yield f'<rect x="{left}" y="4" width="10" height="10" fill="{colour}"/>'
        yield f'<text x="{left + 14}" y="13">{text(plain(pod)[:14])}</text>'


def _colour(pod: int, count: int) -> str:
    """Return the colour of a minipod: hues at equal distances, neighbours of different lightness."""
    return f"hsl({360 * pod / max(count, 1):.0f},60%,{(45, 62, 75)[pod % 3]}%)"
