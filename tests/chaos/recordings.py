"""The recordings that parity and chaos play."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.chaos.told_actions import tables_with_actions
from tests.conftest import ROOT
from tests.pipeline.recording.kit import good_tables, manifest, write_folder
from tests.pipeline.recording.outside import Job, Tables, arrow, moved
from tests.pipeline.recording.test_dumps import REAL_SETS, model_dumps, real_recording, topology
from tocsin.pipeline.lab.simulation.case import KINDS, draw_case
from tocsin.pipeline.lab.simulation.draw import Draw
from tocsin.pipeline.lab.simulation.faults import draw_fault
from tocsin.pipeline.lab.simulation.plan import merged
from tocsin.pipeline.recording.reader import read_recording
from tocsin.pipeline.recording.tables import Recording
from tocsin.schemas.records import NS_PER_SECOND

Named = Iterator[tuple[str, Recording]]
START_NS = 1_750_000_200 * NS_PER_SECOND
"""Where simulated jobs begin: on a boundary of all slices, and in the past."""
SEED = 1
LARGE_HOSTS_COUNT = 32
DRILLS = ("kill", "freeze", "slow_compute")
_DRILL_SECONDS = 300.0


def simulated(kind: str, seed: int, hosts: int = 4, seconds: float = 600.0) -> Recording:
    """A drawn job with this fault, or with this disturbance, at the same time as all others."""
    case = draw_case(seed, hosts, kind, duration_seconds=seconds)
    return replace(case, shape=replace(case.shape, start_ns=START_NS)).recording()


def _simulated(folder: Path) -> Named:
    """Each fault, and each innocent disturbance."""
    for kind in KINDS:
        yield kind, simulated(kind, SEED)
    yield "large", simulated("nic_dropout", 3, LARGE_HOSTS_COUNT)


def _outside(folder: Path) -> Named:
    """What other programs write: few columns, several attempts, hosts that are replaced."""
    tables: dict[str, Tables] = {fault: Job(fault).tables() for fault in ("none", "slow", "stop", "unreachable")}
    for fault in ("slow", "stop"):
        tables[f"moved-{fault}"] = moved(fault, crash=True)
        tables[f"attempts-{fault}"] = moved(fault, attempt=True, crash=True)
    for name, found in tables.items():
        seconds = 360.0 if "-" in name else 240.0
        yield name, read_recording(write_folder(folder / name, arrow(found), reported=manifest(seconds)))
    tables = arrow(tables_with_actions())
    yield "told-actions", read_recording(write_folder(folder / "told", tables, reported=manifest(360)))
    yield "all-tables", read_recording(write_folder(folder / "all", good_tables(), reported=manifest(240)))


def _dumps(folder: Path) -> Named:
    """Flight recorders' files: of model jobs, and two real sets where the shared data are there."""
    named = {"topology": topology()}
    for kind in ("cpu_stall",):
        yield (
            f"dumps-{kind}",
            read_recording(write_folder(model_dumps(folder / kind, kind), named, reported=manifest(300))),
        )
    shared = Path(os.environ.get("TOCSIN_SHARED_DATA") or ROOT.parent / "shared" / "data")
    for name in REAL_SETS if shared.is_dir() else ():
        (folder / name).mkdir(parents=True)
        yield name, read_recording(real_recording(shared, name, folder / name, topology=topology())[0])


def _drills(folder: Path) -> Named:
    """Real jobs that are struck while they are recorded, minutes."""
    for kind in DRILLS:
        command = [sys.executable, "-m", "tocsin", "drill", "--kind", kind, "--ranks", "4", "--seed", "3", "--plain"]
        ran = subprocess.run(
            [*command, "--record", str(folder / kind)],
            capture_output=True,
            text=True,
            timeout=_DRILL_SECONDS,
            check=False,
        )
        if ran.returncode:
            raise RuntimeError(f"the drill {kind} failed: {ran.stdout}{ran.stderr}")
    yield from recordings_in(folder)


def recordings_in(folder: Path) -> Named:
    """Each recording below a folder."""
    for place in sorted(folder.rglob("manifest.json")):
        yield "-".join(place.parent.relative_to(folder).parts) or folder.name, read_recording(place.parent)


SETS: Mapping[str, Callable[[Path], Named]] = {
    "simulated": _simulated,
    "outside": _outside,
    "dumps": _dumps,
    "drills": _drills,
}


def several_faults(seed: int, kinds: Sequence[str], hosts: int = 6, seconds: float = 900.0) -> Recording:
    """A drawn job that is struck by each of these, one after the other or at once."""
    case = draw_case(seed, hosts, kinds[0], duration_seconds=seconds)
    draw = Draw(np.random.SeedSequence([seed, 77]), "fit")
    more = [draw_fault(draw, case.shape, kind, seconds) for kind in kinds[1:]]
    shape = replace(case.shape, start_ns=START_NS)
    return replace(case, shape=shape, plan=merged([case.plan, *more])).recording()
