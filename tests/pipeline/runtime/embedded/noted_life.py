"""An engine's life with the fleet view and what takes people's notes."""

from __future__ import annotations

from typing import Any

from tests.pipeline.runtime.embedded.restarts import Life
from tocsin.pipeline.runtime.embedded.fleet_follower import attach_fleet
from tocsin.pipeline.runtime.embedded.note_follower import attach_notes
from tocsin.pipeline.stores.base import ActionChange


class NotedLife(Life):
    """Attach it as ``tocsin serve`` does; the database knows no verdicts of earlier days."""

    def attached(self) -> None:
        self.fleet = attach_fleet(self.service, self.folder)
        self.notes = attach_notes(self.service, self.folder, self.fleet, lambda _sql, _fmt: b"")

    def plan(self, **told: object) -> dict[str, Any]:
        """Plan work on host n3 for an hour, or as told."""
        return self.client.call(
            "maintenance", **{"target": "n3", "for_seconds": 3600, "reason": "new cable", "kind": None, **told}
        )

    def works(self) -> list[dict[str, Any]]:
        works: list[dict[str, Any]] = self.client.call("maintenance_list")["works"]
        return works

    def newest_actions(self) -> list[ActionChange]:
        """Return the newest change of each action, in the order of the updates that proposed them."""
        return sorted(self.store.actions_of(list(self.incidents())), key=lambda one: one.action.verdict_update)
