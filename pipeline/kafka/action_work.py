"""The controller of actions over Kafka, as part of the work of ``tocsin controller``.

Verdicts, states of jobs, notes and signed messages about actions in; signed actions out. What it decides, its state
and the places up to which it read become visible in one transaction. So a death at any moment neither loses nor doubles
an action, and nothing is decided again that was decided.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tocsin.pipeline.actions.controller import ActionController
from tocsin.pipeline.actions.policy.heard_codes import concerns_policy
from tocsin.pipeline.actions.reasons import ActionReason
from tocsin.pipeline.identity.action_records import ActionRecordSigner
from tocsin.pipeline.identity.action_signatures import AckChecker, ActionSigner
from tocsin.pipeline.kafka.action_facts import StatusFacts
from tocsin.pipeline.kafka.consumer_api import Message
from tocsin.pipeline.kafka.told_actions import ToldActions
from tocsin.pipeline.kafka.topic_sink import Check
from tocsin.pipeline.runtime.flink.outputs import Output
from tocsin.pipeline.stores.report_codec import decode_status
from tocsin.schemas.action_codec import encode_action
from tocsin.schemas.action_events import JobFacts, MachineFacts
from tocsin.schemas.actions import Action
from tocsin.schemas.cloudevents import decode_verdict
from tocsin.schemas.errors import DecodeError, IdentityError, SchemaError
from tocsin.schemas.formats.prometheus_text import Family, Sample
from tocsin.schemas.kafka.topics import (
    ACTION_ACKS,
    ACTIONS,
    DEAD_LETTER,
    EVENTS,
    JOB_STATUS,
    NOTES_TAKEN,
    ORIGIN_HEADERS,
    VERDICTS,
    path_key,
)
from tocsin.schemas.operator_notes import Feedback, Maintenance
from tocsin.schemas.operator_requests import decode_taken
from tocsin.schemas.records import NS_PER_SECOND, Event, Record, Tick
from tocsin.schemas.signatures import SIGNATURE_HEADER
from tocsin.schemas.verdicts import VerdictState
from tocsin.schemas.wire.codec import Kind, decode, peek

_LOG = logging.getLogger("tocsin.actions")
_OLD_NS: Final = 30 * NS_PER_SECOND
"""A message that is older shows that what others said meanwhile is still to be read."""
_SETTLE_NS: Final = 5 * NS_PER_SECOND
"""How long heartbeats do not count after the start, and after an old message."""
_STEP_NS: Final = NS_PER_SECOND
_BACK_SECONDS: Final = 60.0
_AGELESS: Final = frozenset({JOB_STATUS, EVENTS})
"""Topics of which an old message says nothing of what people and executors said."""
_DETAIL_CHARACTERS: Final = 2000
_ORDER: Final = (NOTES_TAKEN, ACTION_ACKS, JOB_STATUS, EVENTS, VERDICTS)
"""In which order the messages of one look are taken: what people and executors said comes before what is new."""
_STANDING: Final = frozenset({VerdictState.OPEN, VerdictState.CONFIRMED})


@dataclass(frozen=True, slots=True)
class ActionParties:
    """With what the controller proves itself, and whom it believes.

    Attributes:
        signer: signs actions; None: they are unsigned, and executors refuse them.
        checker: returns what checks executors, people and others, with the credentials of now.
        check: checks the signatures of verdicts, states of jobs and notes; None: every writer is believed.
        check_record: checks the signature of an agent's record, and raises ``IdentityError``.
    """

    signer: ActionSigner | None
    checker: Callable[[], AckChecker]
    check: Check | None = None
    check_record: Callable[[Record, bytes], object] = lambda _record, _value: None


def _no_facts() -> Iterable[MachineFacts | JobFacts]:
    return ()


class ActionWork:
    """An ``ActiveWork``: verdicts and what is said about actions in, actions out.

    Attributes:
        inputs: see ``ActiveWork``.
        controller: the controller of the present turn.
        counters: reason -> number of messages that were left out before the controller saw them.
    """

    def __init__(
        self,
        make: Callable[[], ActionController],
        parties: ActionParties,
        told: Callable[[], Iterable[MachineFacts | JobFacts]] = _no_facts,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Start without actions.

        Args:
            make: returns a controller without state.
            parties: with what it proves itself, and whom it believes.
            told: returns what agents and ranks told of machines and jobs, with any time.
            clock_ns: Unix time in nanoseconds.
        """
        self.inputs: Mapping[str, float | None] = {
            VERDICTS: None,
            JOB_STATUS: _BACK_SECONDS,
            EVENTS: _BACK_SECONDS,
            ACTION_ACKS: None,
            NOTES_TAKEN: None,
        }
        self._make = make
        self._parties = parties
        self._told = told
        self._clock_ns = clock_ns
        self.counters: Counter[str] = Counter()
        self._kinds: Counter[tuple[str, str]] = Counter()
        self._reset({})

    def _reset(self, state: Mapping[str, bytes]) -> None:
        self.controller = self._make()
        self._facts = StatusFacts(self.controller.config.quiet_step_count)
        self._outputs: list[Output] = []
        self._kept = {name: hash(data) for name, data in state.items()}
        signer = self._parties.signer
        records = None if signer is None else ActionRecordSigner(signer.credential).follow(signer.key_file)
        self._told_actions = ToldActions(records)
        self._tick_ns = 0
        self._settled_ns = 0
        self._stepped_ns = 0
        self._shown: tuple[Action, ...] = ()

    def begin(self, state: Mapping[str, bytes], partition_counts: Mapping[str, int]) -> None:  # noqa: ARG002
        """See ``ActiveWork.begin``: each turn is a new epoch, in which all live actions are published again.

        Raises:
            SnapshotError: the state cannot be read. It is not begun anew: who forgets what was done does it twice.
        """
        self._reset(state)
        now_ns = self._clock_ns()
        if state:
            self.controller.restore(state)
        self._settled_ns = now_ns + _SETTLE_NS
        self._emit(self.controller.begin_epoch(self.controller.epoch + 1, now_ns))

    def take(self, messages: Sequence[Message]) -> None:
        """See ``ActiveWork.take``."""
        now_ns = self._clock_ns()
        own = [one for one in messages if _name_of(one) in self.inputs]
        checker = self._parties.checker() if any(_name_of(one) == ACTION_ACKS for one in own) else None
        for message in sorted(own, key=lambda one: _ORDER.index(_name_of(one))):  # stable: each topic in its order
            try:
                self._read(message, checker, now_ns)
            except (SchemaError, IdentityError) as error:
                self._refuse(message, error)
        self._outputs += self._told_actions.due(self._tick_ns, now_ns)
        if now_ns - self._stepped_ns >= _STEP_NS:
            self._stepped_ns = now_ns
            for fact in self._facts.due(self._told(), now_ns, with_heartbeats=now_ns >= self._settled_ns):
                self._emit(self.controller.on_event(fact, now_ns))
            self._emit(self.controller.on_time(now_ns))
            self._shown = self.controller.actions()

    def _read(self, message: Message, checker: AckChecker | None, now_ns: int) -> None:
        """Take one message.

        Raises:
            SchemaError: it cannot be read.
            IdentityError: its signature is missing or wrong, or its signer may not say that.
        """
        value, topic = message.value, _name_of(message)
        if value is None:
            raise DecodeError("the message has no value")
        if topic not in _AGELESS and 0 < message.timestamp_ns < now_ns - _OLD_NS:
            self._settled_ns = now_ns + _SETTLE_NS
        if topic == ACTION_ACKS:
            assert checker is not None, "made where one of the messages is such a one"  # noqa: S101
            told = checker.admit(value, message.signature, now_ns)
            found, left_out = self.controller.on_told(told, now_ns)
            self._emit(found)
            for one in left_out:
                self._letter(message, one.reason.value, one.what)
            return
        if topic == EVENTS:
            self._read_record(value, now_ns)
            return
        if self._parties.check is not None:
            self._parties.check(value, message.signature, message.timestamp_ns)
        self._read_engine(topic, value, now_ns)

    def _read_engine(self, topic: str, value: bytes, now_ns: int) -> None:
        """Take a note, the state of an attempt or a verdict; raise ``SchemaError`` if it cannot be read."""
        if topic == NOTES_TAKEN:
            note = decode_taken(value).note
            if isinstance(note, Feedback | Maintenance):
                self._emit(self.controller.on_event(note, now_ns))
        elif topic == JOB_STATUS:
            self._facts.take(decode_status(value))
        else:
            verdict = decode_verdict(value)
            if verdict.state in _STANDING and verdict.expires_ns <= now_ns:
                self._facts.quiet.on_verdict(verdict)
                self.counters[ActionReason.VERDICT_STALE.value] += 1  # what it asked for once is not begun now
                return
            self._facts.quiet.on_verdict(verdict)
            self._emit(self.controller.on_verdict(verdict, now_ns))

    def _read_record(self, value: bytes, now_ns: int) -> None:
        """Take a record of an agent; of those the controller hears events of hardware. Ticks tell how far the job is.

        Raises:
            SchemaError: it cannot be read.
            IdentityError: its signature is missing or wrong.
        """
        if peek(value).kind not in (Kind.EVENT, Kind.TICK):
            return
        record = decode(value)
        if isinstance(record, Tick):
            self._tick_ns = max(self._tick_ns, record.ts_ns)
        if isinstance(record, Event) and concerns_policy(record):
            self._parties.check_record(record, value)
            self._facts.quiet.on_sign(record.job.cluster, record.host)
            self._emit(self.controller.on_hardware(record, now_ns))

    def _emit(self, actions: Iterable[Action]) -> None:
        """Keep changes of actions to write, signed; those that start a job again are told the job, too."""
        actions = list(actions)
        if not self.controller.config.is_dry_run:
            self._told_actions.add(actions)
        for one in actions:
            value = encode_action(one)
            signer = self._parties.signer
            headers = {} if signer is None else {SIGNATURE_HEADER: signer.header(value)}
            key = path_key(one.target.job.cluster, one.action_id)
            self._outputs.append(Output(ACTIONS, key, value, headers))
            self._kinds[one.kind.value, one.state.value] += 1

    def _refuse(self, message: Message, error: SchemaError | IdentityError) -> None:
        """Count a message without effect; one about actions becomes a dead letter, others are left to their readers."""
        self.counters[error.reason] += 1
        if _name_of(message) != ACTION_ACKS:
            return
        self._letter(message, error.reason, str(error))
        _LOG.warning("a message about an action is refused", extra={"reason": error.reason, "detail": str(error)})

    def _letter(self, message: Message, reason: str, detail: str) -> None:
        """Make a dead letter of a message about actions."""
        where = (ACTION_ACKS, str(message.partition_index), str(message.offset_count))
        words = (reason, *where, detail[:_DETAIL_CHARACTERS])
        headers = {name: word.encode("utf-8", "replace") for name, word in zip(ORIGIN_HEADERS, words, strict=True)}
        self._outputs.append(Output(DEAD_LETTER, message.key or b"", message.value or b"", headers))

    def is_due(self) -> bool:
        """See ``ActiveWork.is_due``: a change of an action waits."""
        return bool(self._outputs)

    def changes(self) -> dict[str, bytes | None]:
        """See ``ActiveWork.changes``."""
        state = self.controller.snapshot()
        changed: dict[str, bytes | None] = {n: data for n, data in state.items() if hash(data) != self._kept.get(n)}
        changed |= {name: None for name in self._kept if name not in state}
        self._kept = {name: hash(data) for name, data in state.items()}
        return changed

    def outputs(self) -> list[Output]:
        """See ``ActiveWork.outputs``."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def committed(self) -> None:
        """See ``ActiveWork.committed``."""
        self._shown = self.controller.actions()

    def finish(self) -> None:
        """See ``ActiveWork.finish``: nothing goes on beside."""

    def end(self) -> None:
        """See ``ActiveWork.end``."""
        self._reset({})

    def families(self) -> list[Family]:
        """See ``ActiveWork.families``: actions by state, their changes, and what had no effect."""
        states = Counter((one.kind.value, one.state.value) for one in self._shown)
        left_out = Counter(dict(self.counters)) + Counter(dict(self.controller.left_out))
        reasons = tuple(Sample({"reason": name}, count) for name, count in sorted(left_out.items()))
        return [
            Family("tocsin_actions", "gauge", "Actions that are remembered, by kind and state.", _samples(states)),
            Family(
                "tocsin_action_changes_total",
                "counter",
                "Changes of actions, by kind and new state.",
                _samples(dict(self._kinds)),
            ),
            Family("tocsin_action_messages_left_out_total", "counter", "Messages without effect, by reason.", reasons),
        ]


def _samples(counts: Mapping[tuple[str, str], int]) -> tuple[Sample, ...]:
    return tuple(Sample({"kind": kind, "state": state}, n) for (kind, state), n in sorted(counts.items()))


def _name_of(message: Message) -> str:
    """Return the topic of a message without prefix."""
    return message.topic.rpartition(".")[2]
