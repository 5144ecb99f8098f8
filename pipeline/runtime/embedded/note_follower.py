"""Planned work and judgements of verdicts, as people tell them on the control socket; kept over restarts."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.pipeline.incidents.feedback import KEPT_NS, FeedbackBook
from tocsin.pipeline.incidents.held_lines import HeldLines, parts_of
from tocsin.pipeline.incidents.maintenance import KEPT_AFTER_END_NS, MaintenanceBook, MaintenanceReason
from tocsin.pipeline.runtime.embedded.control_socket import ACTOR, Handler, Message
from tocsin.pipeline.runtime.embedded.note_desk import NoteDesk, refused, shown_work
from tocsin.pipeline.runtime.embedded.note_journal import FILE_NAME, NoteJournal
from tocsin.pipeline.runtime.embedded.note_places import KnownPlaces, KnownVerdicts
from tocsin.pipeline.runtime.embedded.operator_requests import allow_operators
from tocsin.pipeline.runtime.embedded.store_writer import Write
from tocsin.pipeline.runtime.embedded.supervised_thread import SupervisedThread
from tocsin.schemas.formats.prometheus_text import Family, Sample
from tocsin.schemas.operator_notes import Feedback, OperatorNote, note_object
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Verdict

if TYPE_CHECKING:
    from tocsin.pipeline.runtime.embedded.fleet_follower import FleetFollower
    from tocsin.pipeline.runtime.embedded.note_places import Query
    from tocsin.pipeline.runtime.embedded.service import EngineService

_LOG = logging.getLogger("tocsin.notes")
_PRUNE_NS: Final = 3600 * NS_PER_SECOND
_TOLD_AGAIN: Final = 5000
"""How many judgements are told again at a start."""
_PART: Final = "verdicts"
Listener = Callable[[OperatorNote], None]


class NoteFollower:
    """Takes notes of people, keeps them on the disk, and gives them to those who act by them.

    Attributes:
        name: ``notes``.
        book: the planned work; any thread may ask it.
        released: lines of this tick's verdicts that planned work covers no more, for followers after this one; they
            were published and stored before.
        listeners: each gets all kept notes at the start, and each new one once it is on the disk, from any thread.
    """

    name = "notes"

    def __init__(
        self, journal: NoteJournal, places: KnownPlaces, verdicts: KnownVerdicts, now_ns: Callable[[], int]
    ) -> None:
        """Read the kept notes.

        Args:
            journal: keeps the notes.
            places: knows hosts, leaf switches and jobs.
            verdicts: knows the verdicts that were told.
            now_ns: the engine's clock.

        Raises:
            EngineError: the file of notes cannot be used.
        """
        self._journal = journal
        self._verdicts = verdicts
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._feedback = FeedbackBook()
        self._pruned_ns = 0
        self.book = MaintenanceBook(places.leaf_of)
        self._desk = NoteDesk(self.book, places, verdicts)
        self.released: Sequence[Verdict] = ()
        self._held = HeldLines(self.book)
        self.listeners: list[Listener] = []
        for note in journal.read():
            self._remember(note)

    def on_verdicts(self, verdicts: Sequence[Verdict], now_ns: int) -> Sequence[Verdict]:
        """Remember which verdicts are told, and note what planned work releases; return none."""
        self._verdicts.take(verdicts)
        self.released = self._held.on_verdicts(verdicts, now_ns)
        return ()

    def start(self) -> None:
        """Tell the listeners the kept notes."""
        self.tell_again()

    def tell_again(self) -> None:
        """Tell the listeners all remembered work and the newest judgements."""
        for note in self._kept()[-(_TOLD_AGAIN + self.book.config.kept_count) :]:
            self._tell(note)

    def close(self) -> None:
        """Do nothing: each note is on the disk already."""

    def threads(self) -> Sequence[SupervisedThread]:
        """Return no threads: those of the control socket do the work."""
        return ()

    def status(self) -> Mapping[str, Any]:
        """Return how much work goes on and is planned, and how many judgements are remembered."""
        return {**self._counts(), "feedback": len(self._feedback.latest())}

    def families(self) -> Sequence[Family]:
        """Return the metrics: planned work by state."""
        samples = tuple(Sample({"state": state}, count) for state, count in self._counts().items())
        return [Family("tocsin_maintenance", "gauge", "Work on hosts, leaf switches and jobs.", samples)]

    def handlers(self) -> Mapping[str, Handler]:
        """Return the requests ``maintenance``, ``maintenance_list``, ``maintenance_end`` and ``feedback``."""
        return {
            "maintenance": self._plan,
            "maintenance_list": self._list,
            "maintenance_end": self._end,
            "feedback": self._judge,
        }

    def snapshot(self) -> dict[str, bytes]:
        """Return the verdicts that were told and those that are held; the notes have a file of their own."""
        return {_PART: pack_state({"told": self._verdicts.to_state(), "held": self._held.to_state()})}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace the verdicts that were told, and those that are held, by those of a snapshot."""
        state = parts_of(unpack_state(parts, _PART) if _PART in parts else [])
        self._verdicts.load_state(state["told"])
        self._held.load_state(state["held"])

    def _plan(self, request: Message) -> Message:
        """Plan work: ``target kind cluster for_seconds begin_ns reason`` in, the work out."""
        now_ns = self._now_ns()
        work = self._desk.plan(request, str(request[ACTOR]), now_ns)
        with self._lock:
            self._desk.check_room(now_ns)
            self._keep(work)
        return shown_work(work, now_ns)

    def _list(self, request: Message) -> Message:  # noqa: ARG002  # the handler's form
        """Return the work that is planned, goes on, or ended within the last hour."""
        now_ns = self._now_ns()
        works = (one for one in self.book.works() if one.end_ns >= now_ns - KEPT_AFTER_END_NS)
        return {"works": [shown_work(one, now_ns) for one in works]}

    def _end(self, request: Message) -> Message:
        """End work now: ``id``, or its beginning, in; the work out."""
        now_ns = self._now_ns()
        with self._lock:
            work = self._desk.end(request, str(request[ACTOR]), now_ns)
            self._keep(work)
        return shown_work(work, now_ns)

    def _judge(self, request: Message) -> Message:
        """Judge a verdict: ``id is_true note`` in, the judgement out."""
        said = self._desk.judge(request, str(request[ACTOR]), self._now_ns())
        with self._lock:
            self._keep(said)
        return note_object(said)

    def _keep(self, note: OperatorNote) -> None:
        """Put a note on the disk, remember it, and tell it; raise ``EngineRefusedError`` where the disk refuses."""
        try:
            if note.ts_ns - self._pruned_ns >= _PRUNE_NS:
                self._prune(note.ts_ns)
            self._journal.append(note, self._kept())
        except OSError as error:
            _LOG.error("a note cannot be kept", extra={"error": str(error)})
            raise refused(MaintenanceReason.NOT_KEPT, error.strerror or str(error)) from error
        self._remember(note)
        told = {name: value for name, value in note_object(note).items() if name != "kind"}
        _LOG.info("noted", extra={"note": told})
        self._tell(note)

    def _prune(self, now_ns: int) -> None:
        """Forget old notes, on the disk too."""
        self.book.forget_before(now_ns - KEPT_AFTER_END_NS)
        self._feedback.forget_before(now_ns - KEPT_NS)
        self._journal.replace(self._kept())
        self._pruned_ns = now_ns

    def _remember(self, note: OperatorNote) -> None:
        """Take a note into the memory."""
        if isinstance(note, Feedback):
            self._feedback.take(note)
        else:
            self.book.take(note)

    def _tell(self, note: OperatorNote) -> None:
        """Give a note to all listeners."""
        for listener in self.listeners:
            listener(note)

    def _kept(self) -> list[OperatorNote]:
        """Return all remembered notes: judgements first, then work, each in order."""
        return [*self._feedback.latest(), *self.book.works()]

    def _counts(self) -> dict[str, int]:
        """Return how much work goes on, and how much is planned for later."""
        now_ns, works = self._now_ns(), self.book.works()
        return {"on": sum(one.is_on(now_ns) for one in works), "planned": sum(one.begin_ns > now_ns for one in works)}


def attach_notes(service: EngineService, folder: Path, fleet: FleetFollower, query: Query) -> NoteFollower:
    """Attach what takes people's notes to an engine that has not started, and return it.

    Attach it after the fleet view, and before what tells people.

    Args:
        service: the engine.
        folder: folder of the file of notes.
        fleet: the fleet view; it gets each note.
        query: ``Store.query`` of the engine's store, for verdicts of earlier days.

    Raises:
        EngineError: the file of notes cannot be used.
    """
    places = KnownPlaces(service.engine, fleet)
    verdicts = KnownVerdicts(service.standing_verdicts, query)
    follower = NoteFollower(NoteJournal(folder / FILE_NAME), places, verdicts, service.time.now_ns)
    follower.listeners.append(fleet.take_note)
    follower.tell_again()  # also here: the seconds that a start judges again come before ``start``
    follower.listeners.append(lambda note: service.writer.put(Write(notes=(note,))))  # rows: at ``start`` at first
    service.memory.proposals.maintenance = follower.book
    service.attach(follower)
    allow_operators(service, follower.handlers())
    return follower
