"""Leave out one guard after the other, and see that the tests of actions notice each.

The guards are taken from the code: whatever stands in ``GuardChain.guards``. Each is left out in a process of its own,
in which the guards' tests and the property run. A guard that nobody misses is a failure, and so is a red run with all
guards.

Usage: ``python -m tests.tools.mutants [GUARD ...] [--property] [--json]``; ``--property``: in which only the property
runs, longer. Prints a line for each and exits with 1 if one is not
missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tocsin.pipeline.actions.chain import GuardChain
from tocsin.pipeline.actions.facts import FactBook
from tocsin.pipeline.incidents.maintenance import MaintenanceBook

ROOT = Path(__file__).parents[2]
WITHOUT = "TOCSIN_TEST_WITHOUT_GUARD"
"""Environment variable that ``tests/pipeline/actions/conftest.py`` obeys."""
TESTS = tuple(
    f"tests/pipeline/actions/test_{name}.py" for name in ("guards", "running_jobs", "return_check_guard", "controller")
)
PROPERTY = "tests/pipeline/actions/test_properties.py"


def guard_names() -> list[str]:
    """Return the names of all guards of the chain, in its order."""
    return [guard.name for guard in GuardChain(MaintenanceBook(FactBook(1).leaf_of)).guards]


def is_green(without: str, *, is_property_only: bool = False) -> bool:
    """Return whether the tests pass in a process of their own without one guard ("" = with all)."""
    runs = "200" if is_property_only else "40"
    environment = {**os.environ, WITHOUT: without, "TOCSIN_PROPERTY_RUNS": runs}
    tests = (PROPERTY,) if is_property_only else (*TESTS, PROPERTY)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode == 0


def main(arguments: list[str] | None = None) -> int:
    """Run the mutants and return the exit status."""
    parser = argparse.ArgumentParser(description="leave out one guard after the other")
    parser.add_argument("guards", nargs="*", metavar="GUARD", help="some of them (default: all)")
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    parser.add_argument("--property", action="store_true", help="only the random stories, not the guards' own tests")
    args = parser.parse_args(arguments)
    known = guard_names()
    unknown = sorted(set(args.guards) - set(known))
    if unknown:
        parser.error(f"{' '.join(unknown)}: no guard; there are {' '.join(known)}")
    failed = 0
    for name in ("", *(args.guards or known)):
        begin = time.monotonic()
        green = is_green(name, is_property_only=args.property)
        is_right = green is (name == "")
        failed += not is_right
        row = {"without": name or "nothing", "tests": "pass" if green else "fail", "is_right": is_right}
        row["seconds"] = round(time.monotonic() - begin, 1)
        text = f"without {row['without']}: the tests {row['tests']}, {row['seconds']} s"
        line = json.dumps(row) if args.json else f"{text}{'' if is_right else '  <- WRONG'}"
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
