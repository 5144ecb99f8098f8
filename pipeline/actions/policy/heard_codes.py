"""Codes in events of hosts, for evidence of a verdict that names a code's event and no code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tocsin.pipeline.actions.policy.codes import FoundCode, sxid_code, xid_code
from tocsin.pipeline.actions.policy.port_states import PORT_EVENTS
from tocsin.schemas import events
from tocsin.schemas.hardware import cause_of_event
from tocsin.schemas.records import NS_PER_SECOND, Event
from tocsin.schemas.verdicts import Verdict

_NEAR_NS: Final = 60 * NS_PER_SECOND
"""Greatest distance of an event from a verdict's onset with which it explains the verdict's evidence."""
_MOST_HOSTS: Final = 20_000
_MOST_CODES: Final = 8
_MOST_CODE: Final = 99_999


class HeardCodes:
    """The newest codes of each host; the longest silent hosts are forgotten first."""

    def __init__(self) -> None:
        """Start without codes."""
        self._codes: dict[str, list[tuple[int, FoundCode]]] = {}

    def hear(self, event: Event, code: FoundCode) -> None:
        """Keep the code of an event."""
        key = f"{event.job.cluster}/{event.host}"
        codes = self._codes.pop(key, [])
        self._codes[key] = [*codes[1 - _MOST_CODES :], (event.ts_ns, code)]
        if len(self._codes) > _MOST_HOSTS:
            del self._codes[next(iter(self._codes))]

    def of(self, verdict: Verdict) -> tuple[FoundCode, ...]:
        """Return the codes in events of a verdict's hosts about the time of its onset."""
        return tuple(
            code
            for suspect in verdict.suspects
            for ts_ns, code in self._codes.get(f"{verdict.job.cluster}/{suspect.component.name}", ())
            if abs(ts_ns - verdict.onset_ns) <= _NEAR_NS
        )

    def timed(self, verdict: Verdict) -> tuple[tuple[int, FoundCode], ...]:
        """Return the codes of a verdict's hosts, each with the time of its event, ns."""
        cluster = verdict.job.cluster
        return tuple(
            one for suspect in verdict.suspects for one in self._codes.get(f"{cluster}/{suspect.component.name}", ())
        )

    def to_state(self) -> dict[str, list[list[Any]]]:
        """Return the codes as JSON values."""
        return {key: [[ts_ns, code.name, code.action] for ts_ns, code in codes] for key, codes in self._codes.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the codes by what ``to_state`` returned."""
        self._codes = {
            key: [(ts_ns, FoundCode(name, action)) for ts_ns, name, action in codes] for key, codes in state.items()
        }


def concerns_policy(event: Event) -> bool:
    """Return whether an event says something of a host's hardware, so that a ladder counts it.

    A port that is up again is no fault; the ladder has to know of it to tell a new fault from one that is told again.
    """
    return code_of_event(event) is not None or event.name in PORT_EVENTS or cause_of_event(event) is not None


def code_of_event(event: Event) -> FoundCode | None:
    """Return the code of an ``xid`` or ``sxid`` event; None for other events and payloads without a code."""
    code = event.payload.get("code")
    if type(code) is not int or not 0 <= code <= _MOST_CODE:
        return None
    severity = event.payload.get("severity")
    text = severity if isinstance(severity, str) else ""
    if event.name == events.XID:
        return xid_code(code, text)
    return sxid_code(code, text) if event.name == events.SXID else None
