"""Requests of people become notes: what they mean, and whether they are allowed now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from tocsin.pipeline.incidents.maintenance import KEPT_AFTER_END_NS, MaintenanceBook, MaintenanceReason
from tocsin.pipeline.runtime.embedded.control_socket import EngineRefusedError
from tocsin.schemas.errors import FieldError
from tocsin.schemas.operator_notes import Feedback, Maintenance, check_note, maintenance_id_of, note_object
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Component
from tocsin.schemas.wire.validate import INT64_MAX, check_int, check_name

_CLOCK_SLACK_NS: Final = 60 * NS_PER_SECOND
"""How far the clocks of a person's shell and of the engine may differ."""
_MAX_NAMED_COUNT: Final = 8
Request = Mapping[str, Any]


class PlaceNames(Protocol):
    """Hosts, leaf switches and jobs by name."""

    def target(self, kind: object, name: object, cluster: object) -> tuple[str, Component]:
        """Return cluster and component that a person means; raise ``EngineRefusedError`` or ``FieldError``."""
        ...


class VerdictNames(Protocol):
    """Verdicts by id."""

    def find(self, wanted: str) -> tuple[str, str]:
        """Return id and cluster of the verdict that a beginning of an id means; raise ``EngineRefusedError``."""
        ...


class NoteDesk:
    """Makes notes of requests. It keeps nothing: who calls it gives the note to the book, and to all others."""

    def __init__(self, book: MaintenanceBook, places: PlaceNames, verdicts: VerdictNames) -> None:
        """Use these to look up what is meant.

        Args:
            book: the planned work.
            places: hosts, leaf switches and jobs.
            verdicts: the verdicts that were told.
        """
        self._book = book
        self._places = places
        self._verdicts = verdicts

    def plan(self, request: Request, actor: str, now_ns: int) -> Maintenance:
        """Return the work that a request plans: ``target kind cluster for_seconds begin_ns reason``.

        Args:
            request: the request.
            actor: who asks.
            now_ns: when.

        Raises:
            EngineRefusedError: the target is not known, or too much, too long, too far ahead, or in the past.
            FieldError: a value is none.
        """
        cluster, target = self._places.target(request.get("kind"), request.get("target"), request.get("cluster"))
        begin_ns = self._begin_of(request.get("begin_ns"), now_ns)
        seconds = check_int(request.get("for_seconds"), "for_seconds", 1, INT64_MAX // NS_PER_SECOND)
        if seconds > self._book.config.longest_seconds:
            raise refused(MaintenanceReason.TOO_LONG, f"for_seconds = {seconds}")
        reason = check_note(request.get("reason"), "reason")
        end_ns = begin_ns + seconds * NS_PER_SECOND
        name = maintenance_id_of(cluster, target, begin_ns, actor, now_ns)
        return Maintenance(name, cluster, target, begin_ns, end_ns, reason, actor, now_ns)

    def check_room(self, now_ns: int) -> None:
        """Check that one more work can be remembered.

        Raises:
            EngineRefusedError: there is no room.
        """
        unfinished_count = sum(one.end_ns >= now_ns - KEPT_AFTER_END_NS for one in self._book.works())
        if unfinished_count >= self._book.config.kept_count:
            raise refused(MaintenanceReason.TOO_MANY, f"{unfinished_count} works")

    def _begin_of(self, begin_ns: object, now_ns: int) -> int:
        """Return when work begins: now if no time is named; raise ``EngineRefusedError`` for the past or far ahead."""
        if begin_ns is None:
            return now_ns
        named_ns = check_int(begin_ns, "begin_ns", 0, INT64_MAX // 2)
        if named_ns < now_ns - _CLOCK_SLACK_NS:
            raise refused(MaintenanceReason.IN_THE_PAST, f"begin_ns = {named_ns}")
        if named_ns > now_ns + self._book.config.ahead_seconds * NS_PER_SECOND:
            raise refused(MaintenanceReason.TOO_FAR, f"begin_ns = {named_ns}")
        return max(named_ns, now_ns)

    def end(self, request: Request, actor: str, now_ns: int) -> Maintenance:
        """Return the word that ends a work now: ``id``, or its beginning.

        Raises:
            EngineRefusedError: no such work, or several.
            FieldError: the id is none.
        """
        wanted = check_name(request.get("id"), "id")
        found = [one for one in self._book.works() if one.maintenance_id.startswith(wanted) and one.end_ns > now_ns]
        if not found:
            raise refused(MaintenanceReason.NOT_FOUND, f"{wanted[:80]!r}")
        if len(found) > 1:
            several = ", ".join(sorted(one.maintenance_id for one in found)[:_MAX_NAMED_COUNT])
            raise refused(MaintenanceReason.AMBIGUOUS, f"{wanted[:80]!r} begins {several}")
        return self._book.ended(found[0], actor, now_ns)

    def judge(self, request: Request, actor: str, now_ns: int) -> Feedback:
        """Return the judgement of a request: ``id is_true note``.

        Raises:
            EngineRefusedError: no such verdict, or several.
            FieldError: a value is none.
            StoreError: the verdict has to be looked up in a database that cannot be asked.
        """
        is_true = request.get("is_true")
        if not isinstance(is_true, bool):
            raise FieldError("is_true", is_true, "true or false")
        note = check_note(request.get("note", ""), "note", empty=True)
        verdict_id, cluster = self._verdicts.find(check_name(request.get("id"), "id"))
        return Feedback(cluster, verdict_id, is_true, note, actor, now_ns)


def shown_work(work: Maintenance, now_ns: int) -> dict[str, Any]:
    """Return work as an answer: its JSON form and its state."""
    state = "on" if work.is_on(now_ns) else "planned" if work.begin_ns > now_ns else "over"
    return {**note_object(work), "state": state}


def refused(reason: MaintenanceReason, text: str) -> EngineRefusedError:
    """Return the error of a refused request."""
    return EngineRefusedError(f"{text}: {reason.meaning}", reason.value)
