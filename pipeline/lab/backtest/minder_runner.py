"""Backtest runner of Minder's published procedure, with calls every 8 minutes as a scheduler would make them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from tocsin.models.minder import MinderConfig, MinderModel, Samples, Variant, detect
from tocsin.models.minder_calls import Call
from tocsin.pipeline.detect.baselines.minder_ticks import Ticks
from tocsin.pipeline.lab.backtest.runner import Opinion, RunnerAccusation
from tocsin.pipeline.lab.backtest.series import series_of
from tocsin.pipeline.recording.judged_range import has_no_length
from tocsin.pipeline.recording.tables import Recording
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND


@dataclass(frozen=True, slots=True, eq=False)
class MinderRunner:
    """Runner of Minder as published, or of one of its ablations.

    Attributes:
        model: trained model.
        config: settings of the procedure.
        processing_seconds: processing time of a call, by which an accusation is delayed (the paper reports 3.6 s).
    """

    model: MinderModel
    config: MinderConfig = field(default_factory=MinderConfig)
    processing_seconds: float = 3.6

    @property
    def name(self) -> str:
        """Name of the detector set."""
        own = {"vae": "minder"}.get(self.config.variant, f"minder-{self.config.variant}")
        own = "mahalanobis" if self.config.variant == "mahalanobis" else own
        return own if self.config.continuity_seconds else f"{own}-no-continuity"

    def run(self, recording: Recording) -> list[RunnerAccusation]:
        """Return the accusations of all calls over a recording, at most one per call.

        Without the metrics, with fewer than three machines (or so few that the threshold is unreachable) or in a
        recording shorter than the call interval there is none; ``calls`` gives the reasons.
        """
        return self._answers(self.calls(recording))

    def judge(self, recording: Recording) -> Opinion:
        """Return the accusations of ``run``, or the reason if no call could compare machines or name one."""
        calls = list(self.calls(recording))
        return Opinion.of(self._answers(calls), None if calls and _compared(calls) else _reason(recording, calls))

    def _answers(self, calls: Iterable[Call]) -> list[RunnerAccusation]:
        """Return the accusations of calls with an alert."""
        delay_ns = round(self.processing_seconds * NS_PER_SECOND)
        answers = []
        for call in calls:
            alert = call.outcome.alert
            if alert is not None:
                score = alert.mean_sigmas / alert.threshold_sigmas if alert.threshold_sigmas > 0 else 1.0
                onset_ns = call.time_of(alert.onset_index)
                host = call.hosts[alert.row]
                answers.append(RunnerAccusation(host, alert.metric, onset_ns, call.at_ns + delay_ns, max(1.0, score)))
        return answers

    def calls(self, recording: Recording) -> Iterator[Call]:
        """Yield each call with its outcome; the first one is one call interval after the recording's start."""
        metrics = tuple(dict.fromkeys((*self.model.priority, *_integrated(self.model))))
        series = series_of(recording, metrics)
        if series is None:
            return
        for part, at_ns in pulls(series, self.config):
            there = np.isfinite(part.values).any(axis=(1, 2))
            there |= not there.any()  # hosts that lack all of the model's metrics are peers; what lacks is the metrics
            hosts = tuple(host for host, is_there in zip(part.hosts, there, strict=True) if is_there)
            samples = Samples(metrics, part.values[there], part.tick_ns / NS_PER_SECOND)
            yield Call(detect(samples, self.model, self.config), hosts, part.start_ns, part.tick_ns, at_ns)


def published(variant: Variant) -> MinderConfig:
    """Return the settings of a variant as published.

    The Mahalanobis baseline gets windows of a minute, because moments of 8 samples are mostly noise.
    """
    return MinderConfig(variant, window_ticks=60) if variant == "mahalanobis" else MinderConfig(variant)


def pulls(series: Ticks, config: MinderConfig) -> Iterator[tuple[Ticks, int]]:
    """Yield for each call the samples that it looks at, at most the last 15 minutes, and its time."""
    call_ns = round(config.call_seconds * NS_PER_SECOND)
    pull_ns = round(config.pull_seconds * NS_PER_SECOND)
    end_ns = series.start_ns + series.values.shape[2] * series.tick_ns
    for at_ns in range(series.start_ns + call_ns, end_ns + 1, call_ns):
        last = (at_ns - series.start_ns) // series.tick_ns
        first = max(0, last - max(config.window_ticks, pull_ns // series.tick_ns))
        values = series.values[:, :, first:last]
        yield Ticks(series.hosts, values, series.start_ns + first * series.tick_ns, series.tick_ns), at_ns


def _integrated(model: MinderModel) -> tuple[str, ...]:
    """Return the metrics of the model of all metrics, if there is one."""
    return () if model.integrated is None else model.integrated.metrics


def _compared(calls: Iterable[Call]) -> bool:
    """Return whether some call compared machines, enough of them that one could be named."""
    return any(call.outcome.alert or Reason.NOT_CONTINUOUS in call.outcome.reasons.values() for call in calls)


def _reason(recording: Recording, calls: Sequence[Call]) -> Reason:
    """Return why no call could name a machine: the most frequent reason, or that there was no call."""
    named = Counter(reason for call in calls for reason in call.outcome.reasons.values())
    if Reason.THRESHOLD_UNREACHABLE in named:  # of the metrics that could be compared; the others are beside the point
        return Reason.THRESHOLD_UNREACHABLE
    if named:
        return named.most_common(1)[0][0]
    is_short = has_no_length(recording.manifest) or series_of(recording, ()) is not None
    return Reason.SPAN_TOO_SHORT if is_short else Reason.METRIC_MISSING
