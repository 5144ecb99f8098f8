"""Defers the signals that end a command while ending would do harm."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, Final, Self

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Turns Ctrl-C, SIGTERM and SIGHUP into **one** ``KeyboardInterrupt``, which is deferred until ``release``.

    Signals after the first one do nothing, so that they do not disturb the clean-up. A signal that was ignored before
    (``nohup``) stays ignored.
    """

    def __init__(self) -> None:
        """Create the object; signal handlers are set on entering."""
        self._before: dict[signal.Signals, Any] = {}
        self._is_held = True
        self._has_come = False

    def __enter__(self) -> Self:
        """Set the signal handlers."""
        for number in _ENDING:
            before = signal.getsignal(number)
            if before != signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Restore the previous signal handlers."""
        for number, before in self._before.items():
            signal.signal(number, before)

    def release(self) -> None:
        """Stop deferring: the next signal raises KeyboardInterrupt at once.

        Raises:
            KeyboardInterrupt: a signal has come meanwhile.
        """
        if self._has_come:
            raise KeyboardInterrupt
        self._is_held = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Signal handler: note the signal, and raise KeyboardInterrupt unless signals are deferred."""
        del number, frame
        self._has_come = True
        if not self._is_held:
            self._is_held = True
            raise KeyboardInterrupt
