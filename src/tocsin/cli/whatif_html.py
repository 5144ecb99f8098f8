"""What a what-if simulation found, as one self-contained page with heat maps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

import numpy as np

from tocsin.cli.whatif_text import WhatIf, sentence_of, text_of, worker_steps
from tocsin.models.whatif.trace import FloatArray
from tocsin.pipeline.lab.backtest.markup import page, text
from tocsin.schemas.printable import plain

_LEVELS: Final = 20
_LEFT, _TOP, _WIDTH = 110, 22, 900
MOST_LINES: Final = 1_024
"""Most lines of a heat map; of more workers, the slowest are shown."""
_LEGEND: Final = (
    "Slowdown of the step if only this worker were as slow as it is: white is 1.00, red the largest. "
    "Lines are workers, stage by stage; columns are steps in their order."
)
STYLE = """
svg{max-width:66rem;font:11px system-ui,sans-serif}pre{overflow-x:auto}.sentence{font-size:1.1rem}
"""


def html_of(what: WhatIf) -> str:
    """Return the page: the sentence, a heat map of workers x steps, one of stages x ranks, the tables."""
    arrays, found = what.model.arrays, what.found
    values = worker_steps(found)
    names = [
        f"rank {arrays.ranks[dp, stage]} (dp {arrays.dp_ranks[dp]}, stage {stage})"
        for stage in range(arrays.stage_count)
        for dp in range(arrays.dp_ranks.size)
    ]
    lines = values.transpose(1, 0, 2).reshape(-1, values.shape[2])
    shown = np.sort(np.argsort(-lines.mean(axis=1), kind="stable")[:MOST_LINES])
    title = f"Why is {what.shape.name or 'the job'} slow?"
    ranks = [f"dp {rank}" for rank in arrays.dp_ranks.tolist()]
    stages = [f"stage {stage}" for stage in range(arrays.stage_count)]
    body = [
        f"<h1>{text(plain(title))}</h1>",
        f'<p class="sentence">{text(sentence_of(what))}</p>',
        "<h2>Workers x steps</h2>",
        f'<p class="quiet">{_LEGEND}</p>',
        _heat_map(lines[shown], [names[at] for at in shown], [f"step {step}" for step in arrays.steps.tolist()]),
        "<h2>Stages x data-parallel ranks</h2>",
        _heat_map(found.worker_ratios.T, stages, ranks),
        "<h2>Figures</h2>",
        f"<pre>{text(text_of(what))}</pre>",
    ]
    return page(plain(title), body, STYLE)


def _heat_map(values: FloatArray, names: Sequence[str], columns: Sequence[str]) -> str:
    """Return a heat map as SVG; neighbours of one colour are drawn as one.

    Args:
        values: shape (lines, columns).
        names: of the lines.
        columns: names of the columns.
    """
    height = max(4.0, min(18.0, 720.0 / len(names)))
    width = _WIDTH / len(columns)
    low, high = 1.0, max(float(values.max()), 1.02)
    total = _TOP + height * len(names) + 24
    lines = "".join(_line(values[at], (low, high), _TOP + at * height, (width, height)) for at in range(len(names)))
    labels = "".join(_labels(names, height))
    ends = (
        f'<text x="{_LEFT}" y="14">{text(columns[0])}</text>'
        f'<text x="{_LEFT + _WIDTH}" y="14" text-anchor="end">{text(columns[-1])}</text>'
        f'<text x="{_LEFT}" y="{total - 6:.0f}">white {low:.2f}, red {high:.2f}</text>'
    )
    return f'<svg viewBox="0 0 {_LEFT + _WIDTH + 5} {total:.0f}">{ends}{labels}{lines}</svg>'


def _labels(names: Sequence[str], height: float) -> Iterator[str]:
    """Yield the labels of the lines that have room for one."""
    every = max(1, -(-12 // int(height)))
    for at in range(0, len(names), every):
        label = text(names[at].partition(" (")[0])
        yield f'<text x="{_LEFT - 6}" y="{_TOP + (at + 0.5) * height + 4:.1f}" text-anchor="end">{label}</text>'


def _line(values: FloatArray, bounds: tuple[float, float], top: float, size: tuple[float, float]) -> str:
    """Return the rectangles of one line."""
    low, high = bounds
    levels = np.clip(np.rint((values - low) / (high - low) * _LEVELS), 0, _LEVELS).astype(int).tolist()
    drawn, at = [], 0
    for level, group in groupby(levels):
        count = len(list(group))
        first, last = values[at], values[at + count - 1]
        said = f"{first:.3f}" if count == 1 else f"{first:.3f} … {last:.3f}"
        fade = round(245 - 215 * level / _LEVELS)
        drawn.append(
            f'<rect x="{_LEFT + at * size[0]:.2f}" y="{top:.2f}" width="{count * size[0]:.2f}" height="{size[1]:.2f}" '
            f'fill="rgb({245 if level < _LEVELS else 190},{fade},{fade})"><title>{said}</title></rect>'
        )
        at += count
    return "".join(drawn)
