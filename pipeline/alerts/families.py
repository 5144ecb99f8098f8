"""Metrics of the alerts, the same in both runtimes: what was sent, what waits, what is told, and what is wrong."""

from __future__ import annotations

from collections import Counter
from typing import Final

from tocsin.pipeline.alerts.queue import AlertQueue
from tocsin.pipeline.alerts.router import AlertRouter
from tocsin.pipeline.alerts.sender import AlertSender
from tocsin.schemas.formats.prometheus_text import Family, Sample
from tocsin.schemas.records import NS_PER_SECOND

TOLD: Final = "told"
"""State of a standing incident that people were told of."""
UNTOLD: Final = "untold"
"""State of a standing incident that nobody was told of."""


def untold_counts(router: AlertRouter, sender: AlertSender, queue: AlertQueue) -> dict[str, int]:
    """Return named reason -> how many standing incidents nobody was told of for it."""
    found = Counter(router.standing_untold())
    lost = {name: why for name, why in sender.lost().items() if router.is_standing(name)}
    found.update(why for name, why in lost.items() if not queue.is_told(name))
    return dict(sorted(found.items()))


def alert_families(router: AlertRouter, sender: AlertSender, queue: AlertQueue, now_ns: int) -> list[Family]:
    """Return the metrics at a time.

    Args:
        router: decides what is told.
        sender: sends it.
        queue: what waits.
        now_ns: the present time.
    """
    names = sender.receivers
    sent = tuple(Sample({"receiver": one, "outcome": what}, n) for (one, what), n in sorted(sender.outcomes().items()))
    counts, oldest = queue.waiting_counts(), queue.oldest_waiting_ns()
    waiting = tuple(Sample({"receiver": name}, counts.get(name, 0)) for name in names)
    ages = tuple(
        Sample({"receiver": name}, max(0.0, (now_ns - oldest.get(name, now_ns)) / NS_PER_SECOND)) for name in names
    )
    troubles = tuple(Sample({"receiver": name, "reason": why}, 1) for name, why in sender.troubles().items())
    untold = untold_counts(router, sender, queue)
    states = (
        Sample({"state": TOLD, "reason": ""}, queue.told_count()),
        *(Sample({"state": UNTOLD, "reason": why}, count) for why, count in untold.items()),
    )
    return [
        Family("tocsin_alerts_sent_total", "counter", "Notices sent or tried, by receiver and outcome.", sent),
        Family("tocsin_alerts_waiting", "gauge", "Notices that wait for a receiver.", waiting),
        Family("tocsin_alerts_oldest_waiting_seconds", "gauge", "Age of the oldest notice that waits.", ages),
        Family("tocsin_alerts_trouble", "gauge", "1: the receiver's last delivery failed, by reason.", troubles),
        Family("tocsin_alerts_incidents", "gauge", "Standing incidents, told by route, or untold and why.", states),
    ]
