"""The trace detectors on simulated cases: recall by kind, specificity beside it, and the base rate.

The network is trained on healthy jobs of the ``fit`` half; the cases are of the ``held`` half. Accuracy alone is
never printed (seed-systems-b.md 5.4 D4). ``TOCSIN_BENCH_CASES=40`` runs fewer; ``TOCSIN_BENCH_MODEL=FILE``
reads the network from there, or trains and writes it.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import Counter, defaultdict
from pathlib import Path

from tests.bench.trace_cases import DETECTORS, VOCABULARY, Reported, ablation, cases, normal_data, told_of
from tocsin.models.bilstm_ocnn import OcnnModel, read_model
from tocsin.models.training.bilstm_ocnn_training import OcnnTraining, train
from tocsin.pipeline.lab.simulation.case import HEALTHY

TRAINING_JOBS = 60


def model_of() -> OcnnModel:
    """The network, trained unless a file holds it."""
    named = os.environ.get("TOCSIN_BENCH_MODEL")
    if named and Path(named).is_file():
        return read_model(Path(named).read_bytes())
    start = time.perf_counter()
    data = normal_data(TRAINING_JOBS)
    print(f"{len(data.training)} + {len(data.held_out)} sequences: {time.perf_counter() - start:.0f} s", flush=True)
    start = time.perf_counter()
    model = train(data, VOCABULARY, OcnnTraining())
    rate = float((model.outputs(data.held_out) < model.quantile_score).mean())
    print(
        f"trained in {time.perf_counter() - start:.0f} s, {len(model.to_bytes())} bytes; below r on held-out", end=" "
    )
    print(
        f"normal data: {rate:.3f} (nu = {model.nu_ratio}); alarm line {model.line_factor:.1f} times as far", flush=True
    )
    if named:
        Path(named).write_bytes(model.to_bytes())
    return model


def table(reported: list[Reported]) -> None:
    """Print recall by kind, then what was said of healthy machines."""
    by_kind: dict[str, list[Reported]] = defaultdict(list)
    for one in reported:
        by_kind[one.kind].append(one)
    print(f"{'kind':24} cases" + "".join(f"  {name:>8} found, median s, wrong" for name in DETECTORS))
    for kind, ones in sorted(by_kind.items()):
        cells = []
        for name in DETECTORS:
            delays = [one.delay_seconds[name] for one in ones if name in one.hits]
            middle = f"{statistics.median(delays):.0f}" if delays else "-"
            cells.append(f"  {len(delays):>14}, {middle:>8}, {sum(one.wrong[name] for one in ones):>5}")
        print(f"{kind:24} {len(ones):>5}{''.join(cells)}")
    days = sum(one.machine_days for one in reported)
    wrong: Counter[str] = sum((one.wrong for one in reported), Counter())
    faults = sum(one.kind != HEALTHY for one in reported)
    print(f"\nbase rate: {faults} faults in {days:.1f} machine-days; hosts named that were not at fault:", end=" ")
    print(", ".join(f"{name} {wrong[name]} ({wrong[name] / days:.2f} per machine-day)" for name in DETECTORS))


def main() -> None:
    """Train or read the network, print the table."""
    count = int(os.environ.get("TOCSIN_BENCH_CASES", "200"))
    model = model_of()
    reported = [
        told_of(case, model) for kind in (None, HEALTHY) for case in cases(604, max(1, count // 2), kind, "held")
    ]
    table(reported)
    print(ablation(605, max(4, count // 5)).sentence)
