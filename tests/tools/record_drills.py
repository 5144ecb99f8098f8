"""Puts recordings of drills into the compact form from which the default models are trained.

    tocsin drill --kind none --seed 101 --healthy-minutes 2.5 --record /tmp/drills
    python -m tests.tools.record_drills /tmp/drills/none-1 none-101

writes ``models/training/drills/none-101.npz.xz``. Say in ``README.md`` beside it where and how it was recorded, and run
``make models``: other drills give other models.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tocsin.pipeline.lab.training.drills import SUFFIX, pack
from tocsin.pipeline.recording.reader import read_recording
from tocsin.schemas.errors import TocsinError

FOLDER = Path(__file__).parents[2] / "models" / "training" / "drills"


def main(argv: list[str] | None = None) -> int:
    """Write one file; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.record_drills", description=__doc__)
    parser.add_argument("recording", type=Path, help="folder of the drill's recording")
    parser.add_argument("name", help="name of the file, without its ending")
    parser.add_argument("--out", type=Path, default=FOLDER, help="%(default)s")
    args = parser.parse_args(argv)
    try:
        data = pack(read_recording(args.recording))
    except (TocsinError, KeyError) as error:
        sys.stderr.write(f"{args.recording}: {error}: must be a drill with steps, collectives and events\n")
        return 2
    place = args.out / f"{args.name}{SUFFIX}"
    place.write_bytes(data)
    sys.stdout.write(f"{place}: {len(data)} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
