"""``make attack``: every attack, one JSON line each; status 1 where one did not hold or a finding has none."""

from __future__ import annotations

import argparse
import sys

from tests.attacks.registry import FINDINGS, attacks, line_of, missing, outcome_of


def main() -> int:
    """Run what the arguments choose."""
    parser = argparse.ArgumentParser(prog="make attack", description=__doc__)
    parser.add_argument("--finding", action="append", choices=FINDINGS, help="this one only (may be repeated)")
    parser.add_argument("--quick", action="store_true", help="only those that make test runs, too")
    options = parser.parse_args()
    chosen = [
        one
        for one in attacks()
        if (not options.finding or one.finding in options.finding) and not (options.quick and one.is_slow)
    ]
    failed = 0
    for one in chosen:
        outcome = outcome_of(one)
        failed += not outcome.held
        sys.stdout.write(line_of(one, outcome) + "\n")
        sys.stdout.flush()
    absent = () if options.finding else missing(chosen)
    if absent:
        sys.stderr.write(f"no attack for {', '.join(absent)}\n")
    sys.stderr.write(f"{len(chosen)} attacks, {failed} did not hold\n")
    return 1 if failed or absent else 0


if __name__ == "__main__":
    sys.exit(main())
