"""Write metrics in Prometheus' text format 0.0.4. Pure; agent and engine both use it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Sample:
    """One line.

    Attributes:
        labels: label -> value.
        value: the number, in the base unit that the family's name ends in.
        suffix: appended to the family's name (``_sum``, ``_count``), "" = none.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    value: float = 0.0
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric name with its samples."""

    name: str
    kind: Literal["counter", "gauge", "summary", "histogram", "untyped"]
    text: str
    samples: tuple[Sample, ...]


def render(families: Iterable[Family]) -> str:
    """The page: ``# HELP`` and ``# TYPE`` once a name, ends with a newline."""
    lines: list[str] = []
    for family in families:
        lines.append(f"# HELP {family.name} {_escape(family.text)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        lines.extend(_line(family.name + sample.suffix, sample) for sample in family.samples)
    return "\n".join(lines) + "\n"


def _line(name: str, sample: Sample) -> str:
    labels = ",".join(f'{key}="{_escape(value, quote=True)}"' for key, value in sorted(sample.labels.items()))
    return f"{name}{{{labels}}} {number(sample.value)}" if labels else f"{name} {number(sample.value)}"


def number(value: float) -> str:
    """A number as the format wants it: integers bare, ``+Inf``, ``-Inf``, ``NaN``."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


def _escape(text: str, *, quote: bool = False) -> str:
    escaped = text.replace("\\", r"\\").replace("\n", r"\n")
    return escaped.replace('"', r"\"") if quote else escaped
