"""The work of ``tocsin controller``: the fleet views of all clusters, and the notes of people.

It reads the topics of verdicts, of hosts' events and of people's requests.

Time is event time: that of the ticks on the topic ``events``, of the partition that is furthest behind.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.pipeline.identity.operator_check import OperatorChecker
from tocsin.pipeline.incidents.fleet.config import FleetConfig
from tocsin.pipeline.incidents.fleet.intake import fleet_families, tell_records
from tocsin.pipeline.incidents.fleet.view import FleetView
from tocsin.pipeline.kafka.consumer_api import Message
from tocsin.pipeline.kafka.operator_notes import OperatorNotes
from tocsin.pipeline.kafka.topic_sink import Check
from tocsin.pipeline.runtime.flink.identity import StreamIdentity
from tocsin.pipeline.runtime.flink.outputs import Output, verdict_output
from tocsin.schemas.cloudevents import decode_verdict
from tocsin.schemas.covers import Cover, covers_between, encode_cover
from tocsin.schemas.errors import DecodeError, IdentityError, SchemaError, SnapshotError
from tocsin.schemas.formats.prometheus_text import Family, Sample
from tocsin.schemas.kafka.topics import COVERED, EVENTS, OPERATOR_NOTES, VERDICTS, path_key
from tocsin.schemas.records import NS_PER_SECOND, JobRecord, ModelAnnouncement, Tick
from tocsin.schemas.verdicts import Verdict
from tocsin.schemas.wire.codec import decode

_LOG = logging.getLogger("tocsin.fleet")
_EVENTS_BACK_SECONDS: Final = 600.0
_MAX_HELD: Final = 200_000
_AHEAD_NS: Final = 3600 * NS_PER_SECOND
"""A record this far ahead of all ticks is not held for its time to come."""
_VIEW: Final = "fleet/"
_CLOCK: Final = "clock"
_PART: Final = "fleet"


class _Held(NamedTuple):
    """A message whose time has not come yet: its time, its place in order, its bytes and what they say."""

    ts_ns: int
    order: int
    value: bytes
    what: JobRecord | Verdict


class FleetWork:
    """An ``ActiveWork``: verdicts and events of hosts in, the fleet's own verdict lines and what they cover out.

    Attributes:
        inputs: see ``ActiveWork``.
        views: cluster -> its view.
        refused: reason -> number of messages that were left out.
    """

    def __init__(
        self,
        config: FleetConfig | None = None,
        identity: StreamIdentity | None = None,
        check: Check | None = None,
        *,
        is_from_beginning: bool = False,
        operators: OperatorChecker | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Start without clusters.

        Args:
            config: settings of each view; None: the defaults.
            identity: checks the signatures of hosts' records and signs own verdicts; None: neither.
            check: checks the signatures of verdicts; None: every writer of the topic is trusted.
            is_from_beginning: whether the very first start reads all events that the topic holds.
            operators: checks who signed a person's request; None: every writer of the topic is trusted.
            clock_ns: Unix time in nanoseconds; only the records that close incidents are stamped with it.
        """
        self.inputs: Mapping[str, float | None] = {
            VERDICTS: None,
            EVENTS: None if is_from_beginning else _EVENTS_BACK_SECONDS,
            OPERATOR_NOTES: None,
        }
        self._config = config or FleetConfig()
        self._identity = identity or StreamIdentity()
        self._check = check
        self._operators = operators
        self._clock_ns = clock_ns
        self.refused: Counter[str] = Counter()
        self._reset({}, 1)

    def _reset(self, state: Mapping[str, bytes], partition_count: int) -> None:
        self.views: dict[str, FleetView] = {}
        self.notes = OperatorNotes(self._emit, self._view, self.views, self._operators)
        self._partition_count = partition_count
        self._ticks: dict[int, int] = {}
        self._now_ns = 0
        self._held: list[_Held] = []
        self._held_count = 0
        self._outputs: list[Output] = []
        self._kept = {name: hash(data) for name, data in state.items()}
        self._covers: dict[str, Mapping[str, str]] = {}

    def begin(self, state: Mapping[str, bytes], partition_counts: Mapping[str, int]) -> None:
        """See ``ActiveWork.begin``; a view that cannot be read begins anew."""
        self._reset(state, partition_counts[EVENTS])
        for name, data in state.items():
            if not name.startswith(_VIEW):
                continue
            view = FleetView(self._config, unquote(name.removeprefix(_VIEW)))
            try:
                view.restore({_PART: data})
            except SnapshotError as error:
                words = {"cluster": view.cluster, "error": str(error)}
                _LOG.error("the fleet's state cannot be used: it begins anew", extra=words)
                continue
            self.views[view.cluster] = view
            self._covers[view.cluster] = view.covers()
        if _CLOCK in state:
            kept = unpack_state(state, _CLOCK)
            self._now_ns = kept["now_ns"]
            self._ticks = {index: ns for index, ns in map(tuple, kept["ticks"]) if index < self._partition_count}
            for text, is_verdict in kept["held"]:
                value = text.encode("latin-1")
                what = decode_verdict(value) if is_verdict else decode(value)
                if not isinstance(what, Tick | ModelAnnouncement):
                    self._hold(value, what)
        self.notes.restore(state, self._now_ns)
        if self._identity.guard is not None:
            self._identity.guard.refresh()

    def _emit(self, output: Output) -> None:
        """Keep a message to write, signed if there is a key."""
        self._outputs.append(self._identity.signed(output))

    def _view(self, cluster: str) -> FleetView:
        """Return the view of a cluster; a new cluster gets one."""
        if cluster not in self.views:
            self.views[cluster] = FleetView(self._config, cluster)
        return self.views[cluster]

    def take(self, messages: Sequence[Message]) -> None:
        """See ``ActiveWork.take``."""
        for message in messages:
            try:
                self._read(message)
            except (SchemaError, IdentityError) as error:
                self.refused[error.reason] += 1
        if self._is_time_known():
            self._advance(min(self._ticks.values()))
        for message in messages:  # after the verdicts of the same moment, which they may be about
            if _name_of(message) == OPERATOR_NOTES:
                self.notes.take(message)
        self.notes.close_due(max(self._ticks.values(), default=0), self._clock_ns())

    def _advance(self, now_ns: int) -> None:
        """Bring all views to a time, second by second where something was said."""
        while self._now_ns < now_ns:
            step_ns = now_ns
            if self._held:
                step_ns = min(now_ns, -(-self._held[0].ts_ns // NS_PER_SECOND) * NS_PER_SECOND)
            self._now_ns = max(self._now_ns, step_ns)
            self._tell()
            self._on_time()

    def _is_time_known(self) -> bool:
        """Return whether each partition of the events has had a tick."""
        return len(self._ticks) >= self._partition_count

    def _read(self, message: Message) -> None:
        """Read one message: a tick moves the time, all else is held until its time; requests are left to others.

        Raises:
            SchemaError: it cannot be read.
            IdentityError: its signature is missing or wrong.
        """
        topic = _name_of(message)
        if topic == OPERATOR_NOTES:
            return
        if message.value is None:
            raise DecodeError("the message has no value")
        if topic == VERDICTS:
            verdict = decode_verdict(message.value)
            if self._check is not None:
                self._check(message.value, message.signature, verdict.detected_ns)
            self.notes.told(verdict)
            self._hold(message.value, verdict)
            return
        record = decode(message.value)
        if isinstance(record, Tick):
            self._ticks[message.partition_index] = max(self._ticks.get(message.partition_index, 0), record.ts_ns)
        elif not isinstance(record, ModelAnnouncement):
            self._identity.checked(record, message.value)
            self._hold(message.value, record)

    def _hold(self, value: bytes, what: JobRecord | Verdict) -> None:
        """Keep a record or verdict until its time; one from the far future, or one too many, is left out."""
        ts_ns = what.detected_ns if isinstance(what, Verdict) else what.ts_ns
        if self._ticks and ts_ns > max(self._ticks.values()) + _AHEAD_NS:
            self.refused["from_the_future"] += 1
            return
        self._held_count += 1
        heapq.heappush(self._held, _Held(ts_ns, self._held_count, value, what))
        if len(self._held) > _MAX_HELD:  # a partition without ticks: nobody judges what is in it
            heapq.heappop(self._held)
            self.refused["held_too_many"] += 1

    def _tell(self) -> None:
        """Give the records and verdicts whose time has come to the views of their clusters."""
        records: dict[str, list[JobRecord]] = {}
        verdicts: dict[str, list[Verdict]] = {}
        while self._held and self._held[0].ts_ns <= self._now_ns:
            one = heapq.heappop(self._held).what
            if isinstance(one, Verdict):
                verdicts.setdefault(one.job.cluster, []).append(one)
            else:
                self.notes.heard(one.job, self._now_ns)
                records.setdefault(one.job.cluster, []).append(one)
        for cluster in sorted({*records, *verdicts}):
            view = self._view(cluster)
            tell_records(view, records.get(cluster, ()), self._now_ns)
            view.on_verdicts(verdicts.get(cluster, ()), self._now_ns)

    def _on_time(self) -> None:
        """Let all views look at the time, and keep what they say."""
        self.notes.on_time(self._now_ns)
        for cluster, view in self.views.items():
            self._outputs += [self._identity.signed(verdict_output(line)) for line in view.on_time(self._now_ns)]
            covers, before = view.covers(), self._covers.get(cluster, {})
            if covers == before:
                continue
            for cover in covers_between(cluster, before, covers, self._now_ns):
                self._outputs.append(self._identity.signed(covered_output(cover)))
            self._covers[cluster] = covers

    def is_due(self) -> bool:
        """See ``ActiveWork.is_due``: a line waits."""
        return bool(self._outputs)

    def outputs(self) -> list[Output]:
        """See ``ActiveWork.outputs``."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def changes(self) -> dict[str, bytes | None]:
        """See ``ActiveWork.changes``."""
        state = {f"{_VIEW}{quote(name, safe='')}": view.snapshot()[_PART] for name, view in self.views.items()}
        held = [[one.value.decode("latin-1"), isinstance(one.what, Verdict)] for one in sorted(self._held)]
        ticks = [list(pair) for pair in self._ticks.items()]
        state[_CLOCK] = pack_state({"now_ns": self._now_ns, "ticks": ticks, "held": held})
        state |= self.notes.snapshot()
        changed: dict[str, bytes | None] = {
            name: data for name, data in state.items() if hash(data) != self._kept.get(name)
        }
        changed |= self.notes.changes()
        self._kept = {name: hash(data) for name, data in state.items()}
        return changed

    def committed(self) -> None:
        """See ``ActiveWork.committed``; a revoked credential counts no more from here on."""
        if self._identity.guard is not None:
            self._identity.guard.refresh()

    def finish(self) -> None:
        """See ``ActiveWork.finish``: nothing goes on beside."""

    def end(self) -> None:
        """See ``ActiveWork.end``."""
        self._reset({}, 1)

    def families(self) -> list[Family]:
        """See ``ActiveWork.families``."""
        refused = tuple(Sample({"reason": name}, count) for name, count in sorted(dict(self.refused).items()))
        at = self._now_ns / NS_PER_SECOND
        return [
            Family("tocsin_controller_refused_total", "counter", "Messages left out, by reason.", refused),
            Family("tocsin_controller_event_time_seconds", "gauge", "Event time; 0: stands by.", (Sample({}, at),)),
            *self.notes.families(),
            *fleet_families(dict(self.views)),
        ]


def _name_of(message: Message) -> str:
    """Return the topic of a message without prefix."""
    return message.topic.rpartition(".")[2]


def covered_output(cover: Cover) -> Output:
    """Return the message that says which fleet incident stands for a verdict."""
    return Output(COVERED, path_key(cover.cluster, cover.verdict_id), encode_cover(cover), {})
