"""SVG plots of one metric for all machines: peers grey, faulty and accused ones in colour, onsets and verdicts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tocsin.pipeline.lab.backtest.curves import (
    DRAWN_COUNT,
    Curves,
    Points,
    Singles,
)
from tocsin.pipeline.lab.backtest.markup import since, text
from tocsin.schemas.records import NS_PER_SECOND

_WIDTH, _HEIGHT = 1920, 336
"""Size of a plot in half pixels, so that coordinates can be short integers."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 150, 1860, 78, 300
_STEPS_SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 86400, 604800)
_TICK_COUNT = 12
_MARK_COUNT, _LABEL_COUNT = 60, 9
"""Most verdicts that are drawn, and that are labelled; the first ones of a set that accuses everybody are enough."""
_COLOURS = ("#0b5cad", "#6a1b9a", "#00695c", "#8d6e00", "#37474f", "#ad1457", "#4e6a00", "#5d4037", "#283593")
_UNITS = (
    ("_packets_per_second", "/s"),
    ("_bytes_per_second", "B/s"),
    ("_seconds", "s"),
    ("_bytes", "B"),
    ("_hertz", "Hz"),
    ("_watts", "W"),
    ("_celsius", "°C"),
)
_WHOLE_UNITS = frozenset({"", "B", "B/s", "/s"})
"""Units of counted things, which get no prefix below 1."""
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"))

STYLE = """
.p{fill:none;stroke:#a9a9a9;stroke-width:1.6}.mid{fill:none;stroke:#6f6f6f;stroke-width:2.4}
.b5{fill:#e3e3e3}.b25{fill:#cdcdcd}
.culprit{fill:none;stroke:#d00000;stroke-width:4}.named{fill:none;stroke:#e08a00;stroke-width:4}
.gs{fill:#d00000;fill-opacity:.14}.gn{fill:#e08a00;fill-opacity:.16}
.fault{fill:#d00000;fill-opacity:.06}.onset{stroke:#d00000;stroke-width:3}.end{stroke:#d00000;stroke-width:2}
.end,.onset{stroke-dasharray:10 6}.v{stroke-width:3}.axis{fill:none;stroke:#888;stroke-width:2}
.grid{stroke:#eee;stroke-width:2}
"""


@dataclass(frozen=True, slots=True)
class PlotSpan:
    """A true fault on the time axis.

    Attributes:
        label: name of the fault.
        onset_ns: begin of the fault.
        end_ns: end of the fault.
    """

    label: str
    onset_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class PlotMark:
    """A verdict on the time axis.

    Attributes:
        label: detector set and accused machines.
        at_ns: time of the verdict.
        index: index of the detector set, which gives the colour.
    """

    label: str
    at_ns: int
    index: int

    @property
    def colour(self) -> str:
        """Colour of the detector set; colours repeat after nine sets."""
        return _COLOURS[self.index % len(_COLOURS)]


@dataclass(frozen=True, slots=True)
class Scene:
    """Data that all plots of a case share.

    Attributes:
        points: the time axis.
        culprits: machines at fault.
        named: machines accused by any set.
        spans: the true faults.
        marks: the verdicts.
    """

    points: Points
    culprits: frozenset[str]
    named: frozenset[str]
    spans: tuple[PlotSpan, ...]
    marks: tuple[PlotMark, ...]

    def x(self, ts_ns: int) -> int:
        """Return the horizontal coordinate of a time."""
        share = (ts_ns - self.points.start_ns) / (self.points.count * self.points.span_ns)
        return round(_LEFT + min(1.0, max(0.0, share)) * (_RIGHT - _LEFT))


def plot(curves: Curves, scene: Scene) -> str:
    """Return the SVG of one metric."""
    shown = [host for host in curves.hosts if host in scene.culprits | scene.named]
    low, high = _range(curves, shown)
    y = _Scale(low, high)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        f"<title>{text(curves.metric)}</title>",
        *_spans(scene),
        *_time_axis(scene),
        *(_label(value, y, curves.metric) for value in (low, high)),
        *_peers(curves, shown, scene, y),
        *itertools.chain.from_iterable(_highlighted(curves, host, scene, y) for host in shown),
        *_marks(scene),
        "</svg>",
    ]
    return "".join(parts)


class _Scale:
    """Mapping of values to vertical coordinates, with a margin at top and bottom."""

    def __init__(self, low: float, high: float) -> None:
        self._low, self._size = low, high - low

    def of(self, values: Singles | float) -> NDArray[np.float64]:
        """Return the vertical coordinates of values."""
        share = (np.asarray(values, np.float64) - self._low) / self._size
        return np.asarray(_BOTTOM - 8 - np.clip(share, 0.0, 1.0) * (_BOTTOM - _TOP - 16), np.float64)


def _range(curves: Curves, shown: Sequence[str]) -> tuple[float, float]:
    """Return the lowest and highest value of a plot.

    They are those of all machines. With many machines, they are those of the central 98 % and of machines in colour.
    """
    values = curves.values[np.isfinite(curves.values)].astype(np.float64)
    low, high = float(values.min()), float(values.max())
    if len(curves.hosts) > DRAWN_COUNT:
        low, high = (float(one) for one in np.quantile(values, (0.01, 0.99)))
        rows = [curves.hosts.index(host) for host in shown]
        own = curves.values[rows][np.isfinite(curves.values[rows])]
        low, high = float(min([low, *own])), float(max([high, *own]))
    for spread in curves.spread.values():
        known = spread[np.isfinite(spread)]
        low, high = float(min([low, *known])), float(max([high, *known]))
    if high - low < 1e-9 * max(abs(high), 1e-9):
        margin = 0.5 * abs(high)
        low, high = (low - margin, high + margin) if margin else (0.0, 1.0)  # a counter that is zero goes upwards only
    return low, high


def _peers(curves: Curves, shown: Sequence[str], scene: Scene, y: _Scale) -> Iterator[str]:
    """Yield the grey lines of the peers; with many, bands and the median."""
    if len(curves.hosts) <= DRAWN_COUNT:
        for row, host in enumerate(curves.hosts):
            if host not in shown:
                path = _path(curves.values[row], scene, y)
                yield f'<path class="p" d="{path}"><title>{text(host)}</title></path>'
        return
    known = np.isfinite(curves.values).any(axis=0)
    found = np.full((5, curves.values.shape[1]), np.nan, np.float32)
    found[:, known] = np.nanquantile(curves.values[:, known], (0.05, 0.25, 0.5, 0.75, 0.95), axis=0)
    for kind, rows, label in (("b5", (0, 4), "90 in a hundred machines"), ("b25", (1, 3), "the middle half")):
        path = _band(found[rows[0]], found[rows[1]], scene, y)
        yield f'<path class="{kind}" d="{path}"><title>{label} of {len(curves.hosts)}</title></path>'
    yield f'<path class="mid" d="{_path(found[2], scene, y)}"><title>median of {len(curves.hosts)}</title></path>'


def _highlighted(curves: Curves, host: str, scene: Scene, y: _Scale) -> Iterator[str]:
    """Yield the coloured line and GPU spread of a faulty or accused machine."""
    at_fault = host in scene.culprits
    if host in curves.spread:
        low, high = curves.spread[host]
        label = f"{host}: lowest to highest GPU"
        yield f'<path class="{"gs" if at_fault else "gn"}" d="{_band(low, high, scene, y)}">'
        yield f"<title>{text(label)}</title></path>"
    kind = " ".join(name for name, is_so in (("culprit", at_fault), ("suspect", host in scene.named)) if is_so)
    kind = kind if at_fault else f"named {kind}"
    path = _path(curves.values[curves.hosts.index(host)], scene, y)
    yield f'<path class="{kind}" data-host="{text(host)}" d="{path}"><title>{text(host)}</title></path>'


def _xs(scene: Scene) -> NDArray[np.int64]:
    """Return the horizontal coordinate of the middle of each point's span."""
    middles = (np.arange(scene.points.count) + 0.5) / scene.points.count
    places: NDArray[np.int64] = np.rint(_LEFT + middles * (_RIGHT - _LEFT)).astype(np.int64)
    return places


def _runs(known: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of each stretch of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], known.astype(np.int8), [0]])))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def _path(values: Singles, scene: Scene, y: _Scale) -> str:
    """Return the SVG path of a line, interrupted where samples are missing."""
    known = np.isfinite(values)
    xs, ys = _xs(scene), np.rint(y.of(np.where(known, values, 0.0))).astype(np.int64)
    return "".join(_line("M", xs[begin:end], ys[begin:end]) for begin, end in _runs(known))


def _band(low: Singles, high: Singles, scene: Scene, y: _Scale) -> str:
    """Return the SVG path of the area between two lines."""
    known = np.isfinite(low)
    xs = _xs(scene)
    bottom, top = (np.rint(y.of(np.where(known, one, 0.0))).astype(np.int64) for one in (low, high))
    return "".join(
        _line("M", xs[begin:end], bottom[begin:end]) + _line("L", xs[begin:end][::-1], top[begin:end][::-1]) + "z"
        for begin, end in _runs(known)
    )


def _line(command: str, xs: NDArray[np.int64], ys: NDArray[np.int64]) -> str:
    """Return an SVG path in relative steps, five characters a point; a single point becomes a dash."""
    steps = zip(np.diff(xs).tolist(), np.diff(ys).tolist(), strict=True)
    return f"{command}{xs[0]} {ys[0]}l" + ("".join(f"{dx:+d}{dy:+d}" for dx, dy in steps) or "+2+0")


def _spans(scene: Scene) -> Iterator[str]:
    """Yield the areas and lines of the true faults."""
    for span in scene.spans:
        left, right = scene.x(span.onset_ns), scene.x(span.end_ns)
        yield f'<rect class="fault" x="{left}" y="{_TOP}" width="{max(0, right - left)}" height="{_BOTTOM - _TOP}"/>'
        for kind, at in (("onset", left), ("end", right)):
            label = text(f"{kind}: {span.label}")
            yield f'<path class="{kind}" d="M{at} {_TOP}V{_BOTTOM}"><title>{label}</title></path>'
        yield f'<text x="{left - 6}" y="{_BOTTOM - 8}" text-anchor="end" fill="#d00000">onset</text>'


def _marks(scene: Scene) -> Iterator[str]:
    """Yield the lines of verdicts.

    Neighbouring labels get rows of their own, and only the first verdicts are labelled.
    """
    for number, mark in enumerate(scene.marks[:_MARK_COUNT]):
        at, row = scene.x(mark.at_ns), 22 + 24 * (number % 3)
        side = f'x="{at + 6}"' if at < _RIGHT - 400 else f'x="{at - 6}" text-anchor="end"'
        label = text(mark.label)
        yield f'<path class="v" stroke="{mark.colour}" d="M{at} {_TOP}V{_BOTTOM}"><title>{label}</title></path>'
        if number < _LABEL_COUNT:
            yield f'<text {side} y="{row}" fill="{mark.colour}">{label}</text>'


def _time_axis(scene: Scene) -> Iterator[str]:
    """Yield the axes and the ticks of the time axis."""
    seconds = scene.points.count * scene.points.span_ns / NS_PER_SECOND
    fitting = (step for step in _STEPS_SECONDS if seconds / step <= _TICK_COUNT)
    step = next(fitting, math.ceil(seconds / _TICK_COUNT / 86400) * 86400)
    for number in range(int(seconds // step) + 1):
        at = scene.x(scene.points.start_ns + number * step * NS_PER_SECOND)
        yield f'<path class="grid" d="M{at} {_TOP}V{_BOTTOM}"/>'
        yield f'<text x="{at}" y="{_BOTTOM + 30}" text-anchor="middle" fill="#444">{since(number * step)}</text>'
    yield f'<path class="axis" d="M{_LEFT} {_TOP}V{_BOTTOM}H{_RIGHT}"/>'


def _label(value: float, y: _Scale, metric: str) -> str:
    """Return the label of a value on the vertical axis."""
    at = round(float(y.of(value))) + 8
    return f'<text x="{_LEFT - 10}" y="{at}" text-anchor="end" fill="#444">{text(with_unit(value, metric))}</text>'


def with_unit(value: float, metric: str) -> str:
    """Return a value of a metric as text with its unit: 1.41 GHz, 34.6 °C, 0.87."""
    unit = next((unit for suffix, unit in _UNITS if metric.endswith(suffix)), "")
    if metric.endswith(("_ratio", "_celsius")) or value == 0:
        return f"{value:.3g} {unit}".rstrip()
    least = 1.0 if unit in _WHOLE_UNITS else 0.0
    size, prefix = next((one for one in _PREFIXES if abs(value) >= one[0] or one[0] <= least), _PREFIXES[-1])
    return f"{value / size:.3g} {prefix}{unit}".rstrip()
