"""Announce models to a running engine over its control socket, which only the engine's user may open."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable

from tocsin.pipeline.core.slices import RecordOutcome
from tocsin.pipeline.runtime.embedded.control_socket import EngineRefusedError, Handler, Message
from tocsin.schemas.errors import ClockAheadError, SchemaError
from tocsin.schemas.records import ModelAnnouncement, Record
from tocsin.schemas.wire.codec import decode

Take = Callable[[Record, bytes | None, int | None], RecordOutcome]
"""Type of ``EmbeddedEngine.take_record``."""


def model_handler(take: Take, now_ns: Callable[[], int]) -> Handler:
    """Return the handler of ``model``: request ``{"record": base64}``, answer ``{"taken": "ok"}`` (or ``duplicate``).

    Args:
        take: passes the announcement to the engine.
        now_ns: returns the engine's time.
    """

    def answer(request: Message) -> Message:
        text = request.get("record")
        try:
            data = base64.b64decode(text if isinstance(text, str) else "", validate=True)
        except (binascii.Error, ValueError) as error:
            raise EngineRefusedError(f'model needs "record" in base64: {error}', "bad_request") from error
        try:
            record = decode(data, now_ns=now_ns())
            if not isinstance(record, ModelAnnouncement):
                raise EngineRefusedError(f"a {type(record).__name__} is no model", "bad_request")
            return {"taken": take(record, data, now_ns()).value}
        except (SchemaError, ClockAheadError) as error:
            raise EngineRefusedError(str(error), error.reason) from error

    return answer
