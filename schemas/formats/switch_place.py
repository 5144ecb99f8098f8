"""The switches above one host."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SwitchPlace:
    """Where a host is connected.

    Attributes:
        leaf: its leaf switch, rack or block; "" if unknown.
        minipod: what joins several leaves: the switch above, or the aggregated block; "" if unknown.
    """

    leaf: str = ""
    minipod: str = ""
