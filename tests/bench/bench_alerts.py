"""A flood of alerts: 100,000 updates of 20,000 verdicts within a minute, and five real incidents among them.

Prints how long the five pages take, how much work it is, and how much memory.
"""

from __future__ import annotations

import resource
import tempfile
from pathlib import Path

from tests.pipeline.alerts.flood_load import REAL_COUNT, UPDATES_COUNT, run_flood

VERDICT_COUNT, SECONDS = 20_000, 60
GOAL = "goal: each within 10 s"


def peak_mb() -> float:
    """Most memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Run the flood three times at different places."""
    before_mb = peak_mb()
    for seed in (1, 2, 3):
        with tempfile.TemporaryDirectory() as folder:
            found = run_flood(Path(folder), VERDICT_COUNT, SECONDS, seed)
        if len(found.page_seconds) < REAL_COUNT:
            raise AssertionError(f"only {len(found.page_seconds)} of {REAL_COUNT} real incidents were paged")
        pages = ", ".join(f"{seconds:.2f}" for seconds in sorted(found.page_seconds.values()))
        print(f"{VERDICT_COUNT * UPDATES_COUNT} updates of {VERDICT_COUNT} verdicts in {SECONDS} s of stream time")
        print(f"pages of the {REAL_COUNT} real incidents after {pages} s of stream time ({GOAL})")
        print(f"work: {found.wall_seconds:.1f} s, longest second {found.longest_tick_seconds:.2f} s")
        print(f"pages and summaries in all: {found.pages_count}")
    print(f"memory: peak {peak_mb():.0f} MB, {before_mb:.0f} MB before, the flood's own verdicts included")
