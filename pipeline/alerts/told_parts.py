"""What stands and what waits, by the parts of a queue that another process keeps."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from tocsin.pipeline.alerts.queue import AlertQueue
from tocsin.pipeline.alerts.queue_mirror import QueueMirror
from tocsin.pipeline.alerts.told_list import ToldRow, read_told


def told_of(parts: Mapping[str, bytes], now_ns: int) -> list[ToldRow]:
    """Return what stands and then what waits.

    Args:
        parts: the parts of ``QueueMirror``, and others, which are left out.
        now_ns: the present time.

    Raises:
        SnapshotError: a part is damaged.
        ConfigError: there is no room for a temporary file.
    """
    with tempfile.TemporaryDirectory(prefix="tocsin-alerts-") as folder:
        path = Path(folder) / "alerts.db"
        queue = AlertQueue(path, now_ns)
        mirror = QueueMirror(path)
        try:
            mirror.load(parts)
        finally:
            mirror.close()
            queue.close()
        return read_told(path)
