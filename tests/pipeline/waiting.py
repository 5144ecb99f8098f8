"""Waiting for another thread, with an end."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(done: Callable[[], bool], seconds: float = 60.0) -> None:
    """Until it is so; an assertion fails where it does not come to that."""
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.005)
