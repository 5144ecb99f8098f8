"""Numbers of the faults that a rank brings upon itself (a rank reads them on the board)."""

from __future__ import annotations

from enum import IntEnum


class OrderKind(IntEnum):
    """What a rank does from the step on in which it reads the order."""

    NOTHING = 0
    SLOW_COMPUTE = 1
    """Compute takes magnitude times as long: more matrix products in forward and backward."""
    SLOW_LOADER = 2
    """Each batch takes magnitude seconds longer."""
    SKIP_REDUCE = 3
    """Once: leaves out the all_reduce of the gradients and goes on."""
    BROADCAST = 4
    """Once: enters a broadcast where its peers all_reduce the gradients."""
    NAN_LOSS = 5
    """Once: a bad batch makes the loss NaN, and through it the gradients."""
    NAN_GRADIENT = 6
    """Once: the gradients become NaN after a loss that was a number."""
    EXCEPTION = 7
    """Once: a check of the program's own fails."""
