"""A state as it comes back from a snapshot."""

from __future__ import annotations

from typing import Any

from tocsin.pipeline.core.operator import pack_state, unpack_state


def through_bytes(state: Any) -> Any:
    """Written and read again."""
    return unpack_state({"part": pack_state(state)}, "part")
