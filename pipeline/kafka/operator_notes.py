"""People's notes over Kafka: requests are checked, answered, and become notes that all others read.

Requests come on ``operator-notes``, answers go to ``operator-answers``, notes that count to ``notes-taken``. A request
that nobody signed who may ask becomes a dead letter. What closes the incident of a job becomes a record among the
events of that job, with the operator's own signature, so that the job's operators judge it as any other record.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.pipeline.identity.operator_check import OperatorChecker, actor_of
from tocsin.pipeline.incidents.closing import close_event
from tocsin.pipeline.incidents.fleet.view import FleetView
from tocsin.pipeline.incidents.maintenance import MaintenanceBook
from tocsin.pipeline.kafka.closings import MOST_WAITING, Closing, Closings
from tocsin.pipeline.kafka.consumer_api import Message
from tocsin.pipeline.kafka.verdict_index import VerdictIndex
from tocsin.pipeline.runtime.embedded.close_handler import close_note, close_text
from tocsin.pipeline.runtime.embedded.control_socket import EngineRefusedError
from tocsin.pipeline.runtime.embedded.note_desk import NoteDesk, shown_work
from tocsin.pipeline.runtime.embedded.note_places import placed, target_of
from tocsin.pipeline.runtime.flink.outputs import Output
from tocsin.schemas.credentials import Credential
from tocsin.schemas.errors import IdentityError, SchemaError
from tocsin.schemas.formats.prometheus_text import Family, Sample
from tocsin.schemas.job_key import FLEET_JOB_ID, IDLE_JOB_ID, JobKey
from tocsin.schemas.kafka.topics import (
    DEAD_LETTER,
    NOTES_TAKEN,
    OPERATOR_ANSWERS,
    ORIGIN_HEADERS,
    path_key,
)
from tocsin.schemas.operator_notes import FEEDBACK, MAINTENANCE, Feedback, Maintenance, OperatorNote, note_object
from tocsin.schemas.operator_requests import (
    CLOSE,
    END,
    JUDGE,
    PLAN,
    NoteRefusal,
    NoteTaken,
    OperatorRequest,
    decode_request,
    decode_taken,
    encode_taken,
)
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Component, ComponentKind, Verdict

_LOG = logging.getLogger("tocsin.notes")
_PART: Final = "notes"
_FRESH_NS: Final = 600 * NS_PER_SECOND
"""How far a request's own time may be from the broker's; a copy that is older is refused by it."""
_SEEN_NS: Final = 2 * _FRESH_NS
"""How long the id of a request is remembered."""
_LEAVES_NS: Final = 10 * NS_PER_SECOND
"""Distance of two looks at which hosts stand behind a leaf switch under work."""
_HEARD_NS: Final = 3600 * NS_PER_SECOND
Answer = dict[str, Any]


class OperatorNotes:
    """The notes of all clusters; the process that drives it has a fleet view of each.

    Attributes:
        book: the planned work.
        counters: outcome -> number of requests.
    """

    def __init__(
        self,
        emit: Callable[[Output], None],
        view_of: Callable[[str], FleetView],
        views: Mapping[str, FleetView],
        checker: OperatorChecker | None = None,
    ) -> None:
        """Start without notes.

        Args:
            emit: takes each message to write.
            view_of: returns the fleet view of a cluster; a new cluster gets one.
            views: cluster -> its view.
            checker: checks who signed a request; None: nobody has to sign.
        """
        self._emit = emit
        self._view_of = view_of
        self._views = views
        self._checker = checker
        self.counters: Counter[str] = Counter()
        self.book = MaintenanceBook(self._leaf_of)
        self._verdicts = VerdictIndex()
        self._desk = NoteDesk(self.book, self, self._verdicts)
        self._hosts: dict[str, tuple[str, ...]] = {}
        """Id of a work on a leaf switch -> the hosts behind it, as told last."""
        self._looked_ns = 0
        self._seen: dict[str, int] = {}
        self._jobs: dict[tuple[str, str], int] = {}
        self._closings = Closings(lambda key_id: None if checker is None else checker.find(key_id))
        self._now_ns = 0

    # -- what is known by name -------------------------------------------------------------------------

    def _leaf_of(self, job: JobKey, host: str) -> str:
        """Return the leaf switch of a host, "": not known."""
        view = self._views.get(job.cluster)
        return "" if view is None else view.hosts.leaf_of(host)

    def target(self, kind: object, name: object, cluster: object) -> tuple[str, Component]:
        """See ``PlaceNames.target``."""
        jobs = {*self._jobs, *self._verdicts.jobs(self._now_ns)}
        known = {(at, Component(ComponentKind.JOB, job)) for at, job in jobs if job not in (IDLE_JOB_ID, FLEET_JOB_ID)}
        for at, view in self._views.items():
            for host, leaf in view.hosts.leaves().items():
                known |= placed(at, host, leaf)
        return target_of(known, kind, name, cluster)

    def heard(self, job: JobKey, now_ns: int) -> None:
        """Note that a job was heard of."""
        if job.job_id != IDLE_JOB_ID:
            self._jobs[job.cluster, job.job_id] = now_ns

    def told(self, verdict: Verdict) -> None:
        """Note a verdict line."""
        self._verdicts.take(verdict)

    # -- requests --------------------------------------------------------------------------------------

    def take(self, message: Message) -> None:
        """Take a message of the topic ``operator-notes``."""
        request = _readable(message.value)
        try:
            credential = self._proved(message)
            request = request or decode_request(message.value or b"")
            self._check_fresh(request, message)
        except (SchemaError, IdentityError, EngineRefusedError) as error:
            self._refuse(message, request, error)
            return
        self._seen[request.request_id] = message.timestamp_ns
        actor = f"unproven:{request.by}" if credential is None else actor_of(credential)
        try:
            answer = self._done(request, credential, actor, message.timestamp_ns)
        except (SchemaError, EngineRefusedError) as error:
            self._answer_no(request.request_id, error)
            return
        if answer is not None:
            self._answer(request.request_id, answer)

    def _proved(self, message: Message) -> Credential | None:
        """Return the credential that signed a message, None: nobody has to; raise ``IdentityError`` if it is wrong."""
        if self._checker is None:
            return None
        return self._checker.check(message.value or b"", message.signature, message.timestamp_ns)

    def _check_fresh(self, request: OperatorRequest, message: Message) -> None:
        """Raise ``EngineRefusedError`` for a copy of a request."""
        if request.request_id in self._seen:
            raise _refused(NoteRefusal.REPEATED, request.request_id)
        off_seconds = (message.timestamp_ns - request.ts_ns) / NS_PER_SECOND
        if abs(off_seconds) * NS_PER_SECOND > _FRESH_NS:
            raise _refused(NoteRefusal.STALE, f"ts_ns = {request.ts_ns}, {off_seconds:.0f} s before the broker's")
        if request.command not in (PLAN, END, JUDGE, CLOSE):
            raise _refused(NoteRefusal.UNKNOWN_COMMAND, f"{request.command[:80]!r}")

    def _done(self, request: OperatorRequest, credential: Credential | None, actor: str, now_ns: int) -> Answer | None:
        """Do what is asked, and return the answer; None: it is answered later."""
        if request.command == CLOSE:
            return self._close(request, credential, actor, now_ns)
        if request.command == JUDGE:
            said = self._desk.judge(request.values, actor, now_ns)
            self._keep(said)
            return note_object(said)
        if request.command == END:
            work = self._desk.end(request.values, actor, now_ns)
        else:
            work = self._desk.plan(request.values, actor, now_ns)
            self._desk.check_room(now_ns)
        self._keep(work)
        return shown_work(work, now_ns)

    def _keep(self, note: OperatorNote) -> None:
        """Take a note to heart, and tell it all others."""
        view = self._view_of(note.cluster)
        if isinstance(note, Feedback):
            view.on_feedback(note, self._now_ns or note.ts_ns)
            self._emit(taken_output(NoteTaken(note)))
        else:
            self.book.take(note)
            view.on_maintenance(note)
            self._tell_work(note)
        told = {name: value for name, value in note_object(note).items() if name != "kind"}
        _LOG.info("noted", extra={"note": told})

    def _tell_work(self, work: Maintenance) -> None:
        """Tell a work, of a leaf switch with the hosts behind it."""
        hosts = self._behind(work)
        if hosts:
            self._hosts[work.maintenance_id] = hosts
        self._emit(taken_output(NoteTaken(work, hosts)))

    def _behind(self, work: Maintenance) -> tuple[str, ...]:
        """Return the hosts behind the leaf switch of a work, sorted; nothing for other work."""
        view = self._views.get(work.cluster)
        if view is None or work.target.kind is not ComponentKind.LEAF:
            return ()
        return tuple(sorted(host for host, leaf in view.hosts.leaves().items() if leaf == work.target.name))

    # -- closing ---------------------------------------------------------------------------------------

    def _close(self, request: OperatorRequest, credential: Credential | None, actor: str, now_ns: int) -> Answer | None:
        """Close an incident: one of the fleet view at once, one of a job with a record among its events."""
        note, at_ns = close_note(request.values), self._now_ns or now_ns
        name, job = self._verdicts.standing(close_text(request.values, "id"), at_ns)
        if job.job_id in (FLEET_JOB_ID, IDLE_JOB_ID):
            idle = JobKey(job.cluster, IDLE_JOB_ID, job.attempt)
            self._view_of(job.cluster).on_host_events([close_event(idle, name, note, actor, at_ns)], at_ns)
            return {"verdict_id": name, "job": job.job_id, "actor": actor}
        if len(self._closings) >= MOST_WAITING:
            raise _refused(NoteRefusal.NO_TICKS, f"{len(self._closings)} requests wait")
        key_id, where = "" if credential is None else credential.key_id, (job.cluster, job.job_id, job.attempt)
        self._closings.add(Closing(request.request_id, name, *where, note, actor, key_id, now_ns))
        return None

    def close_due(self, newest_tick_ns: int, wall_ns: int) -> None:
        """Send the records that close incidents, unless they would come too late to be judged.

        Args:
            newest_tick_ns: the newest tick of the topic of events.
            wall_ns: the present time.
        """
        for one, record in self._closings.due(newest_tick_ns, wall_ns):
            if record is None:
                self._answer_no(one.request_id, _refused(NoteRefusal.NO_TICKS, one.verdict_id))
            else:
                self._emit(record)
                self._answer(one.request_id, {"verdict_id": one.verdict_id, "job": one.job_id, "actor": one.actor})

    # -- time, answers, state --------------------------------------------------------------------------

    def on_time(self, now_ns: int) -> None:
        """Look whether hosts moved to or from a leaf switch under work, and forget what is old."""
        self._now_ns = now_ns
        if now_ns - self._looked_ns < _LEAVES_NS:
            return
        self._looked_ns = now_ns
        for work in self.book.works():
            if work.end_ns > now_ns and self._behind(work) != self._hosts.get(work.maintenance_id, ()):
                self._hosts.pop(work.maintenance_id, None)
                self._tell_work(work)
        known = {work.maintenance_id for work in self.book.works()}
        self._hosts = {name: hosts for name, hosts in self._hosts.items() if name in known}
        self._seen = {name: ns for name, ns in self._seen.items() if now_ns - ns <= _SEEN_NS}
        self._jobs = {at: ns for at, ns in self._jobs.items() if now_ns - ns <= _HEARD_NS}

    def _answer(self, request_id: str, answer: Answer) -> None:
        """Answer a request that was done."""
        self.counters["taken"] += 1
        self._emit(answer_output(request_id, {"ok": True, **answer}))

    def _answer_no(self, request_id: str, error: SchemaError | IdentityError | EngineRefusedError) -> None:
        """Answer a request that was not done."""
        self.counters[error.reason] += 1
        self._emit(answer_output(request_id, {"ok": False, "reason": error.reason, "error": str(error)}))

    def _refuse(
        self,
        message: Message,
        request: OperatorRequest | None,
        error: SchemaError | IdentityError | EngineRefusedError,
    ) -> None:
        """Make a dead letter of a request, and answer it where it can be read and was not answered before."""
        where = (message.topic.rpartition(".")[2], str(message.partition_index), str(message.offset_count))
        words = (error.reason, *where, str(error)[:2000])
        headers = {name: word.encode("utf-8", "replace") for name, word in zip(ORIGIN_HEADERS, words, strict=True)}
        self._emit(Output(DEAD_LETTER, message.key or b"", message.value or b"", headers))
        _LOG.warning("a request is refused", extra={"reason": error.reason, "detail": str(error)})
        if request is not None and error.reason != NoteRefusal.REPEATED.value:
            self._answer_no(request.request_id, error)
        else:
            self.counters[error.reason] += 1

    def changes(self) -> dict[str, bytes | None]:
        """Return the parts of the verdicts that changed since the last call; all else is in ``snapshot``."""
        return self._verdicts.changes()

    def snapshot(self) -> dict[str, bytes]:
        """Return all but the verdicts, as one named part."""
        state = {
            "works": [
                encode_taken(NoteTaken(one, self._hosts.get(one.maintenance_id, ()))).decode()
                for one in self.book.works()
            ],
            "seen": self._seen,
            "jobs": sorted(self._jobs),
            "closing": self._closings.to_state(),
        }
        return {_PART: pack_state(state)}

    def restore(self, state: Mapping[str, bytes], now_ns: int) -> None:
        """Replace everything by the parts of a state.

        Args:
            state: the parts, others among them.
            now_ns: the time up to which the state reaches.

        Raises:
            SnapshotError: a part is damaged.
        """
        self._verdicts.load(state)
        self._now_ns = now_ns
        if _PART not in state:
            return
        kept = unpack_state(state, _PART)
        works = [decode_taken(text.encode()) for text in kept["works"]]
        self.book.replace(one.note for one in works if isinstance(one.note, Maintenance))
        self._hosts = {one.note.maintenance_id: one.hosts for one in works if isinstance(one.note, Maintenance)}
        self._seen = dict(kept["seen"])
        self._jobs = dict.fromkeys(kept["jobs"], now_ns)
        self._closings.load_state(kept["closing"])

    def families(self) -> list[Family]:
        """Return the metrics: requests by what became of them."""
        samples = tuple(Sample({"outcome": name}, count) for name, count in sorted(dict(self.counters).items()))
        return [Family("tocsin_operator_notes_total", "counter", "Requests of people, by outcome.", samples)]


def _readable(value: bytes | None) -> OperatorRequest | None:
    """Return the request of a message, None: it cannot be read."""
    try:
        return decode_request(value or b"")
    except SchemaError:
        return None


def answer_output(request_id: str, answer: Mapping[str, Any]) -> Output:
    """Return the message that answers a request."""
    value = json.dumps({"request": request_id, **answer}, ensure_ascii=False).encode("utf-8", "replace")
    return Output(OPERATOR_ANSWERS, request_id.encode(), value, {})


def taken_output(taken: NoteTaken) -> Output:
    """Return the message of a note that counts; a later one on the same thing takes its place."""
    note = taken.note
    kind, name = (FEEDBACK, note.verdict_id) if isinstance(note, Feedback) else (MAINTENANCE, note.maintenance_id)
    return Output(NOTES_TAKEN, path_key(note.cluster, kind, name), encode_taken(taken), {})


def _refused(reason: NoteRefusal, text: str) -> EngineRefusedError:
    """Return the error of a refused request."""
    return EngineRefusedError(f"{text}: {reason.meaning}", reason.value)
