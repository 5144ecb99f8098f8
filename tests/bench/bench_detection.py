"""As ``accuracy``, on the seeds of the plain detector's table (``simulation``): 200 + 200 cases of 4 to 64 hosts."""

from __future__ import annotations

from tests.bench.bench_accuracy import report
from tests.bench.judged import case_count, host_range

FIRST_SEED = 1_000_000
CASE_COUNT, HOSTS = 400, (4, 64)


def main() -> None:
    """Print the tables."""
    report(FIRST_SEED, case_count(CASE_COUNT), host_range(HOSTS))
