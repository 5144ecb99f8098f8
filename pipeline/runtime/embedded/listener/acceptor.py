"""Accepts connections on the listener's socket, and pauses while the process has no file descriptor left."""

from __future__ import annotations

import errno
import selectors
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from tocsin.schemas.trouble_log import TroubleLog

_ACCEPTS_A_TURN: Final = 64
"""Connections that are accepted at once before connected peers get their turn."""
_PAUSE_SECONDS: Final = 1.0
_OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """The listening socket of an engine.

    Attributes:
        listener: the socket; a selector reports when connections wait.
    """

    def __init__(
        self,
        listener: socket.socket,
        selector: selectors.BaseSelector,
        troubles: TroubleLog,
        counters: Counter[str],
        clock: Callable[[], float],
    ) -> None:
        """Register the socket.

        Args:
            listener: a non-blocking socket that listens.
            selector: reports when connections wait.
            troubles: the listener's log.
            counters: where failures are counted.
            clock: monotonic seconds.
        """
        self.listener = listener
        self._selector = selector
        self._troubles = troubles
        self._counters = counters
        self._clock = clock
        self._paused_until: float | None = None
        selector.register(listener, selectors.EVENT_READ, None)

    def accept(self) -> Iterator[socket.socket]:
        """Accept waiting connections, one after the other; without file descriptors left, pause."""
        for _ in range(_ACCEPTS_A_TURN):
            try:
                peer, _ = self.listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._troubles.warn("accept failed", errno.errorcode.get(error.errno or 0, ""), error=str(error))
                self._counters["accept_failures"] += 1
                if error.errno in _OUT_OF_DESCRIPTORS:  # the same connection waits on: do not spin
                    self._selector.unregister(self.listener)
                    self._paused_until = self._clock() + _PAUSE_SECONDS
                return
            yield peer

    def resume(self, now: float) -> None:
        """Accept connections again when a pause is over.

        Args:
            now: monotonic seconds.
        """
        if self._paused_until is not None and now >= self._paused_until:
            self._paused_until = None
            self._selector.register(self.listener, selectors.EVENT_READ, None)
