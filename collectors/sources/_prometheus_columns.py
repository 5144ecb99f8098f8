"""Conversion of a page's samples to the columns of the recording format."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from tocsin.schemas.formats.prometheus_mapping import GPU_COLUMNS, PrometheusMapping, Term
from tocsin.schemas.formats.prometheus_page import PageSample
from tocsin.schemas.metrics import GPU_METRICS, HOST_METRICS
from tocsin.schemas.records import NS_PER_SECOND

HOST: Final = ""
"""Key of the host itself, where GPUs have their UUID."""
MAX_SERIES: Final = 50_000
_LIMITS: Final = {metric.name: metric for metric in (*GPU_METRICS, *HOST_METRICS)}
_SLACK: Final = 0.02
"""Tolerance of ratios: the CPU modes are not read at one moment, so their rates may add up to a little above 1."""


class PrometheusColumns:
    """Applies a mapping to pages, and keeps the last value of each counter."""

    def __init__(self, mapping: PrometheusMapping, skipped: Counter[str]) -> None:
        """Create a converter; values out of range are counted in ``skipped``."""
        self._mapping = mapping
        self._skipped = skipped
        self._last: dict[str, tuple[float, int]] = {}
        self._rates: dict[str, float | None] = {}
        self._matches: dict[tuple[int, str], bool] = {}
        self._by_name: Mapping[str, Sequence[PageSample]] = {}
        self._now_ns = 0

    def read(
        self, by_name: Mapping[str, Sequence[PageSample]], now_ns: int
    ) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
        """Return the host's columns, and GPU uuid -> columns.

        Args:
            by_name: samples of a page by metric name.
            now_ns: time of the page.
        """
        self._by_name, self._now_ns, self._rates = by_name, now_ns, {}
        if len(self._last) + len(self._matches) > MAX_SERIES:  # an exporter whose labels never stay the same
            self._last.clear()
            self._matches.clear()
        host: dict[str, float] = {}
        gpus: dict[str, dict[str, float]] = defaultdict(dict)
        for column, terms in self._mapping.columns.items():
            for owner, value in self._column(column, terms).items():
                (gpus[owner] if owner != HOST else host)[column] = value
        return host, dict(gpus)

    def _column(self, column: str, terms: Sequence[Term]) -> dict[str, float]:
        """Return owner -> value of a column, for owners with a value in every term that is not optional."""
        found = [self._term(term, is_gpu=column in GPU_COLUMNS) for term in terms]
        result: dict[str, float] = {}
        for owner in {owner for values in found for owner in values}:
            if any(owner not in values and not term.is_optional for term, values in zip(terms, found, strict=True)):
                continue
            value = sum(values[owner] for values in found if owner in values)
            high = _LIMITS[column].high if column.endswith("_ratio") else None
            if not -_SLACK <= value <= (float("inf") if high is None else high + _SLACK):
                self._skipped["out_of_range"] += 1
                continue
            result[owner] = max(0.0, value if high is None else min(high, value))
        return result

    def _term(self, term: Term, *, is_gpu: bool) -> dict[str, float]:
        """Return owner -> value of one term."""
        values = self._combined(term, term.names, is_gpu=is_gpu)
        if term.divide_by:
            whole = self._combined(term, term.divide_by, is_gpu=is_gpu)
            values = {owner: value / whole[owner] for owner, value in values.items() if whole.get(owner)}
        return {owner: term.base_value + term.factor * value for owner, value in values.items()}

    def _combined(self, term: Term, names: Sequence[str], *, is_gpu: bool) -> dict[str, float]:
        """Return owner -> combined value of its series; an owner with a series without a rate is left out."""
        name = next((name for name in names if name in self._by_name), None)
        if name is None:
            return {}
        series: dict[str, list[float | None]] = defaultdict(list)
        for sample in self._by_name[name]:
            owner = sample.labels.get(self._mapping.gpu_label, "") if is_gpu else HOST
            if (is_gpu and not owner) or not self._match(term, sample):
                continue
            series[owner].append(self._rate(sample) if term.kind == "counter" else sample.value)
        result: dict[str, float] = {}
        for owner, values in series.items():
            known = [value for value in values if value is not None]
            if len(known) < len(values):
                continue
            total = max(known) if term.combine == "max" else sum(known)
            result[owner] = total / len(known) if term.combine == "mean" else total
        return result

    def _rate(self, sample: PageSample) -> float | None:
        """Return a counter's rate per second; None for its first value, and if it went back."""
        key = sample.series
        if key not in self._rates:  # the same series may stand in several terms
            before, self._last[key] = self._last.get(key), (sample.value, self._now_ns)
            if before is None or sample.value < before[0] or self._now_ns <= before[1]:
                self._rates[key] = None
            else:
                self._rates[key] = (sample.value - before[0]) * NS_PER_SECOND / (self._now_ns - before[1])
        return self._rates[key]

    def _match(self, term: Term, sample: PageSample) -> bool:
        """Return whether a sample's labels match a term's patterns."""
        if not term.labels:
            return True
        key = (id(term), sample.series)
        found = self._matches.get(key)
        if found is None:
            labels = sample.labels
            found = all(pattern.fullmatch(labels.get(label, "")) for label, pattern in term.labels.items())
            self._matches[key] = found
        return found
