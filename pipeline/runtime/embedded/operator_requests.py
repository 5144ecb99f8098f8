"""Requests by which operators on other machines change something: the control socket's, over the agents' port."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tocsin.pipeline.runtime.embedded.close_handler import close_handler
from tocsin.pipeline.runtime.embedded.control_socket import EngineRefusedError, Handler, Message
from tocsin.pipeline.runtime.embedded.listener.readers import Answerer

if TYPE_CHECKING:
    from tocsin.pipeline.runtime.embedded.service import EngineService


def allow_operators(service: EngineService, notes: Mapping[str, Handler]) -> None:
    """Let operators plan and end work, judge verdicts and close incidents; readers may list the planned work, too.

    Args:
        service: the engine, not yet started.
        notes: the control socket's requests about people's notes.
    """
    handlers = dict(notes)
    closing = close_handler(
        service.engine.live_verdicts, service.engine.take_record, service.time.now_ns, service.server.commit
    )
    listing = _answerer(handlers.pop("maintenance_list"))
    readers = service.server.readers
    readers.answerers = {**readers.answerers, "maintenance_list": listing}
    readers.changers = {**readers.changers, **answerers_of({**handlers, "incident_close": closing})}


def answerers_of(handlers: Mapping[str, Handler]) -> dict[str, Answerer]:
    """Return handlers of the control socket, which answer once, as answerers of the listener."""
    return {name: _answerer(handler) for name, handler in handlers.items()}


def _answerer(handler: Handler) -> Answerer:
    """Return a handler that answers once as an answerer."""

    def answer(question: Message) -> Message:
        answered = handler(question)
        if not isinstance(answered, dict):
            raise EngineRefusedError("this request is answered on the control socket only", "unknown_command")
        return answered

    return answer
