"""Pure parser of Prometheus' text format 0.0.4; malformed lines are collected and the others parsed."""

from __future__ import annotations

import math
import re
import string
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

MAX_LINE_CHARACTERS: Final = 16_384
_SERIES: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?:\{(.*)\})?")
_LABEL: Final = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_NAME_CHARACTERS: Final = string.ascii_letters + string.digits + "_:"
MAX_SERIES: Final = 20_000
_ESCAPE: Final = re.compile(r"\\(.)")
_DCGM_INT64: Final = 9.223372036854775e18
_DCGM_FP64: Final = frozenset(140_737_488_355_328.0 + offset for offset in range(4))
_DCGM_INT32: Final = range(0x7FFFFFF0, 0x7FFFFFF4)


class PageSample(NamedTuple):
    """One sample line of a page, a tuple because thousands are made a scrape.

    Attributes:
        name: metric name.
        labels: label -> value.
        value: any float, NaN and infinities included.
        series: name and labels as the page writes them.
    """

    name: str
    labels: Mapping[str, str]
    value: float
    series: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """The result of parsing a page.

    Attributes:
        samples: the wanted samples, in order.
        malformed: wanted lines that could not be parsed: (line number, beginning of the line).
    """

    samples: tuple[PageSample, ...]
    malformed: tuple[tuple[int, str], ...]


class PageParser:
    """Parser for the pages of one exporter; it caches parsed labels, because each scrape shows the same series."""

    def __init__(self, wanted: Collection[str] | None = None) -> None:
        """Create a parser for the metrics of these names; None: all metrics."""
        self._wanted = None if wanted is None else frozenset(wanted)
        self._prefixes = None if wanted is None else tuple(wanted)
        self._series: dict[str, PageSample | None] = {}

    def parse(self, text: str) -> Page:
        """Parse a page."""
        samples: list[PageSample] = []
        malformed: list[tuple[int, str]] = []
        prefixes = self._prefixes
        if len(self._series) > MAX_SERIES:  # an exporter whose labels never stay the same
            self._series.clear()
        unwanted = "#"
        for number, line in enumerate(text.split("\n"), 1):
            if not line or line[0] == "#" or line.startswith(unwanted):
                continue
            if prefixes is not None and not line.startswith(prefixes):
                unwanted = line[: line.find("{") + 1] or "#"  # a metric's lines stand together
                continue
            if prefixes is None and not line.strip():
                continue
            found = self._sample(line)
            if found is None:
                malformed.append((number, line[:80]))
            elif self._wanted is None or found.name in self._wanted:
                samples.append(found)
        return Page(tuple(samples), tuple(malformed))

    def _sample(self, line: str) -> PageSample | None:
        """Return the sample of a line, None if the line is malformed."""
        text, _, number = line.rpartition(" ")  # nearly every line: a series that is known, a blank, its value
        try:
            if text not in self._series:
                text, number = self._taken_apart(line)
            series = self._series[text]
            if series is None or "_" in number:
                return None
            return PageSample(series.name, series.labels, float(number), series.series)
        except ValueError:
            return None

    def _taken_apart(self, line: str) -> tuple[str, str]:
        """Return series text and value text of a line, and cache the series.

        Raises:
            ValueError: the line is no sample.
        """
        end = line.rfind("}") + 1
        if not end:  # no labels
            end = len(line) - len(line.lstrip(_NAME_CHARACTERS))
        value, *milliseconds = line[end:].split()
        if len(milliseconds) > 1 or len(line) > MAX_LINE_CHARACTERS:
            raise ValueError(line)
        for number in milliseconds:
            int(number)
        text = line[:end]
        if text not in self._series:
            self._series[text] = _series(text)
        return text, value


def parse_page(text: str, wanted: Collection[str] | None = None) -> Page:
    r"""Parse one page; ``wanted``: names of the metrics to keep, None for all.

    >>> parse_page('# HELP a b\na{x="1\\"2"} 3 1700000000000\nb NaN\n', {"a"}).samples[0].labels
    {'x': '1"2'}
    >>> parse_page("a 1\na{x} 2\n").malformed
    ((2, 'a{x} 2'),)
    """
    return PageParser(wanted).parse(text)


def is_blank(sample: PageSample) -> bool:
    """Return whether a sample's value means "no value": NaN, an infinity, or one of DCGM's blank values.

    >>> is_blank(PageSample("DCGM_FI_DEV_MEMORY_TEMP", {}, 9223372036854775794.0))
    True
    >>> is_blank(PageSample("node_time_seconds", {}, 2147483632.0))
    False
    """
    value = sample.value
    if not math.isfinite(value):
        return True
    if not sample.name.startswith("DCGM_"):
        return False
    return value >= _DCGM_INT64 or value in _DCGM_FP64 or value in _DCGM_INT32


def _series(text: str) -> PageSample | None:
    """Parse ``name{label="value",...}`` into a sample without a value; None if malformed."""
    found = _SERIES.fullmatch(text)
    if found is None:
        return None
    labels = _labels(found[2]) if found[2] is not None else {}
    return None if labels is None else PageSample(found[1], labels, math.nan, text)


def _labels(text: str) -> dict[str, str] | None:
    """Parse the text between the braces into label -> value; None if malformed."""
    labels: dict[str, str] = {}
    at = 0
    while at < len(text.rstrip()):
        found = _LABEL.match(text, at)
        if found is None:
            return None
        value = found[2]
        labels[found[1]] = _ESCAPE.sub(_unescape, value) if "\\" in value else value
        at = found.end()
    return labels


def _unescape(found: re.Match[str]) -> str:
    """Return the character of an escape sequence in a label value."""
    return "\n" if found[1] == "n" else found[1]
