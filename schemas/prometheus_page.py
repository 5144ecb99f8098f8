"""Read a page in Prometheus' text format 0.0.4. Pure; a line that is none is counted, the others count."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

MAX_LINE_CHARACTERS: Final = 16_384
_LINE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?:\{(.*)\})?\s*(\S+)(?:\s+-?\d+)?\s*$")
_LABEL: Final = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_ESCAPE: Final = re.compile(r"\\(.)")
_DCGM_INT64: Final = 9.223372036854775e18
_DCGM_FP64: Final = frozenset(140_737_488_355_328.0 + offset for offset in range(4))
_DCGM_INT32: Final = range(0x7FFFFFF0, 0x7FFFFFF4)


@dataclass(frozen=True, slots=True)
class PageSample:
    """One line.

    Attributes:
        name: the metric's name.
        labels: label -> value.
        value: any float, NaN and infinities included.
    """

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Page:
    """What a page says.

    Attributes:
        samples: the lines that were wanted, in order.
        malformed: of the wanted lines those that are none: (line number, its beginning).
    """

    samples: tuple[PageSample, ...]
    malformed: tuple[tuple[int, str], ...]


def parse_page(text: str, wanted: Collection[str] | None = None) -> Page:
    r"""Read a page; only the metrics of these names where they are given (pages hold thousands of others).

    >>> parse_page('# HELP a b\na{x="1\\"2"} 3 1700000000000\nb NaN\n', {"a"}).samples
    (PageSample(name='a', labels={'x': '1"2'}, value=3.0),)
    >>> parse_page("a 1\na{x} 2\n").malformed
    ((2, 'a{x} 2'),)
    """
    prefixes = None if wanted is None else tuple(wanted)
    samples: list[PageSample] = []
    malformed: list[tuple[int, str]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line or line[0] == "#" or (prefixes is not None and not line.startswith(prefixes)):
            continue
        name = _NAME.match(line)
        if name is None:
            if line.strip() and wanted is None:
                malformed.append((number, line[:80]))
            continue
        if wanted is not None and name[0] not in wanted:
            continue
        sample = _sample(line)
        if sample is None:
            malformed.append((number, line[:80]))
        else:
            samples.append(sample)
    return Page(tuple(samples), tuple(malformed))


def is_blank(sample: PageSample) -> bool:
    """Return whether a value stands for "none": NaN, an infinity, or one of DCGM's blanks.

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


def _sample(line: str) -> PageSample | None:
    if len(line) > MAX_LINE_CHARACTERS:
        return None
    found = _LINE.match(line)
    if found is None or "_" in found[3]:
        return None
    labels = _labels(found[2]) if found[2] is not None else {}
    try:
        value = float(found[3])
    except ValueError:
        return None
    return None if labels is None else PageSample(found[1], labels, value)


def _labels(text: str) -> dict[str, str] | None:
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
    return "\n" if found[1] == "n" else found[1]
