"""``make parity``: every recording through both engines, in order and shuffled with each record twice.

``python -m tests.chaos.parity [simulated] [outside] [dumps] [drills]``: all of them, or those that are named.
``--detector minder=evidence --detector entropy=accuse --detector bilstm=accuse``: with learned detectors in both.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path

from tests.chaos.engine import servers
from tests.chaos.learned import Learned, add_learned_arguments, learned_of
from tests.chaos.outcome import Outcome, table_text
from tests.chaos.plays import both_orders, judged_with, streams
from tests.chaos.recordings import SETS, recordings_in
from tocsin.pipeline.recording.tables import Recording


def main() -> int:
    """Bring up the servers, play all, print the table; 1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", nargs="*", help=f"which recordings, of {' '.join(SETS)} (default: all)")
    parser.add_argument("--also", type=Path, action="append", default=[], help="a folder with more recordings in it")
    parser.add_argument("--recording", metavar="NAME", action="append", default=[], help="only these of the sets")
    parser.add_argument("--folder", type=Path, help="keep all that is written there")
    add_learned_arguments(parser)
    args = parser.parse_args()
    learned = learned_of(args)
    if unknown := set(args.sets) - SETS.keys():
        parser.error(f"no such set: {' '.join(unknown)}")
    with tempfile.TemporaryDirectory(prefix="tocsin-parity-") as made:
        named = _named(args.folder or Path(made), args.sets or ([] if args.also else list(SETS)), args.also)
        chosen = [(name, recording) for name, recording in named if not args.recording or name in args.recording]
        if not chosen:
            parser.error(f"no such recording: {' '.join(args.recording)}")
        outcomes = _compared(args.folder or Path(made), chosen, learned)
    print(table_text(outcomes))
    if args.detector:
        shown = Counter(name for one in outcomes for name in one.learned.elements())
        print(f"verdict lines with evidence of learned detectors: {dict(shown)}")
    bad = [one for one in outcomes if one.differs]
    print(f"{len(outcomes)} plays, {sum(one.line_count for one in outcomes)} verdict lines, {len(bad)} plays differ")
    return 1 if bad else 0


def _named(folder: Path, sets: list[str], also: list[Path]) -> list[tuple[str, Recording]]:
    named = [one for name in sets for one in SETS[name](folder / "recordings" / name)]
    return named + [one for place in also for one in recordings_in(place)]


def _compared(folder: Path, named: list[tuple[str, Recording]], learned: Learned) -> list[Outcome]:
    plays = [play for number, (name, recording) in enumerate(named) for play in both_orders(name, recording, number)]
    print(f"{len(plays) // 2} recordings", flush=True)
    outcomes: list[Outcome] = []
    with servers(folder) as distributed:
        for together in streams(plays):
            begun = time.monotonic()
            stream = judged_with(together, learned)
            outcomes += distributed.compare(stream, f"p{uuid.uuid4().hex[:8]}", *learned.flags)
            print(f"{len(stream)} plays in {time.monotonic() - begun:.0f} s", flush=True)
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
