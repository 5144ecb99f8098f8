"""How an executor exchanges with the controller over Kafka, in place of an engine's listener.

Signed actions are read from ``actions``, only those of committed transactions; signed messages are written to
``action-acks``. Signatures are made and checked by the executor, not here.
"""

from __future__ import annotations

import base64
import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kafka import TopicPartition

from tocsin.pipeline.kafka.client import CONNECT_SECONDS, consumer, kafka_errors, producer
from tocsin.pipeline.kafka.verdicts import RECONNECT_SECONDS, signature_in
from tocsin.schemas.errors import EngineError, FieldError
from tocsin.schemas.kafka.settings import KafkaSettings
from tocsin.schemas.kafka.topics import ACTION_ACKS, ACTIONS, topic_name
from tocsin.schemas.signatures import SIGNATURE_HEADER

EXCHANGE: Final = "executor_exchange"
"""The one request of executors."""
_READ_SECONDS: Final = 30.0
_POLL_MS: Final = 500
_COMMITTED: Final = "read_committed"


class ActionLine(NamedTuple):
    """One change of an action as it stands on the topic.

    Attributes:
        seq: place behind it: offset plus 1.
        value: the signed bytes.
        signature: the controller's signature, empty if there is none.
    """

    seq: int
    value: bytes
    signature: bytes


class KafkaExchange:
    """Fetches actions and sends messages; it connects at the first use, and anew after an error. For one thread."""

    def __init__(self, settings: KafkaSettings, prefix: str) -> None:
        """Prepare; nothing is connected yet.

        Args:
            settings: the Kafka cluster.
            prefix: prefix of the topics' names.
        """
        self._settings = settings
        self._place = TopicPartition(topic_name(ACTIONS, prefix), 0)
        self._acks = topic_name(ACTION_ACKS, prefix)
        self._open = contextlib.ExitStack()
        self._reader: Any = None
        self._writer: Any = None
        self._behind = (0, 0)
        """``seq`` of the last line that was read, and the reader's place behind it."""

    def fetch(self, after: int = 0) -> list[ActionLine]:
        """Return the newest change of each action that changed after a place, in order, up to the topic's present end.

        Args:
            after: ``seq`` of the last line that was read; 0: from the beginning.

        Raises:
            EngineError: the topic is missing, or the broker is away or refuses.
        """
        newest: dict[bytes, ActionLine] = {}
        for key, line in self._changes(after):
            newest.pop(key, None)
            newest[key] = line
        return list(newest.values())

    def changes(self) -> list[ActionLine]:
        """Return all changes that the compacted topic still has, in order.

        Raises:
            EngineError: the topic is missing, or the broker is away or refuses.
        """
        return [line for _, line in self._changes(0)]

    def _changes(self, after: int) -> list[tuple[bytes, ActionLine]]:
        """Return key and line of all changes behind a place, up to the topic's present end."""
        found: list[tuple[bytes, ActionLine]] = []
        with self._connected():
            end = self._reader.end_offsets([self._place])[self._place]
            begin = self._reader.beginning_offsets([self._place])[self._place]
            # a place beyond the end is one of a topic that was deleted: all is read again
            place = self._behind[1] if after and after == self._behind[0] else after
            self._reader.seek(self._place, begin if place > end else max(place, begin))
            until = time.monotonic() + _READ_SECONDS
            while self._reader.position(self._place) < end:
                for one in self._polled():
                    if one.key is not None and one.value is not None:
                        line = ActionLine(one.offset + 1, one.value, signature_in(one.headers) or b"")
                        found.append((one.key, line))
                if time.monotonic() > until:
                    raise EngineError(f"{self._place.topic} could not be read within {_READ_SECONDS:g} s")
            if found:  # behind them lie only marks of transactions, which need not be read again
                self._behind = found[-1][1].seq, self._reader.position(self._place)
        return found

    def send(self, messages: Sequence[tuple[bytes, bytes]], executor: str) -> None:
        """Write messages in order, and return once the broker has them.

        Args:
            messages: value and signature of each.
            executor: name of the speaker, the messages' key.

        Raises:
            EngineError: the broker is away or refuses; those before the failure may be written, and may come again.
        """
        with self._connected():
            for value, signature in messages:
                headers = [(SIGNATURE_HEADER, signature)] if signature else []
                self._writer.send(self._acks, value, key=executor.encode(), headers=headers).get(CONNECT_SECONDS)

    def call(self, cmd: str, **args: Any) -> dict[str, Any]:
        """Answer ``executor_exchange`` as an engine's listener does: ``executor``, ``after`` and ``messages`` in.

        Out: ``actions`` (``seq``, ``value``, ``signature``), ``seq``, and ``refused``, which is empty: what is refused
        becomes a dead letter later.

        Raises:
            FieldError: another request.
            EngineError: the broker is away or refuses.
        """
        if cmd != EXCHANGE:
            raise FieldError("cmd", cmd, EXCHANGE)
        after, messages = int(args.get("after", 0)), args.get("messages", ())
        self.send([(_bytes(one, "value"), _bytes(one, "signature")) for one in messages], str(args["executor"]))
        lines = self.fetch(after)
        shown = [{"seq": one.seq, "value": _text(one.value), "signature": _text(one.signature)} for one in lines]
        return {"actions": shown, "seq": lines[-1].seq if lines else after, "refused": []}

    def close(self) -> None:
        """Disconnect."""
        self._reader = self._writer = None
        self._behind = (0, 0)
        opened, self._open = self._open, contextlib.ExitStack()
        with contextlib.suppress(EngineError):
            opened.close()

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        """Connect if need be; after an error the next use connects anew."""
        try:
            with kafka_errors("exchange actions"):
                if self._reader is None:
                    self._connect()
                yield
        except EngineError:
            self.close()
            raise

    def _connect(self) -> None:
        options = {"reconnect_backoff_max_ms": round(RECONNECT_SECONDS * 1000)}
        reader = self._open.enter_context(consumer(self._settings, isolation_level=_COMMITTED, **options))
        for topic in (self._place.topic, self._acks):
            if not reader.partitions_for_topic(topic):
                raise EngineError(f"the topic {topic} is missing: run 'tocsin topics apply'")
        reader.assign([self._place])
        self._writer = self._open.enter_context(producer(self._settings, linger_ms=0, **options))
        self._reader = reader

    def _polled(self) -> list[Any]:
        return [one for records in self._reader.poll(timeout_ms=_POLL_MS).values() for one in records]


def _bytes(message: Mapping[str, str], name: str) -> bytes:
    return base64.b64decode(message[name], validate=True)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
