"""The work of ``tocsin alerts run``: tell people about the verdicts on a topic, by the routes of a file.

What is told, what waits and what was told is part of the state. A notice is sent after it is committed that it is being
sent; that it was sent is committed afterwards.
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tocsin.pipeline.alerts.mirrored import MirroredAlerts
from tocsin.pipeline.alerts.notice import Adapter
from tocsin.pipeline.alerts.planned_work import PlannedWork
from tocsin.pipeline.alerts.routes import RouteConfig
from tocsin.pipeline.kafka.consumer_api import Message
from tocsin.pipeline.kafka.topic_sink import Check
from tocsin.pipeline.runtime.flink.identity import StreamIdentity
from tocsin.pipeline.runtime.flink.outputs import Output
from tocsin.pipeline.stores.alert_codec import encode_alert
from tocsin.pipeline.stores.alert_sent import AlertSent
from tocsin.schemas.actions import Action
from tocsin.schemas.cloudevents import decode_verdict, encode_verdict
from tocsin.schemas.covers import Cover, decode_cover
from tocsin.schemas.errors import DecodeError, IdentityError, SchemaError
from tocsin.schemas.formats.prometheus_text import Family, Sample
from tocsin.schemas.kafka.topics import ACTIONS, ALERTS_SENT, COVERED, NOTES_TAKEN, VERDICTS, job_key, path_key
from tocsin.schemas.operator_requests import decode_taken
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import ActionKind, Verdict

_BACK_SECONDS: Final = 3600.0
_CANARY_NS: Final = 600 * NS_PER_SECOND
"""A canary that does not come for so long, after others came, withholds the watchdog's notice."""
_HELD: Final = "held"
_REMARKS: Final = "remarks"
_COVER: Final = "covered/"


ReadAction = Callable[[bytes, "bytes | None", int], Action]
"""Function (value, signature, present time) -> the action; raises ``IdentityError`` or ``SchemaError``."""


@dataclass(frozen=True, slots=True)
class AlertWorkConfig:
    """Settings.

    Attributes:
        routes: the routes file.
        hold_seconds: how long a line waits for the controller's word that a fleet incident stands for it.
        read_action: reads what people are to know of actions; None: nothing is carried out, so nobody is told.
    """

    routes: RouteConfig
    hold_seconds: float = 3.0
    read_action: ReadAction | None = None


class AlertWork:
    """An ``ActiveWork``: verdicts in, notices to receivers and rows of what was sent out.

    Attributes:
        inputs: see ``ActiveWork``.
        refused: reason -> number of messages that were left out.
    """

    def __init__(
        self,
        config: AlertWorkConfig,
        make_adapters: Callable[[], Mapping[str, Adapter]],
        identity: StreamIdentity | None = None,
        check: Check | None = None,
        *,
        clock_ns: Callable[[], int] = time.time_ns,
        has_threads: bool = True,
    ) -> None:
        """Keep the settings; ``begin`` starts.

        Args:
            config: settings.
            make_adapters: returns name of a receiver -> its adapter, each time the process becomes active.
            identity: signs the rows of what was sent; None: they are not signed.
            check: checks the signatures of verdicts; None: every writer of the topic is trusted.
            clock_ns: Unix time in nanoseconds.
            has_threads: whether a thread sends for each receiver; tests call ``send_once``.
        """
        acting = {} if config.read_action is None else {ACTIONS: _BACK_SECONDS}
        self.inputs: Mapping[str, float | None] = {VERDICTS: _BACK_SECONDS, COVERED: None, NOTES_TAKEN: None, **acting}
        self._read_action = config.read_action
        self.refused: Counter[str] = Counter()
        self._config = config
        self._make_adapters = make_adapters
        self._identity = identity or StreamIdentity()
        self._check = check
        self._clock_ns = clock_ns
        self._has_threads = has_threads
        self._active: MirroredAlerts | None = None
        self._work = PlannedWork()
        self._canary_ns = 0
        self._held: deque[tuple[int, Verdict]] = deque()
        self._held_kept = b"[]"
        self._remarks: list[tuple[int, str, str]] = []
        """What is to be told of actions: when it came, verdict id, sentence."""
        self._remarks_kept = b"[]"
        self._covered: dict[str, str] = {}
        self._cover_changes: dict[str, bytes | None] = {}
        self._row_count = 0

    def begin(self, state: Mapping[str, bytes], partition_counts: Mapping[str, int]) -> None:  # noqa: ARG002
        """See ``ActiveWork.begin``."""
        now_ns = self._clock_ns()
        self._canary_ns = 0
        self._held.clear()
        self._held_kept = state.get(_HELD, b"[]")
        for text in json.loads(self._held_kept):
            self._held.append((now_ns, decode_verdict(text.encode())))
        self._remarks_kept = state.get(_REMARKS, b"[]")
        self._remarks = [(now_ns, name, text) for name, text in json.loads(self._remarks_kept)]
        self._covered = {name: data.decode() for name, data in state.items() if name.startswith(_COVER)}
        self._cover_changes = {}
        self._work = PlannedWork()
        self._work.load(state, now_ns)
        adapters, silence = self._make_adapters(), self._work.silence
        self._active = MirroredAlerts(self._config.routes, adapters, state, now_ns, self._covered_by, silence)
        if self._has_threads:
            self._active.start(self._clock_ns)

    def _covered_by(self, verdict: Verdict) -> str:
        """Return the fleet incident that stands for a verdict, "": none does."""
        return self._covered.get(_cover_name(verdict.job.cluster, verdict.verdict_id), "")

    def take(self, messages: Sequence[Message]) -> None:
        """See ``ActiveWork.take``."""
        now_ns = self._clock_ns()
        for message in messages:
            try:
                self._read(message, now_ns)
            except (SchemaError, IdentityError) as error:
                self.refused[error.reason] += 1
        old_ns = now_ns - round(self._config.hold_seconds * NS_PER_SECOND)
        due = []
        while self._held and self._held[0][0] <= old_ns:
            due.append(self._held.popleft()[1])
        is_withheld = bool(self._canary_ns) and now_ns - self._canary_ns > _CANARY_NS
        due += self._work.released(due, now_ns)
        # twice the time of a verdict: the incident of a verdict that came just after it must be told first
        ripe = sum(1 for at_ns, _, _ in self._remarks if at_ns <= 2 * old_ns - now_ns)
        remarks, self._remarks = [one[1:] for one in self._remarks[:ripe]], self._remarks[ripe:]
        self._the_active().tell(due, now_ns, has_watchdog=not is_withheld, remarks=remarks)

    def _read(self, message: Message, now_ns: int) -> None:
        """Read one message: a verdict is held, a cover or planned work is noted.

        Raises:
            SchemaError: it cannot be read.
            IdentityError: its signature is missing or wrong.
        """
        if message.value is None:
            raise DecodeError("the message has no value")
        topic = message.topic.rpartition(".")[2]
        if topic == ACTIONS and self._read_action is not None:
            action = self._read_action(message.value, message.signature, now_ns)
            if action.kind is ActionKind.NOTIFY:
                self._remarks.append((now_ns, action.verdict_id, action.detail or action.reason))
            return
        if topic == NOTES_TAKEN:
            if self._check is not None:
                self._check(message.value, message.signature, message.timestamp_ns)
            self._work.take(decode_taken(message.value), now_ns)
            return
        if topic == COVERED:
            if self._check is not None:
                self._check(message.value, message.signature, message.timestamp_ns)
            self._take_cover(decode_cover(message.value))
            return
        verdict = decode_verdict(message.value)
        if self._check is not None:
            self._check(message.value, message.signature, verdict.detected_ns)
        if verdict.reason == Reason.CANARY.value:
            self._canary_ns = now_ns
        else:
            self._held.append((now_ns, verdict))

    def _take_cover(self, cover: Cover) -> None:
        """Note which fleet incident stands for a verdict."""
        name = _cover_name(cover.cluster, cover.verdict_id)
        self._covered.pop(name, None)
        if cover.incident_id:
            self._covered[name] = cover.incident_id
        self._cover_changes[name] = cover.incident_id.encode() if cover.incident_id else None

    def _the_active(self) -> MirroredAlerts:
        """Return what is there while the process is active."""
        assert self._active is not None, "begin comes first"  # noqa: S101
        return self._active

    def is_due(self) -> bool:
        """See ``ActiveWork.is_due``: the queue changed, a row of what was sent waits, or a thread that is to send."""
        active = self._the_active()
        return bool(active.sent) or active.mirror.has_changes() or active.gate.is_awaited

    def changes(self) -> dict[str, bytes | None]:
        """See ``ActiveWork.changes``."""
        active = self._the_active()
        with active.sender.noting:  # a row and its change are written together
            active.gate.begin()
            self._row_count = len(active.sent)
            changes = {**active.mirror.changes(), **self._cover_changes, **self._work.changes()}
        self._cover_changes = {}
        held = json.dumps([encode_verdict(verdict).decode() for _, verdict in self._held]).encode()
        if held != self._held_kept:
            changes[_HELD] = self._held_kept = held
        remarks = json.dumps([one[1:] for one in self._remarks]).encode()
        if remarks != self._remarks_kept:
            changes[_REMARKS] = self._remarks_kept = remarks
        return changes

    def outputs(self) -> list[Output]:
        """See ``ActiveWork.outputs``: rows of what was sent."""
        sent = self._the_active().sent
        return [self._row(sent.popleft()) for _ in range(self._row_count)]

    def _row(self, alert: AlertSent) -> Output:
        """Return the message of a row."""
        return self._identity.signed(Output(ALERTS_SENT, job_key(alert.job), encode_alert(alert), {}))

    def committed(self) -> None:
        """See ``ActiveWork.committed``."""
        self._the_active().gate.done()

    def finish(self) -> None:
        """See ``ActiveWork.finish``: what is being sent is waited for."""
        self._the_active().stop()

    def end(self) -> None:
        """See ``ActiveWork.end``."""
        active, self._active = self._active, None
        if active is not None:
            active.close()

    def send_once(self) -> int:
        """Send what is due to all receivers; for tests without threads. Return how many notices were taken."""
        return self._the_active().sender.run_once(self._clock_ns())

    def families(self) -> list[Family]:
        """See ``ActiveWork.families``."""
        refused = tuple(Sample({"reason": name}, count) for name, count in sorted(dict(self.refused).items()))
        families = [Family("tocsin_alerts_refused_total", "counter", "Messages left out, by reason.", refused)]
        active = self._active
        return families if active is None else [*families, *active.families(self._clock_ns())]


def _cover_name(cluster: str, verdict_id: str) -> str:
    """Return the name of the part that says what stands for a verdict."""
    return _COVER + path_key(cluster, verdict_id).decode()
