"""What hosts told of their network ports last: which events of ports are a new alert, and which tell of a known one.

One principle: an alert is a moment at which the network of a host failed. A state that is told again is no new moment.
Neither are several ports of one host that fail within ``SAME_MOMENT_SECONDS``: the reboot of a switch, or the reset of
a host's adapters, shows on one port after the other. A port that was up between, or another one at another time, is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tocsin.schemas import events
from tocsin.schemas.hardware import PORT_IS_UP, cause_of_event
from tocsin.schemas.records import NS_PER_SECOND, Event

SAME_MOMENT_SECONDS: Final = 30.0
"""Longest time from the first port of a host that fails to another one of the same alert. Adapters that are reset one
after the other take some seconds each; and ByteRobust (arXiv 2509.16293), whose rule of two alerts in five minutes this
is, looks at the network every 30 s, so that what fails between two looks is one alert there."""
TOLD_AGAIN_SECONDS: Final = 300.0
"""Longest silence after which a port that was not up between is still told of again. After a longer one the word that
it was up may be lost, and a flap of yesterday would stand until today."""
PORT_EVENTS: Final = frozenset({events.IB_PORT, events.NET_LINK})
"""Names of events that tell the state of a network port."""
_NAMES: Final = ("device", "port", "pci")
_MOST_HOSTS: Final = 10_000
_MOST_PORTS: Final = 64


@dataclass(slots=True)
class _PortAlert:
    """A port that failed.

    Attributes:
        alert_ns: begin of the alert to which its last failure belongs.
        told_ns: when it was told last that it does not work.
        is_up: whether it was told since that it works.
    """

    alert_ns: int
    told_ns: int
    is_up: bool = False


class PortStates:
    """The ports of hosts that failed; the longest silent hosts are forgotten first."""

    def __init__(self, flap_seconds: float) -> None:
        """Start without ports.

        Args:
            flap_seconds: a port that fails again within so long has not recovered.
        """
        self._flap_ns = int(flap_seconds * NS_PER_SECOND)
        self._hosts: dict[str, dict[str, _PortAlert]] = {}

    def note(self, event: Event) -> int | None:
        """Note an event of a port, and return the begin of the alert that it tells of.

        Returns:
            The event's own time for a new alert; None where the event tells of none.
        """
        meaning = cause_of_event(event)
        key, name = f"{event.job.cluster}/{event.host}", _name_of(event)
        ports = self._hosts.get(key, {})
        if meaning is None or not meaning.accuses:
            if name in ports and _is_up(event):
                ports[name].is_up = True
            return None
        alert_ns = self._known(ports, name, event.ts_ns)
        alert_ns = event.ts_ns if alert_ns is None else alert_ns
        self._hosts.pop(key, None)
        ports.pop(name, None)
        self._hosts[key] = {**ports, name: _PortAlert(alert_ns, event.ts_ns)}
        if len(ports) >= _MOST_PORTS:
            del self._hosts[key][next(iter(ports))]
        if len(self._hosts) > _MOST_HOSTS:
            del self._hosts[next(iter(self._hosts))]
        return alert_ns

    def to_state(self) -> dict[str, dict[str, list[Any]]]:
        """Return the ports as JSON values."""
        return {
            key: {name: [one.alert_ns, one.told_ns, one.is_up] for name, one in ports.items()}
            for key, ports in self._hosts.items()
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the ports by what ``to_state`` returned."""
        self._hosts = {key: {name: _PortAlert(*one) for name, one in ports.items()} for key, ports in state.items()}

    def _known(self, ports: Mapping[str, _PortAlert], name: str, ts_ns: int) -> int | None:
        """Return the begin of the known alert to which a port's failure belongs, None for a new one."""
        port = ports.get(name)
        if port is not None:
            most_ns = self._flap_ns if port.is_up else int(TOLD_AGAIN_SECONDS * NS_PER_SECOND)
            if abs(ts_ns - port.told_ns) <= most_ns:
                return port.alert_ns
        same_ns = int(SAME_MOMENT_SECONDS * NS_PER_SECOND)
        others = (one.alert_ns for other, one in ports.items() if other != name)
        return next((alert_ns for alert_ns in others if abs(ts_ns - alert_ns) <= same_ns), None)


def _name_of(event: Event) -> str:
    """Return the name of an event's port among those of its host; "" if it has none."""
    parts = [event.payload[key] for key in _NAMES if isinstance(event.payload.get(key), str | int)]
    return f"{event.name} {'/'.join(map(str, parts))[:200]}"


def _is_up(event: Event) -> bool:
    """Return whether an event says that its port works."""
    state = event.payload.get("state")
    return isinstance(state, str) and state.lower() in PORT_IS_UP
