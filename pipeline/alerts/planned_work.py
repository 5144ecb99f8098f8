"""The planned work that an alert sender knows from the topic of notes, and the lines that it holds; kept as parts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote

from tocsin.pipeline.incidents.held_lines import HeldLines
from tocsin.pipeline.incidents.maintenance import KEPT_AFTER_END_NS, MaintenanceBook
from tocsin.schemas.operator_notes import Maintenance
from tocsin.schemas.operator_requests import NoteTaken, decode_taken, encode_taken
from tocsin.schemas.records import JobKey
from tocsin.schemas.verdicts import Verdict

_WORK: Final = "work/"
_HELD: Final = "held_by_work"


class PlannedWork:
    """Says of which verdicts nobody is told, and gives their lines back when the work ends.

    Attributes:
        book: the planned work.
    """

    def __init__(self) -> None:
        """Start without work."""
        self.book = MaintenanceBook(self._leaf_of)
        self._held = HeldLines(self.book)
        self._taken: dict[str, NoteTaken] = {}
        self._leaves: dict[tuple[str, str], str] = {}
        """Cluster and host -> the leaf switch under work behind which the host stands."""
        self._changes: dict[str, bytes | None] = {}
        self._held_kept = b"[]"

    def _leaf_of(self, job: JobKey, host: str) -> str:
        """Return the leaf switch of a host if there is work on it, "" for none."""
        return self._leaves.get((job.cluster, host), "")

    def take(self, taken: NoteTaken, now_ns: int) -> None:
        """Take a note; judgements are left out."""
        if not isinstance(taken.note, Maintenance):
            return
        known = self._taken.get(taken.note.maintenance_id)
        is_old = known is not None and known.note.ts_ns > taken.note.ts_ns
        if is_old or taken.note.end_ns < now_ns - KEPT_AFTER_END_NS or not self.book.take(taken.note):
            return
        self._taken[taken.note.maintenance_id] = taken
        self._changes[_name_of(taken.note)] = encode_taken(taken)
        self._forget(now_ns)

    def _forget(self, now_ns: int) -> None:
        """Forget the work that ended an hour ago, and note which hosts stand behind which leaf switch."""
        self.book.forget_before(now_ns - KEPT_AFTER_END_NS)
        known = {work.maintenance_id for work in self.book.works()}
        for name in self._taken.keys() - known:
            self._changes[_WORK + quote(name, safe="")] = None
            del self._taken[name]
        self._leaves = {
            (one.note.cluster, host): one.note.target.name
            for one in self._taken.values()
            if isinstance(one.note, Maintenance)
            for host in one.hosts
        }

    def silence(self, verdict: Verdict, now_ns: int) -> str:
        """Return the named reason for which nobody is told of a verdict at a time, "" for none."""
        return self.book.silence(verdict, now_ns)

    def released(self, verdicts: Sequence[Verdict], now_ns: int) -> list[Verdict]:
        """Take the lines of one look; return those that work held until now and covers no more."""
        return self._held.on_verdicts(verdicts, now_ns)

    def changes(self) -> dict[str, bytes | None]:
        """Return the parts that changed since the last call; None: the part is gone."""
        changes, self._changes = self._changes, {}
        held = json.dumps(self._held.to_state()).encode()
        if held != self._held_kept:
            changes[_HELD] = self._held_kept = held
        return changes

    def load(self, state: Mapping[str, bytes], now_ns: int) -> None:
        """Take the parts of a state into a fresh object; other parts are left out.

        Raises:
            SchemaError: a part is damaged.
        """
        for name, data in state.items():
            if name.startswith(_WORK):
                self.take(decode_taken(data), now_ns)
                kept = self._changes.pop(name, None)
                if kept is None:
                    self._changes[name] = None  # ended long ago
        self._held_kept = state.get(_HELD, b"[]")
        self._held.load_state(json.loads(self._held_kept))


def _name_of(work: Maintenance) -> str:
    """Return the name of a work's part."""
    return _WORK + quote(work.maintenance_id, safe="")
