"""The mistakes of a routes file: all of them in one go, each with file, line and key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from tocsin.pipeline.alerts.adapters.kinds import AdapterKind, Schema, check_settings
from tocsin.pipeline.alerts.route_schema import frame_schema
from tocsin.pipeline.core.marked_file import MarkedFile, Place, schema_errors, unknown_word
from tocsin.schemas.errors import ConfigError

WATCHDOG_SECONDS: Final = 60.0
"""Distance of two notices of the watchdog where the file says nothing else."""
_NO_WATCHDOGS: Final = frozenset({"pagerduty", "slack"})


def route_errors(file: MarkedFile, registry: Mapping[str, AdapterKind]) -> list[ConfigError]:
    """Return each mistake of a routes file, those of its receivers' settings included.

    Args:
        file: the file.
        registry: word of the kind -> kind of receiver.
    """
    found = schema_errors(file, frame_schema({"type": "object", "minProperties": 1}))
    content = file.value if isinstance(file.value, dict) else {}
    receivers = content.get("receivers")
    if not isinstance(receivers, dict):
        return found
    for name, settings in receivers.items():
        found += _receiver_errors(file, ("receivers", str(name)), settings, registry)
    routes = content.get("routes")
    found += _name_errors(file, routes if isinstance(routes, list) else [], receivers)
    watchdog = content.get("watchdog")
    if isinstance(watchdog, dict) and isinstance(watchdog.get("receiver"), str):
        found += _watchdog_errors(file, watchdog, receivers)
    return found


def _receiver_errors(
    file: MarkedFile, place: Place, settings: object, registry: Mapping[str, AdapterKind]
) -> Iterator[ConfigError]:
    """Yield the mistakes of the settings of one receiver; what is missing only where the others are right."""
    if not isinstance(settings, dict):
        yield ConfigError(file.where(place), "(not shown)", "a table of settings")
        return
    kind = settings.get("kind")
    if not isinstance(kind, str) or kind not in registry:
        if isinstance(kind, str):
            yield unknown_word(file.where((*place, "kind")), kind, registry)
        else:
            yield ConfigError(file.where((*place, "kind")), kind, f"one of {', '.join(sorted(registry))}")
        return
    schema, known = registry[kind].schema, _keys_of(registry[kind])
    found = []
    for key, value in settings.items():
        own: Schema = {"type": "object", "properties": {key: known[key]}} if key in known else schema
        found += _raised(check_settings, {key: value}, own, _head(file, (*place, str(key))))
    yield from found or _raised(check_settings, settings, schema, file.where(place))


def _raised(check: Callable[..., None], *args: object) -> list[ConfigError]:
    """Return what a check raises, [] for nothing."""
    try:
        check(*args)
    except ConfigError as error:
        return [error]
    return []


def _keys_of(kind: AdapterKind) -> Mapping[str, object]:
    """Return the settings that a kind of receiver knows."""
    properties = kind.schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _head(file: MarkedFile, place: Place) -> str:
    """Return file and line of a setting, with the key of the table that it stands in."""
    line = file.where(place).removeprefix(f"{file.path}:").partition(":")[0]
    return f"{file.path}:{line}: {'.'.join(map(str, place[:-1]))}"


def _name_errors(file: MarkedFile, routes: list[Any], receivers: Mapping[str, object]) -> Iterator[ConfigError]:
    """Yield an error for each receiver that is not there, and for each name that two routes share."""
    seen: set[str] = set()
    for index, route in enumerate(routes):
        name, receiver = (route.get(key) if isinstance(route, dict) else None for key in ("name", "receiver"))
        if isinstance(name, str) and name in seen:
            yield ConfigError(file.where(("routes", index, "name")), name, "a name of its own")
        seen.add(str(name))
        if isinstance(receiver, str) and receiver not in receivers:
            yield unknown_word(file.where(("routes", index, "receiver")), receiver, receivers)


def _watchdog_errors(
    file: MarkedFile, watchdog: Mapping[str, Any], receivers: Mapping[str, Any]
) -> Iterator[ConfigError]:
    """Yield an error where the watchdog's receiver is not there, or does not notice absence."""
    name = watchdog["receiver"]
    where = file.where(("watchdog", "receiver"))
    if name not in receivers:
        yield unknown_word(where, name, receivers)
        return
    settings = receivers[name] if isinstance(receivers[name], dict) else {}
    kind = settings.get("kind")
    if kind in _NO_WATCHDOGS:
        yield ConfigError(where, name, f"a receiver that notices absence, not {kind}: an alertmanager or a webhook")
    resend_seconds, every_seconds = settings.get("resend_seconds", 60), watchdog.get("every_seconds", WATCHDOG_SECONDS)
    if kind != "alertmanager" or not all(isinstance(one, int | float) for one in (resend_seconds, every_seconds)):
        return
    longest_seconds = 2.0 * resend_seconds
    if every_seconds > longest_seconds:
        must = f"at most {longest_seconds:g}, twice the receiver's resend_seconds"
        yield ConfigError(
            file.where(("watchdog", "every_seconds")), every_seconds, f"{must}: the alert ends by itself thrice as late"
        )
