"""Pure writer of Prometheus' text format 0.0.4, used by agent and engine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample line of a metric family.

    Attributes:
        labels: label -> value.
        value: the value, in the base unit that the family's name ends in.
        suffix: text appended to the family's name (``_sum``, ``_count``), "" for none.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    value: float = 0.0
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric name with its type, help text and samples."""

    name: str
    kind: Literal["counter", "gauge", "summary", "histogram", "untyped"]
    text: str
    samples: tuple[Sample, ...]


def render(families: Iterable[Family]) -> str:
    """Return the page of these families; ``# HELP`` and ``# TYPE`` once a name, newline at the end."""
    lines: list[str] = []
    for family in families:
        lines.append(f"# HELP {family.name} {_escape(family.text)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        lines.extend(_line(family.name + sample.suffix, sample) for sample in family.samples)
    return "\n".join(lines) + "\n"


def _line(name: str, sample: Sample) -> str:
    """Return one sample line, labels sorted."""
    labels = ",".join(f'{key}="{_escape(value, quote=True)}"' for key, value in sorted(sample.labels.items()))
    return f"{name}{{{labels}}} {number(sample.value)}" if labels else f"{name} {number(sample.value)}"


def number(value: float) -> str:
    """Return a value as the format writes it: whole numbers without a point, ``+Inf``, ``-Inf``, ``NaN``."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


def _escape(text: str, *, quote: bool = False) -> str:
    """Return text with backslashes and line breaks escaped, and quotes too where it goes between quotes."""
    escaped = text.replace("\\", r"\\").replace("\n", r"\n")
    return escaped.replace('"', r"\"") if quote else escaped
