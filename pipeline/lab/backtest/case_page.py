"""HTML page of one backtest case: the truth, each detector set's accusations, and plots of all metrics."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from tocsin.pipeline.lab.backtest.curves import (
    STEPS_PREFIX,
    Curves,
    Points,
    curves_of,
)
from tocsin.pipeline.lab.backtest.markup import (
    marked,
    page,
    since,
    table,
    text,
    utc,
)
from tocsin.pipeline.lab.backtest.plots import (
    STYLE,
    PlotMark,
    PlotSpan,
    Scene,
    plot,
)
from tocsin.pipeline.lab.backtest.trial import Trial, TrialAnswer, fault_name
from tocsin.pipeline.recording.import_warnings import notes_of
from tocsin.pipeline.recording.tables import Recording
from tocsin.schemas.records import NS_PER_SECOND

_NAMED_COUNT = 16
"""Most accused machines drawn in colour besides the faulty ones; the first ones accused are chosen."""
_NOTE_COUNT = 10
_ROW_COUNT = 200


def case_page(title: str, recording: Recording, trial: Trial) -> str:
    """Return the self-contained HTML page of one case.

    Args:
        title: heading of the page.
        recording: the recording.
        trial: the detector sets' scored answers on it.
    """
    scene = _scene(recording, trial)
    curves = _sorted(curves_of(recording, scene.points, scene.culprits | scene.named), trial)
    body = [
        '<p><a href="index.html">all cases</a></p>',
        f"<h1>{text(title)}</h1>",
        f"<p>{_headline(recording, trial)}</p>",
        _truth(trial),
        "<h2>Verdicts</h2>",
        table(
            ("set", "named", "said at", "after onset", "since, by its own opinion", "cause", "why", "worth"),
            itertools.chain.from_iterable(_verdicts(answer, trial) for answer in trial.answers),
            numbers=(2, 3, 4),
        ),
        *(f"<p>{text(note)}</p>" for note in notes_of(recording)[:_NOTE_COUNT]),
        _legend(scene),
    ]
    for one in curves:
        body += [f"<h2>{text(one.metric)}</h2>", plot(one, scene)]
    return page(title, body, STYLE)


def _scene(recording: Recording, trial: Trial) -> Scene:
    """Return what all plots of the case share: time axis, faulty and accused machines, faults, verdicts."""
    faults = trial.faults or ()
    culprits = frozenset(str(suspect["name"]) for fault in faults for suspect in fault["suspects"])
    said = sorted(
        ((one, index, answer.name) for index, answer in enumerate(trial.answers) for one in answer.accusations),
        key=lambda found: (found[0].detected_ns, found[1]),
    )
    named = dict.fromkeys(name for one, _, _ in said for name in one.suspects)
    others = [name for name in named if name not in culprits][:_NAMED_COUNT]
    return Scene(
        Points.of(recording),
        culprits,
        frozenset(others) | (culprits & named.keys()),
        tuple(PlotSpan(fault_name(fault), fault["onset_ns"], fault["end_ns"]) for fault in faults),
        tuple(PlotMark(f"{name}: {_names(one.suspects)}", one.detected_ns, index) for one, index, name in said),
    )


def _sorted(curves: Iterator[Curves], trial: Trial) -> Iterator[Curves]:
    """Yield the plots of metrics behind accusations first, then those of steps, then the others."""
    answer = {metric for one in trial.answers for accusation in one.accusations for metric in accusation.metrics}
    rest = []
    for one in curves:
        if one.metric in answer:
            yield one
        else:
            rest.append(one)
    yield from sorted(rest, key=lambda one: not one.metric.startswith(STEPS_PREFIX))


def _names(names: Sequence[str], most: int = 3) -> str:
    """Return up to ``most`` names as text, and the count of further ones."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def _headline(recording: Recording, trial: Trial) -> str:
    """Return job, machines, time and tables of the recording as HTML."""
    seconds = (trial.end_ns - trial.start_ns) / NS_PER_SECOND
    parts = [
        f"job {trial.job_id}",
        f"{trial.host_count} machines",
        f"{utc(trial.start_ns)}, {since(seconds)} (h:mm:ss or m:ss) long",
        f"holds {', '.join(sorted(recording.tables)) or 'nothing'}",
    ]
    return text("; ".join(parts))


def _truth(trial: Trial) -> str:
    """Return the table of true faults as HTML."""
    if trial.faults is None:
        return "<p>No truth.json: nothing here is scored.</p>"
    if not trial.faults:
        return "<p>The truth: nobody is at fault.</p>"
    rows = [
        (
            text(fault.get("kind", "")),
            text(fault.get("cause", "")),
            text(_names([str(suspect["name"]) for suspect in fault["suspects"]])),
            _at(fault["onset_ns"], trial),
            _at(fault["end_ns"], trial),
        )
        for fault in trial.faults
    ]
    return "<h2>Truth</h2>" + table(("kind", "cause", "at fault", "onset", "end"), rows, numbers=(3, 4))


def _at(ts_ns: int, trial: Trial) -> str:
    """Return a time since the recording's start as HTML."""
    return text(since((ts_ns - trial.start_ns) / NS_PER_SECOND))


def _verdicts(answer: TrialAnswer, trial: Trial) -> Iterator[tuple[str, ...]]:
    """Yield the table rows of one detector set's answer."""
    for one in answer.accusations[:_ROW_COUNT]:
        yield (
            text(answer.name),
            text(_names(one.suspects)),
            _at(one.detected_ns, trial),
            "" if one.delay_seconds is None else text(f"{one.delay_seconds:.1f} s"),
            _at(one.onset_ns, trial),
            text(one.cause),
            text(", ".join([one.why, *one.metrics[:3]] if one.why else one.metrics[:3])),
            marked(one.worth if one.worth in ("hit", "false") else "quiet", one.worth),
        )
    left_out = len(answer.accusations) - _ROW_COUNT
    if left_out > 0:
        yield (text(answer.name), text(f"and {left_out} more"), "", "", "", "", "", "")
    if answer.reason is not None:
        yield (text(answer.name), marked("quiet", "could not judge"), "", "", "", "", text(answer.reason.value), "")
    if answer.missed_count or not (answer.accusations or answer.reason):
        worth = marked("missed", f"missed {answer.missed_count}") if answer.missed_count else marked("hit", "quiet")
        yield (
            text(answer.name),
            marked("quiet", "nobody" if not answer.accusations else ""),
            "",
            "",
            "",
            "",
            "",
            worth,
        )


def _legend(scene: Scene) -> str:
    """Return the explanation of the plots as HTML."""
    points = scene.points
    parts = [
        f"Each point is the mean of {points.span_ns / NS_PER_SECOND:g} s; of a machine's GPUs, the mean.",
        "Grey: peers (beyond 64: median, middle half, 90 in a hundred).",
        "Red: at fault, with the span of its GPUs; dashed: onset and end.",
        "Orange: accused and not at fault. Other vertical lines: verdicts.",
        "Time: since the begin.",
    ]
    return f"<p>{text(' '.join(parts))}</p>"
