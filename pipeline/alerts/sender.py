"""The sender: takes notices from the queue to the receivers, and tries again where one does not take them."""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tenacity import RetryCallState, Retrying
from tenacity.wait import wait_base, wait_exponential, wait_random

from tocsin.pipeline.alerts.notice import MISCONFIGURED, Adapter, DeliveryReason, DeliveryResult, NoticeKind
from tocsin.pipeline.alerts.queue import AlertQueue, QueuedNotice
from tocsin.pipeline.alerts.routes import GIVE_UP_SECONDS
from tocsin.pipeline.stores.alert_sent import AlertSent
from tocsin.schemas.records import NS_PER_SECOND

_LOG = logging.getLogger("tocsin.alerts")
_LONGEST_RETRY_AFTER_SECONDS: Final = 3600.0
_MOST_LOST: Final = 10_000


@dataclass(frozen=True, slots=True)
class SenderConfig:
    """Settings of the sender.

    Attributes:
        first_wait_seconds: wait after the first failure; it doubles with each further one.
        longest_wait_seconds: longest wait between two tries.
        misconfigured_wait_seconds: the same where a person must mend the routes file or a secret (``MISCONFIGURED``);
            a receiver whose alerts end by themselves is tried again before that.
        jitter_seconds: a random time up to this is added to each wait.
        give_up_after_seconds: route -> how long one of its notices is tried; the rest: ``GIVE_UP_SECONDS``.
        batch_count: most calls of one receiver's adapter in one run.
    """

    first_wait_seconds: float = 1.0
    longest_wait_seconds: float = 120.0
    misconfigured_wait_seconds: float = 600.0
    jitter_seconds: float = 1.0
    give_up_after_seconds: Mapping[str, float] = field(default_factory=dict)
    batch_count: int = 100


class AlertSender:
    """Sends what waits in a queue. Each receiver is served by itself, so that a dead one delays no other.

    Attributes:
        noting: held while it is noted how a notice ended; who holds it sees the row of a delivery and the queue's state
            either both or neither.
    """

    def __init__(
        self,
        queue: AlertQueue,
        adapters: Mapping[str, Adapter],
        config: SenderConfig | None = None,
        on_sent: Callable[[AlertSent], None] = lambda _row: None,
    ) -> None:
        """Prepare the sender.

        Args:
            queue: what waits.
            adapters: name of a receiver -> its adapter.
            config: settings; None: the defaults.
            on_sent: is given each delivery and each final failure, from the thread that sends; resends and the
                watchdog's are left out.
        """
        self._queue = queue
        self._adapters = adapters
        self._config = config or SenderConfig()
        self._on_sent = on_sent
        self._wait = self._waits_of(self._config.longest_wait_seconds)
        self._seldom = self._waits_of(self._config.misconfigured_wait_seconds)
        self._failures: Counter[str] = Counter()
        self._pause_until_ns: dict[str, int] = {}
        self.noting = threading.RLock()
        self._lock = threading.Lock()
        self._outcomes: Counter[tuple[str, str]] = Counter()
        self._troubles: dict[str, str] = {}
        self._lost: dict[str, str] = {}

    def _waits_of(self, longest_seconds: float) -> wait_base:
        """Return waits that double up to a longest one."""
        doubling = wait_exponential(multiplier=self._config.first_wait_seconds, max=longest_seconds)
        return doubling + wait_random(0, self._config.jitter_seconds)

    @property
    def receivers(self) -> list[str]:
        """Names of the receivers."""
        return sorted(self._adapters)

    def outcomes(self) -> dict[tuple[str, str], int]:
        """Return (receiver, outcome) -> how many notices."""
        with self._lock:
            return dict(self._outcomes)

    def troubles(self) -> dict[str, str]:
        """Return receiver -> how its last delivery failed, for those whose last one did."""
        with self._lock:
            return dict(sorted(self._troubles.items()))

    def lost(self) -> dict[str, str]:
        """Return id of an incident -> why people could not be told of it, for the last ``_MOST_LOST`` of them."""
        with self._lock:
            return dict(self._lost)

    def run_once(self, now_ns: int) -> int:
        """Send what is due to all receivers, one after the other; return how many notices were taken."""
        return sum(self.run_receiver(name, lambda: now_ns) for name in self.receivers)

    def run_receiver(self, receiver: str, clock_ns: Callable[[], int]) -> int:
        """Send what is due to one receiver; return how many notices it took.

        Args:
            receiver: name of the receiver.
            clock_ns: returns the present time.
        """
        adapter = self._adapters[receiver]
        taken = 0
        for _ in range(self._config.batch_count):
            now_ns = clock_ns()
            if now_ns < self._pause_until_ns.get(receiver, 0):
                break
            batch = self._queue.take(receiver, now_ns, adapter.max_batch_count)
            if not batch and adapter.resend_seconds is not None:
                before_ns = now_ns - int(adapter.resend_seconds * NS_PER_SECOND)
                batch = self._queue.resends(receiver, before_ns, adapter.max_batch_count)
            if not batch:
                break
            taken += self._send(receiver, adapter, batch, clock_ns)
        return taken

    def _send(self, receiver: str, adapter: Adapter, batch: Sequence[QueuedNotice], clock_ns: Callable[[], int]) -> int:
        """Send one batch and note how it ended; return how many notices were taken."""
        now_ns = clock_ns()
        result = self._result_of(adapter, batch, now_ns)
        now_ns = max(now_ns, clock_ns())
        if not (result.is_delivered or result.is_retryable) and len(batch) > 1:
            # one bad notice must not take the others with it
            return sum(self._send(receiver, adapter, [one], clock_ns) for one in batch)
        with self.noting:
            if result.is_delivered:
                self._failures[receiver] = 0
                self._report(batch, result, now_ns)
                self._queue.delivered(batch, result.references, now_ns)
                return len(batch)
            if result.is_retryable:
                self._failed(receiver, adapter, batch, result, now_ns)
            else:
                self._refused(batch, result, now_ns)
            return 0

    def _failed(
        self, receiver: str, adapter: Adapter, batch: Sequence[QueuedNotice], result: DeliveryResult, now_ns: int
    ) -> None:
        """Note that notices are tried again later, or given up where they were tried for too long."""
        self._failures[receiver] += 1
        pause_ns = now_ns + int(self._pause_seconds(receiver, adapter, result) * NS_PER_SECOND)
        self._pause_until_ns[receiver] = pause_ns
        over = [one for one in batch if not one.is_resend and self._is_too_old(one, now_ns)]
        detail = f"{result.reason.value}: {result.detail}" if result.detail else result.reason.value
        self._report(over, replace(result, reason=DeliveryReason.GAVE_UP, detail=detail), now_ns)
        self._queue.give_up(over, result.reason, now_ns)
        again = [one for one in batch if one not in over]
        # what a person must mend may be mended by a restart: then it is due at once
        due_ns = now_ns if result.reason in MISCONFIGURED else pause_ns
        self._queue.failed(again, result.reason, due_ns)
        self._report(again, result, now_ns)

    @staticmethod
    def _result_of(adapter: Adapter, batch: Sequence[QueuedNotice], now_ns: int) -> DeliveryResult:
        """Send a batch and return how it ended; what an adapter raises is a bad answer, told without its text."""
        try:
            return adapter.send([one.notice for one in batch], now_ns)
        except Exception as error:  # noqa: BLE001  # supervising; its text may hold a secret
            return DeliveryResult(DeliveryReason.BAD_ANSWER, f"the adapter raised {type(error).__name__}")

    def _is_too_old(self, one: QueuedNotice, now_ns: int) -> bool:
        """Return whether a notice was tried for as long as its route allows."""
        seconds = self._config.give_up_after_seconds.get(one.notice.route, GIVE_UP_SECONDS)
        return one.first_ns <= now_ns - int(seconds * NS_PER_SECOND)

    def _refused(self, batch: Sequence[QueuedNotice], result: DeliveryResult, now_ns: int) -> None:
        """Note that a receiver refuses a notice for good; one that it took before is sent again later."""
        self._report(batch, result, now_ns)
        if batch[0].is_resend:
            self._queue.delivered(batch, (), now_ns)
        else:
            self._queue.give_up(batch, result.reason, now_ns)

    def _pause_seconds(self, receiver: str, adapter: Adapter, result: DeliveryResult) -> float:
        """Return how long a receiver is left alone after a failure."""
        state = RetryCallState(Retrying(), None, (), {})
        state.attempt_number = self._failures[receiver]
        asked = min(result.retry_after_seconds or 0.0, _LONGEST_RETRY_AFTER_SECONDS)
        if result.reason not in MISCONFIGURED:
            return max(self._wait(state), asked)
        return max(min(self._seldom(state), adapter.resend_seconds or math.inf), asked)

    def _report(self, batch: Sequence[QueuedNotice], result: DeliveryResult, now_ns: int) -> None:
        """Count how notices ended, log failures, and give those that are not tried again to ``on_sent``."""
        for one in batch:
            with self._lock:
                self._outcomes[one.receiver, result.reason.value] += 1
                self._note_lost(one, result)
                if result.is_delivered:
                    self._troubles.pop(one.receiver, None)
                else:
                    self._troubles[one.receiver] = result.reason.value
            verdict = one.notice.verdict
            if not result.is_delivered:
                words = {"receiver": one.receiver, "reason": result.reason.value, "detail": result.detail}
                _LOG.warning("a notice was not delivered", extra={**words, "verdict_id": verdict.verdict_id})
            if not (result.is_retryable or one.is_resend or one.notice.kind is NoticeKind.WATCHDOG):
                row = _row_of(one, self._adapters[one.receiver].kind, result, now_ns)
                self._queue.keep_sent(row)
                self._on_sent(row)

    def _note_lost(self, one: QueuedNotice, result: DeliveryResult) -> None:
        """Note whether people could not be told of an incident at all; the lock is held."""
        name = one.notice.verdict.verdict_id
        if result.is_delivered:
            self._lost.pop(name, None)
        elif one.notice.kind is NoticeKind.FIRING and not (result.is_retryable or one.is_resend):
            self._lost[name] = result.reason.value
            while len(self._lost) > _MOST_LOST:
                del self._lost[next(iter(self._lost))]


def _row_of(one: QueuedNotice, receiver_kind: str, result: DeliveryResult, now_ns: int) -> AlertSent:
    """Return how a notice ended as it is stored."""
    notice = one.notice
    return AlertSent(
        job=notice.verdict.job,
        verdict_id=notice.verdict.verdict_id,
        verdict_update=notice.verdict.update,
        route=notice.route,
        receiver=one.receiver,
        receiver_kind=receiver_kind,
        kind=notice.kind.value,
        severity=notice.severity.value,
        outcome=result.reason.value,
        detail=result.detail,
        tries_count=one.try_count,
        made_ns=notice.made_ns,
        sent_ns=now_ns,
    )
