"""Minder to the letter, its ablations and the Mahalanobis baseline, on simulated cases.

Models, order of metrics and thresholds come from cases of the ``fit`` half; what is shown are cases of
the ``held`` half. Half of the cases are healthy; faults last at least 13 minutes, or calls every eight
minutes that ask for four could not see them all. ``TOCSIN_BENCH_CASES`` (80) cases are shown,
``TOCSIN_BENCH_FIT`` (40) are learned from, of ``TOCSIN_BENCH_HOSTS`` (4-32) hosts.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import replace

from tocsin.models.minder import PRIORITY, MinderConfig, Variant
from tocsin.models.minder_file import encode_minder
from tocsin.pipeline.backtest.minder_runner import MinderRunner
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
from tocsin.pipeline.simulation.case import HEALTHY, draw_case
from tocsin.pipeline.simulation.draw import Half
from tocsin.schemas.records import NS_PER_SECOND

SECONDS = 1800.0
LEAST_NS = 780 * NS_PER_SECOND
FIRST_SEEDS = {"fit": 3_000_000, "held": 4_000_000}
VARIANTS: tuple[Variant, ...] = ("vae", "raw", "concatenated", "integrated", "mahalanobis")


def recordings(count: int, half: Half, hosts: tuple[int, int]) -> Iterator[Recording]:
    """Healthy ones and ones with a long fault in turn; steps and events are left out: nobody here reads them."""
    found = 0
    for seed in itertools.count(FIRST_SEEDS[half]):
        if found == count:
            return
        case = draw_case(seed, hosts, HEALTHY if found % 2 else None, half, duration_seconds=SECONDS)
        faults = case.truth()["faults"]
        if all(fault["end_ns"] - fault["onset_ns"] >= LEAST_NS for fault in faults):
            found += 1
            whole = case.recording()
            tables = {name: whole.tables[name] for name in ("topology", "host_metrics") if name in whole.tables}
            yield replace(whole, tables=tables)


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
        fitted = [one.config for one in fit_thresholds(lessons, model, plain_config(variant))]
        scans = [scans_of(lesson, model, fitted[0]) for lesson in held]
        without = [replace(config, continuity_seconds=0.0) for config in fitted] if variant == "vae" else []
        for config in (*fitted, *without):
            told = [answers_of(lesson, found, model, config) for lesson, found in zip(held, scans, strict=True)]
            scores = [
                score_lines(lines_of(answers), lesson.faults, 1.0) for lesson, answers in zip(held, told, strict=True)
            ]
            print(row(MinderRunner(model, config), add_up(scores)[0]), flush=True)
    print(f"{time.perf_counter() - start:.0f} s")


def plain_config(variant: Variant) -> MinderConfig:
    """Moments of 8 samples are mostly noise: the Mahalanobis baseline gets a minute (its window was not found)."""
    return MinderConfig(variant, window_ticks=60) if variant == "mahalanobis" else MinderConfig(variant)


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
