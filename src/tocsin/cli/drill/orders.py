"""Numbers of the faults that a rank injects into itself (it reads them from the shared page)."""

from __future__ import annotations

from enum import IntEnum


class OrderKind(IntEnum):
    """Behaviour of a rank from the step in which it reads the order."""

    NOTHING = 0
    SLOW_COMPUTE = 1
    """Compute takes ``magnitude`` times as long, through more matrix products in forward and backward."""
    SLOW_LOADER = 2
    """Each batch takes ``magnitude`` seconds longer."""
    SKIP_REDUCE = 3
    """Once: the rank skips the all_reduce of the gradients and continues."""
    BROADCAST = 4
    """Once: the rank enters a broadcast while its peers all_reduce the gradients."""
    NAN_LOSS = 5
    """Once: the loss becomes NaN, as from a bad batch, and so do the gradients."""
    NAN_GRADIENT = 6
    """Once: the gradients become NaN although the loss is a number."""
    EXCEPTION = 7
    """Once: a check in the training program fails with an exception."""
    LONG_STAGE = 8
    """The accelerator takes ``magnitude`` times as long, as for a stage with more layers."""
    GC_PAUSES = 9
    """In steps that it draws, one of as many as there are ranks, the rank collects garbage for about ``magnitude``
    seconds of the forward pass."""
    UNEVEN_DATA = 10
    """The rank draws the lengths of its sequences; the standard deviation of their logarithm is ``magnitude``."""
