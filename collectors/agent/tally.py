"""What the agent's core counts."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

log = logging.getLogger(__name__)

MAX_TEXTS: Final = 32
"""So many different texts of a reason are logged: a flood of one hides no other."""


@dataclass(slots=True)
class Tally:
    """Counters since start, by label."""

    datagrams: Counter[str] = field(default_factory=Counter)
    dead_letters: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    _said: dict[str, set[str]] = field(default_factory=dict)

    def dead_letter(self, reason: str, text: str) -> None:
        """Count a message that is not as agreed; each text is logged once."""
        self.dead_letters[reason] += 1
        said = self._said.setdefault(reason, set())
        if text not in said and len(said) < MAX_TEXTS:
            said.add(text)
            log.warning("dead letter", extra={"reason": reason, "error": text})
