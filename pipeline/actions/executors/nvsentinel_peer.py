"""The connection to NVSentinel's platform connector on this node, and what is known of its release."""

from __future__ import annotations

import re
from types import TracebackType
from typing import Final, Protocol, Self

import grpc

from tocsin.pipeline.actions.executors.nvsentinel_messages import (
    METHOD,
    STRATEGY_FIELD,
    STRATEGY_NUMBER,
    ConnectorMessages,
)
from tocsin.schemas.errors import TargetAwayError, TargetRefusedError
from tocsin.schemas.formats.nvsentinel import HealthEvent, ProcessingStrategy

_AWAY: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    }
)
"""Codes after which the event may be sent again; the connector may have taken it all the same."""

_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_MESSAGE = re.compile(r"\bmessage\s+HealthEvent\s*\{(.*?)\n\}", re.DOTALL)
_STRATEGIES = re.compile(r"\benum\s+ProcessingStrategy\s*\{(.*?)\}", re.DOTALL)


def check_release(proto: str) -> None:
    """Check that a release of NVSentinel knows what ``STORE_ONLY`` means.

    A release without the field ignores it, and carries out what was only to be stored. The connector does not tell
    its release, so the site gives the ``health_event.proto`` of the one that it runs.

    Args:
        proto: text of that file.

    Raises:
        TargetRefusedError: the message has no such field, under another number, or without the value.
    """
    text = _COMMENTS.sub("", proto)
    message, strategies = _MESSAGE.search(text), _STRATEGIES.search(text)
    field = rf"\bProcessingStrategy\s+{STRATEGY_FIELD}\s*=\s*{STRATEGY_NUMBER}\s*[;\[]"
    value = rf"\b{ProcessingStrategy.STORE_ONLY.name}\s*=\s*{ProcessingStrategy.STORE_ONLY.value}\s*[;\[]"
    if message is None:
        raise TargetRefusedError("the file describes no message HealthEvent: give NVSentinel's health_event.proto")
    if re.search(field, message[1]) is None:
        raise TargetRefusedError(
            f"this release of NVSentinel has no field {STRATEGY_FIELD} = {STRATEGY_NUMBER} in HealthEvent:"
            " it would carry out what is only to be stored"
        )
    if strategies is None or re.search(value, strategies[1]) is None:
        raise TargetRefusedError(
            f"this release of NVSentinel has no {ProcessingStrategy.STORE_ONLY.name} ="
            f" {ProcessingStrategy.STORE_ONLY.value} in ProcessingStrategy"
        )


class EventConnector(Protocol):
    """Takes health events. Tests give a fake."""

    def send(self, events: tuple[HealthEvent, ...]) -> None:
        """Hand events over.

        Raises:
            TargetAwayError: the connector does not answer; it may have taken them.
            TargetRefusedError: it will not take them.
        """
        ...


class GrpcConnector:
    """The platform connector behind a socket of this node."""

    def __init__(self, address: str, limit_seconds: float) -> None:
        """Connect at the first event.

        Args:
            address: gRPC address, e.g. ``unix:///var/run/nvsentinel/nvsentinel.sock``.
            limit_seconds: time that one call may take.
        """
        self._messages = ConnectorMessages()
        self._limit_seconds = limit_seconds
        self._channel = grpc.insecure_channel(address)
        self._call = self._channel.unary_unary(
            METHOD, request_serializer=self._messages.encode, response_deserializer=None
        )

    def send(self, events: tuple[HealthEvent, ...]) -> None:
        """See ``Connector.send``."""
        try:
            self._call(events, timeout=self._limit_seconds)
        except grpc.RpcError as error:
            raise _error_of(error) from error

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        self.close()


def _error_of(error: grpc.RpcError) -> TargetAwayError | TargetRefusedError:
    """Return our error for one of gRPC's."""
    code: grpc.StatusCode = error.code()
    text = f"NVSentinel's connector: {code.name}: {' '.join(str(error.details()).split())[:300]}"
    return TargetAwayError(text) if code in _AWAY else TargetRefusedError(text)
