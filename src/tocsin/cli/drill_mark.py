"""The mark that a drill leaves in its data folder: here nobody judges any more, and nobody should.

A folder of incidents without a running engine is an error for whoever asks what is wrong now, unless it is the folder
of a drill that ended in order.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from tocsin.schemas.private_files import write_private

_FILE_NAME: Final = "drill-ended"


def leave_drill_mark(data: Path) -> None:
    """Say in a data folder that the drill which made it has ended in order."""
    write_private(data / _FILE_NAME, time.strftime("%Y-%m-%d %H:%M:%S UTC\n", time.gmtime()).encode())


def remove_drill_mark(data: Path) -> None:
    """An engine judges in this folder from now on: its end is no drill's."""
    (data / _FILE_NAME).unlink(missing_ok=True)


def has_drill_mark(data: Path) -> bool:
    """Whether a drill made this folder, and ended in order."""
    return (data / _FILE_NAME).is_file()
