"""Minder to the letter, its ablations and the Mahalanobis baseline, on simulated cases.

Models, order of metrics and thresholds come from cases of the ``fit`` half; what is shown are cases of
the ``held`` half. Half of the cases are healthy; faults last at least 13 minutes, or calls every eight
minutes that ask for four could not see them all. ``TOCSIN_BENCH_CASES`` (80) cases are shown,
``TOCSIN_BENCH_FIT`` (40) are learned from, of ``TOCSIN_BENCH_HOSTS`` (4-32) hosts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace

from tocsin.models.minder import PRIORITY, Variant
from tocsin.models.minder_file import encode_minder
from tocsin.pipeline.backtest.minder_runner import MinderRunner, published
from tocsin.pipeline.backtest.minder_training import (
    Lesson,
    answers_of,
    fit_thresholds,
    lesson_of,
    scans_of,
    train_minder,
)
from tocsin.pipeline.backtest.runner import lines_of
from tocsin.pipeline.recording.score import Score, add_up, score_lines
from tocsin.pipeline.recording.tables import Recording
from tocsin.pipeline.simulation.draw import Half
from tocsin.pipeline.training.simulated import FIRST_SEEDS, long_cases, metrics_only

VARIANTS: tuple[Variant, ...] = ("vae", "raw", "concatenated", "integrated", "mahalanobis")


def recordings(count: int, half: Half, hosts: tuple[int, int]) -> Iterator[Recording]:
    """Healthy ones and ones with a long fault in turn."""
    return map(metrics_only, long_cases(count, half, hosts, FIRST_SEEDS[half]))


def main() -> None:
    """Print the table."""
    shown, taught = int(os.environ.get("TOCSIN_BENCH_CASES", "80")), int(os.environ.get("TOCSIN_BENCH_FIT", "40"))
    low, _, high = os.environ.get("TOCSIN_BENCH_HOSTS", "4-32").partition("-")
    hosts = (int(low), int(high))
    start = time.perf_counter()
    lessons = lessons_of(taught, "fit", hosts)
    print(f"{len(lessons)} lessons, {time.perf_counter() - start:.0f} s", flush=True)
    begin = time.process_time()
    model = train_minder(lessons, integrated=True)
    seconds = time.process_time() - begin
    print(f"{len(model.single) + 1} models: {seconds:.0f} s of CPU, {len(encode_minder(model))} bytes", flush=True)
    print(f"order learned: {', '.join(model.priority)}", flush=True)
    held = lessons_of(shown, "held", hosts)
    print(f"\n{len(held)} cases of the held half, half of them healthy, {hosts[0]} to {hosts[1]} hosts")
    print(f"{'':36} threshold  precision  recall     F1  false  median s")
    for variant in VARIANTS:
        fitted = [one.thing for one in fit_thresholds(lessons, model, published(variant))]
        scans = [scans_of(lesson, model, fitted[0]) for lesson in held]
        without = [replace(config, continuity_seconds=0.0) for config in fitted] if variant == "vae" else []
        for config in (*fitted, *without):
            told = [answers_of(lesson, found, model, config) for lesson, found in zip(held, scans, strict=True)]
            scores = [
                score_lines(lines_of(answers), lesson.faults, 1.0) for lesson, answers in zip(held, told, strict=True)
            ]
            print(row(MinderRunner(model, config), add_up(scores)[0]), flush=True)
    print(f"{time.perf_counter() - start:.0f} s")


def lessons_of(count: int, half: Half, hosts: tuple[int, int]) -> list[Lesson]:
    """Recordings, reduced to what is looked at."""
    return [lesson for one in recordings(count, half, hosts) if (lesson := lesson_of(one, PRIORITY))]


def row(runner: MinderRunner, total: Score) -> str:
    """One line of the table."""
    config = runner.config
    by_ceiling = config.ceiling_ratio is not None
    name = runner.name + (", by ceiling" if by_ceiling else "")
    threshold = f"{config.ceiling_ratio:.2f} c" if by_ceiling else f"{config.threshold_sigmas:.2f} s"
    shares = ["-" if value is None else f"{value:.3f}" for value in (total.precision, total.recall, total.f1)]
    delay = "-" if total.median_seconds is None else f"{total.median_seconds:.0f}"
    line = f"{name:36} {threshold:>9}  {shares[0]:>9}  {shares[1]:>6}  {shares[2]:>5}"
    return f"{line}  {total.false_count:5}  {delay:>8}"
