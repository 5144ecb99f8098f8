"""An executor that asks an engine for actions, once a second, and tells it what became of them.

An action counts only with the signature of a controller whose public key is known here. An engine that is away
changes nothing: what is to be said waits, and actions whose lease ends meanwhile are not begun.
"""

from __future__ import annotations

import base64
import json
import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

from tocsin.pipeline.actions.executors.cordons import CordonReader, CordonWatch
from tocsin.pipeline.actions.executors.core import ExecutorConfig, ExecutorCore
from tocsin.pipeline.actions.executors.signed_actions import SignedAction, SignedActions
from tocsin.pipeline.actions.executors.target import HandsOnFacts, ShowsProposals, TargetSystem, TellsFacts
from tocsin.pipeline.actions.executors.worker import ExecutorWorker
from tocsin.pipeline.identity.action_signatures import AckSigner
from tocsin.schemas.action_codec import encode_ack, encode_event
from tocsin.schemas.action_events import Ack, ActionEvent, ExecutorHeard
from tocsin.schemas.actions import Action
from tocsin.schemas.errors import EngineError, IdentityError, SchemaError, TargetError, TransportError
from tocsin.schemas.formats.prometheus_text import Family, Sample
from tocsin.schemas.records import NS_PER_SECOND

_LOG = logging.getLogger("tocsin.executor")
_HEARD_NS: Final = 15 * NS_PER_SECOND
"""Distance of two messages that the executor is alive; the controller takes it for dead after a minute."""
_CALL_BYTES: Final = 6_000
"""Most that the messages of one call have; the engine takes control messages of at most 8,192 bytes."""
_MOST_WAITING: Final = 10_000
"""Most messages that wait for an engine that is away; the oldest go first, and the core says what counts again."""
_MOST_PAGES: Final = 1_000
_FIELDS: Final = ("value", "signature")


class ExchangeTrouble(StrEnum):
    """Why something of an exchange has no effect; label of a metric and field of logs."""

    ENGINE_AWAY = "engine_away"
    """No engine answers, or it refuses the executor."""
    FORGED = "forged"
    """An action is unsigned, or not signed by a controller that is known here."""
    UNREADABLE = "unreadable"
    """What was signed, or the engine's answer, cannot be read."""
    NOT_TAKEN = "not_taken"
    """The engine refuses a message of the executor."""
    NO_FACTS = "no_facts"
    """The target does not answer what it says of its jobs, or it cannot be read."""
    FORGOTTEN = "forgotten"
    """Too many messages wait."""


class EngineChannel(Protocol):
    """Sends requests to an engine."""

    def call(self, cmd: str, **args: object) -> dict[str, Any]:
        """Send a request and return the answer.

        Raises:
            EngineError: no engine answers, or it refuses.
            IdentityError: whoever answers does not prove that it is the engine.
        """
        ...


class AdmitsActions(Protocol):
    """Decides which actions are believed."""

    def admit(self, value: bytes, header: bytes | None, now_ns: int) -> Action:
        """See ``ActionChecker.admit``."""
        ...


@dataclass(frozen=True, slots=True)
class ExecutorKeys:
    """With what an executor signs, and what it believes.

    Attributes:
        signer: signs messages; its credential's holder is the executor's name.
        checker: checks actions against the controllers' public keys, perhaps those that a file holds now.
    """

    signer: AckSigner
    checker: AdmitsActions


class ExecutorClient:
    """One executor: exchanges with an engine, drives the core, and does what is due on its target.

    Attributes:
        name: name of the executor.
        keys: with what it signs, and what it believes.
        signed: the actions as they were signed, for targets that check the signature themselves.
        troubles: kind -> how often.
        is_connected: whether the last exchange succeeded.
    """

    def __init__(
        self,
        configs: Sequence[ExecutorConfig],
        channel: EngineChannel,
        keys: ExecutorKeys,
        target: TargetSystem,
        clock_ns: Callable[[], int],
        signed: SignedActions | None = None,
    ) -> None:
        """Ask nothing yet.

        Args:
            configs: settings for each cluster; all of one name.
            channel: asks the engine.
            keys: with what it signs, and what it believes.
            target: where actions are done.
            clock_ns: returns the present time.
            signed: where the signed actions are kept, None: nobody else needs them.
        """
        self.name = configs[0].name
        self._configs = configs
        self._channel = channel
        self.keys = keys
        self._clock_ns = clock_ns
        self.signed = SignedActions() if signed is None else signed
        self._cores = [ExecutorCore(config) for config in configs]
        self._proposals = target if isinstance(target, ShowsProposals) else None
        self._tells = target if isinstance(target, TellsFacts) else None
        self._hands_on = target if isinstance(target, HandsOnFacts) else None
        self._workers = [ExecutorWorker(core, target, clock_ns, self._say) for core in self._cores]
        reader = target if isinstance(target, CordonReader) else None
        self._cordons = [] if reader is None else [CordonWatch(one.cluster, reader) for one in configs]
        self._waiting: deque[dict[str, str]] = deque()
        self._after = 0
        self._heard_ns = -_HEARD_NS
        self.troubles: Counter[ExchangeTrouble] = Counter()
        self._said: Counter[tuple[str, str]] = Counter()
        self.is_connected: bool | None = None

    def step(self) -> None:
        """Exchange with the engine, make what is due, and exchange again if there is something to say.

        Nothing is made while the engine is away: it may have taken an action back.
        """
        now_ns = self._clock_ns()
        if now_ns - self._heard_ns >= _HEARD_NS:
            self._heard_ns = now_ns
            for config in self._configs:
                kinds, hosts = tuple(sorted(config.kinds)), tuple(sorted(config.hosts))
                self._put(ExecutorHeard(config.cluster, self.name, kinds, now_ns, hosts))
        if not self.exchange():
            return
        if self._proposals is not None:
            self._proposals.on_time()
        for config in self._configs if self._tells is not None else ():
            for told in self._tells.facts(config.cluster) if self._tells is not None else ():
                self._put(told)
        self._hand_on_facts()
        for worker in self._workers:
            worker.work()
        for told in (told for watch in self._cordons for told in watch.look(self._clock_ns())):
            self._put(told)
        if self._waiting:
            self.exchange()

    def _hand_on_facts(self) -> None:
        """Let what the target itself signed wait for the next exchange, unchanged."""
        if self._hands_on is None:
            return
        try:
            for one in self._hands_on.signed_facts(self._clock_ns()):
                self._wait(one.value, one.signature)
        except TargetError as error:
            self._trouble(ExchangeTrouble.NO_FACTS, f"{error.reason}: {error}")

    def exchange(self) -> bool:
        """Send what waits and take what changed; return whether the engine answered."""
        newest: dict[str, SignedAction] = {}
        try:
            for _ in range(_MOST_PAGES):
                sent = self._next_messages()
                answer = self._channel.call(
                    "executor_exchange", executor=self.name, after=self._after, messages=list(sent)
                )
                for _ in sent:
                    self._waiting.popleft()
                is_new = self._take(answer, newest)
                if not is_new and not self._waiting:
                    break
        except (EngineError, TransportError) as error:
            self._on_absence(error)
            return False
        finally:
            for one in newest.values():
                self._tell_core(one)
        if not self.is_connected:
            _LOG.info("exchanges actions with the engine", extra={"executor": self.name})
        self.is_connected = True
        return True

    def _take(self, answer: Mapping[str, Any], newest: dict[str, SignedAction]) -> bool:
        """Take one page of an answer; return whether there were actions in it."""
        for reason in answer.get("refused", ()):
            self._trouble(ExchangeTrouble.NOT_TAKEN, str(reason))
        lines = answer.get("actions", ())
        for line in lines:
            found = self._checked(line)
            if found is not None:
                newest[found.action.action_id] = found
        seq = answer.get("seq")
        if isinstance(seq, int):
            self._after = seq
        return bool(lines)

    def _checked(self, line: Mapping[str, Any]) -> SignedAction | None:
        """Return a signed action that a known controller signed, None for anything else."""
        try:
            value, signature = (base64.b64decode(str(line.get(name, "")), validate=True) for name in _FIELDS)
            action = self.keys.checker.admit(value, signature or None, self._clock_ns())
        except IdentityError as error:
            self._trouble(ExchangeTrouble.FORGED, f"{error.reason}: {error}")
        except (SchemaError, ValueError) as error:
            self._trouble(ExchangeTrouble.UNREADABLE, str(error))
        else:
            return SignedAction(action, value, signature)
        return None

    def _tell_core(self, one: SignedAction) -> None:
        self.signed.put(one)
        is_known = one.action.target.job.cluster in {config.cluster for config in self._configs}
        if self._proposals is not None and is_known:
            self._proposals.on_action(one.action)
        for watch in self._cordons:
            watch.on_action(one.action)
        for core in self._cores:
            self._say(core.on_action(one.action, self._clock_ns()))

    def _on_absence(self, error: Exception) -> None:
        """Begin at the log's start when the engine is back: the core knows what it saw, and its log may be another."""
        self.troubles[ExchangeTrouble.ENGINE_AWAY] += 1
        self._after = 0
        if self.is_connected is not False:
            self.is_connected = False
            _LOG.warning(
                "the engine does not answer", extra={"reason": ExchangeTrouble.ENGINE_AWAY.value, "error": str(error)}
            )

    def _trouble(self, kind: ExchangeTrouble, detail: str) -> None:
        self.troubles[kind] += 1
        _LOG.warning("left out", extra={"reason": kind.value, "detail": detail[:300]})

    def _say(self, acks: list[Ack]) -> None:
        for ack in acks:
            self._said[ack.kind.value, ack.reason] += 1
            _LOG.info("says", extra={"said": ack.kind.value, "reason": ack.reason, "action": ack.action_id})
            self._put(ack)

    def _put(self, told: Ack | ActionEvent) -> None:
        """Sign a message and let it wait for the next exchange."""
        value = encode_ack(told) if isinstance(told, Ack) else encode_event(told)
        self._wait(value, self.keys.signer.header(value))

    def _wait(self, value: bytes, header: bytes) -> None:
        """Let a signed message wait for the next exchange."""
        if len(self._waiting) >= _MOST_WAITING:
            self._waiting.popleft()
            self.troubles[ExchangeTrouble.FORGOTTEN] += 1
        self._waiting.append(
            {"value": base64.b64encode(value).decode(), "signature": base64.b64encode(header).decode()}
        )

    def _next_messages(self) -> list[dict[str, str]]:
        """Return the messages of one call, at least one if any waits."""
        sent: list[dict[str, str]] = []
        size = 0
        for message in self._waiting:
            size += len(json.dumps(message))
            if sent and size > _CALL_BYTES:
                break
            sent.append(message)
        return sent

    def families(self) -> Sequence[Family]:
        """Return the metrics: whether the engine answers, what was said, and what has no effect.

        A replica that has not had its turn yet exchanged nothing, and says nothing of a connection.
        """
        said = tuple(Sample({"said": kind, "reason": reason}, n) for (kind, reason), n in sorted(self._said.items()))
        troubles = tuple(Sample({"reason": kind.value}, n) for kind, n in sorted(self.troubles.items()))
        counts: Counter[str] = Counter()
        for core in self._cores:
            counts.update({reason.value: count for reason, count in core.left_out.items()})
        left_out = tuple(Sample({"reason": reason}, n) for reason, n in sorted(counts.items()))
        connected = () if self.is_connected is None else (Sample({}, int(self.is_connected)),)
        return [
            Family("tocsin_executor_connected", "gauge", "1 if the engine answered last.", connected),
            Family("tocsin_executor_acks_total", "counter", "What the executor said of actions.", said),
            Family("tocsin_executor_troubles_total", "counter", "What had no effect, by reason.", troubles),
            Family("tocsin_executor_left_out_total", "counter", "Actions that are not for it, by reason.", left_out),
        ]
