"""``make parity``: every recording through both engines, in order and shuffled with each record twice.

``python -m tests.chaos.parity [simulated] [outside] [dumps] [drills]``: all of them, or those that are named.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import uuid
from pathlib import Path

from tests.chaos.engine import servers
from tests.chaos.outcome import Outcome, table_text
from tests.chaos.plays import both_orders, streams
from tests.chaos.recordings import SETS, recordings_in


def main() -> int:
    """Bring up the servers, play all, print the table; 1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", nargs="*", help=f"which recordings, of {' '.join(SETS)} (default: all)")
    parser.add_argument("--also", type=Path, action="append", default=[], help="a folder with more recordings in it")
    parser.add_argument("--folder", type=Path, help="keep all that is written there")
    args = parser.parse_args()
    if unknown := set(args.sets) - SETS.keys():
        parser.error(f"no such set: {' '.join(unknown)}")
    with tempfile.TemporaryDirectory(prefix="tocsin-parity-") as made:
        outcomes = _compared(args.folder or Path(made), args.sets or ([] if args.also else list(SETS)), args.also)
    print(table_text(outcomes))
    bad = [one for one in outcomes if one.differs]
    print(f"{len(outcomes)} plays, {sum(one.line_count for one in outcomes)} verdict lines, {len(bad)} plays differ")
    return 1 if bad else 0


def _compared(folder: Path, sets: list[str], also: list[Path]) -> list[Outcome]:
    named = [one for name in sets for one in SETS[name](folder / "recordings" / name)]
    named += [one for place in also for one in recordings_in(place)]
    plays = [play for number, (name, recording) in enumerate(named) for play in both_orders(name, recording, number)]
    print(f"{len(plays) // 2} recordings", flush=True)
    outcomes: list[Outcome] = []
    with servers(folder) as distributed:
        for stream in streams(plays):
            begun = time.monotonic()
            outcomes += distributed.compare(stream, f"p{uuid.uuid4().hex[:8]}")
            print(f"{len(stream)} plays in {time.monotonic() - begun:.0f} s", flush=True)
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
