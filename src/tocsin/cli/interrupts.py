"""Signals that end a command, held back while an end would do harm."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, Final, Self

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Ctrl-C, SIGTERM and SIGHUP as **one** ``KeyboardInterrupt``; held back from the beginning, until ``release``.

    What comes after the first one does nothing: it finds the cleaning up at work. A signal that was ignored
    before (``nohup``) stays so.
    """

    def __init__(self) -> None:
        """Change nothing yet."""
        self._before: dict[signal.Signals, Any] = {}
        self._is_held = True
        self._has_come = False

    def __enter__(self) -> Self:
        """Take the signals."""
        for number in _ENDING:
            before = signal.getsignal(number)
            if before != signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Give them back."""
        for number, before in self._before.items():
            signal.signal(number, before)

    def release(self) -> None:
        """Let the next one through.

        Raises:
            KeyboardInterrupt: one has come meanwhile.
        """
        if self._has_come:
            raise KeyboardInterrupt
        self._is_held = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._has_come = True
        if not self._is_held:
            self._is_held = True
            raise KeyboardInterrupt
