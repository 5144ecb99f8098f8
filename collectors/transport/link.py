"""The stream protocol to the engine without sockets: frames, control messages, clock offset.

docs/interfaces.md, section 2. A frame is 4 bytes of little-endian length and the bytes; bytes that begin with ``{`` are
a JSON control message.
"""

from __future__ import annotations

import json
import struct
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tocsin.schemas.errors import DecodeError, FieldError, TransportError
from tocsin.schemas.wire.validate import INT32_MAX, check_int, check_name

LENGTH: Final = struct.Struct("<I")
MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
UNKNOWN_ERROR_NS: Final = 250_000_000
"""Assumed bound of the clock difference of two hosts before they were compared."""


def control_frame(values: Mapping[str, Any]) -> bytes:
    """Return a control message as a frame."""
    data = json.dumps(values, separators=(",", ":")).encode()
    return LENGTH.pack(len(data)) + data


class FrameReader:
    """Splits a byte stream into the contents of its frames."""

    def __init__(self) -> None:
        """Start with an empty buffer."""
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add received bytes; return the contents of the frames that are complete now.

        Raises:
            TransportError: a frame states a length above ``MAX_FRAME_BYTES``.
        """
        self._buffer += data
        found: list[bytes] = []
        offset = 0
        while len(self._buffer) - offset >= LENGTH.size:
            (size,) = LENGTH.unpack_from(self._buffer, offset)
            if size > MAX_FRAME_BYTES:
                raise TransportError(f"a frame of {size} bytes: at most {MAX_FRAME_BYTES} are allowed")
            if len(self._buffer) - offset < LENGTH.size + size:
                break
            offset += LENGTH.size + size
            found.append(bytes(self._buffer[offset - size : offset]))
        del self._buffer[:offset]
        return found


def parse_control(data: bytes) -> dict[str, Any]:
    """Parse a control message.

    Raises:
        DecodeError: the data is no JSON object with a type ``t``.
    """
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"control message {data[:40]!r} is no JSON: {error}") from error
    if not isinstance(values, dict) or not isinstance(values.get("t"), str):
        raise DecodeError(f"control message {data[:80]!r} has no type 't'")
    return values


def parse_probe(values: Mapping[str, Any]) -> tuple[str, str, int, tuple[str, str, int] | None]:
    """Return request_id, probe, rank and job (None: not given) of a probe message.

    Raises:
        FieldError: a field has the wrong type or is too long.
    """
    job, named = values.get("job"), None
    if job is not None:
        if type(job) is not list or len(job) != 3:
            raise FieldError("probe.job", job, "[cluster, job_id, attempt]")
        attempt = check_int(job[2], "probe.job[2]", 0, INT32_MAX)
        named = (check_name(job[0], "probe.job[0]"), check_name(job[1], "probe.job[1]"), attempt)
    request_id = check_name(values.get("request_id", ""), "probe.request_id", empty=True)
    probe = check_name(values.get("probe", ""), "probe.probe", empty=True)
    return request_id, probe, check_int(values.get("rank"), "probe.rank", -1, INT32_MAX), named


def integer(values: Mapping[str, Any], name: str) -> int:
    """Return a field of a control message that must be an integer of at least 0.

    Raises:
        FieldError: it is none.
    """
    return check_int(values.get(name), f"{values['t'][:40]}.{name}", 0)


@dataclass(frozen=True, slots=True)
class Offset:
    """The difference of two clocks: host minus engine.

    Attributes:
        offset_ns: estimated difference.
        error_ns: bound of the estimate's error.
        is_known: whether the clocks were compared at all.
    """

    offset_ns: int = 0
    error_ns: int = UNKNOWN_ERROR_NS
    is_known: bool = False


class OffsetEstimator:
    """Estimates the clock offset by the exchange with the smallest error among the last ones."""

    def __init__(self, size: int = 6) -> None:
        """Start without any exchange; the last ``size`` ones are kept."""
        self._recent: deque[tuple[int, int]] = deque(maxlen=size)

    def add(self, sent_ns: int, received_ns: int, engine_ns: int) -> None:
        """Add one exchange: sent and received by the host's clock, answered by the engine's."""
        if received_ns >= sent_ns:
            middle_ns = (sent_ns + received_ns) // 2
            self._recent.append(((received_ns - sent_ns) // 2, middle_ns - engine_ns))

    def clear(self) -> None:
        """Forget all exchanges, because the host's clock was set."""
        self._recent.clear()

    def best(self) -> Offset:
        """Return the best estimate."""
        if not self._recent:
            return Offset()
        error_ns, offset_ns = min(self._recent)
        return Offset(offset_ns, error_ns, is_known=True)
