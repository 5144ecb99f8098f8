"""A clock that a test moves by hand."""

from __future__ import annotations


class HandClock:
    """A steady clock that is called for its seconds.

    Attributes:
        seconds: what the next call returns.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds
