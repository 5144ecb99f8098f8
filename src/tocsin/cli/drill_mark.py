"""A mark file in the data folder of a finished drill: it says that no engine runs there, on purpose.

Querying a folder of incidents without a running engine is otherwise an error when the user asks what is wrong now.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from tocsin.schemas.private_files import write_private

_FILE_NAME: Final = "drill-ended"


def leave_drill_mark(data: Path) -> None:
    """Mark a data folder as that of a drill that has ended normally."""
    write_private(data / _FILE_NAME, time.strftime("%Y-%m-%d %H:%M:%S UTC\n", time.gmtime()).encode())


def remove_drill_mark(data: Path) -> None:
    """Remove the mark, because an engine now runs with this folder."""
    (data / _FILE_NAME).unlink(missing_ok=True)


def has_drill_mark(data: Path) -> bool:
    """Return whether the folder is that of a drill that has ended normally."""
    return (data / _FILE_NAME).is_file()
