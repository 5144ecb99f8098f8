"""Counters of the agent's core."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

log = logging.getLogger(__name__)

MAX_TEXTS: Final = 32
"""Most different texts logged for one reason, so that a flood of one reason hides no other."""


@dataclass(slots=True)
class Tally:
    """Counters since start, by label: datagrams, dead letters, events."""

    datagrams: Counter[str] = field(default_factory=Counter)
    dead_letters: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    _logged_texts: dict[str, set[str]] = field(default_factory=dict)

    def dead_letter(self, reason: str, text: str) -> None:
        """Count an invalid message under its reason; each different text is logged once."""
        self.dead_letters[reason] += 1
        logged = self._logged_texts.setdefault(reason, set())
        if text not in logged and len(logged) < MAX_TEXTS:
            logged.add(text)
            log.warning("dead letter", extra={"reason": reason, "error": text})
