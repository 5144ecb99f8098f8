"""Settings of one receiver in a routes file, and the adapter made from them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import jsonschema

from tocsin.pipeline.alerts.adapters.http import HttpConfig, host_of
from tocsin.pipeline.alerts.adapters.secrets import refuse_literal
from tocsin.pipeline.alerts.notice import Adapter
from tocsin.schemas.errors import ConfigError

Schema = dict[str, object]
"""A JSON Schema, draft 2020-12."""

_URL_TEXT: Final = "an address http://HOST or https://HOST without user, password and spaces"


@dataclass(frozen=True, slots=True)
class AdapterKind:
    """One kind of receiver.

    Attributes:
        kind: its word in the routes file.
        schema: JSON Schema of one receiver's settings; ``kind`` is one of them.
        make: makes the adapter from settings and their place in the file (for errors). Raises ``ConfigError``, which
            names the key. No connection is made and no secret is read.
    """

    kind: str
    schema: Schema
    make: Callable[[Mapping[str, object], str], Adapter]


HTTP_PROPERTIES: Final[Mapping[str, Schema]] = {
    "timeout_seconds": {
        "type": "number",
        "minimum": 0.1,
        "maximum": 60,
        "default": 10,
        "description": "How long to wait for an answer; for a connection at most half of it.",
    },
    "ca_file": {
        "type": "string",
        "minLength": 1,
        "description": "PEM file of the authorities to trust instead of the system's.",
    },
    "proxy": {
        "type": "string",
        "pattern": "^https?://[^@\\s]+$",
        "description": "Proxy on the way to the receiver, http://HOST:PORT. HTTPS_PROXY and the like are not read.",
    },
}
"""Settings that every receiver has."""


def text_setting(description: str, **more: object) -> Schema:
    """Return the schema of a text that is not empty."""
    return {"type": "string", "minLength": 1, "description": description, **more}


def url_setting(description: str, **more: object) -> Schema:
    """Return the schema of an ``http`` or ``https`` address."""
    return {"type": "string", "pattern": "^https?://[^@\\s]+$", "description": description, **more}


def secret_settings(name: str, description: str) -> dict[str, Schema]:
    """Return the two settings, of which one names the place of a secret.

    Args:
        name: what the secret is, e.g. ``token``.
        description: one sentence about it.
    """
    return {
        f"{name}_file": text_setting(f"File that holds it, closed to other users, read at each message. {description}"),
        f"{name}_env": text_setting(
            f"Environment variable that holds it. {description}", pattern="^[A-Za-z_][A-Za-z0-9_]*$"
        ),
    }


def labels_setting(description: str) -> Schema:
    """Return the schema of a table of names and texts."""
    return {
        "type": "object",
        "propertyNames": {"pattern": "^[a-zA-Z_][a-zA-Z0-9_]*$"},
        "additionalProperties": {"type": "string", "minLength": 1, "maxLength": 200},
        "maxProperties": 20,
        "description": description,
    }


def receiver_schema(
    kind: str, description: str, properties: Mapping[str, Schema], needed: Collection[Collection[str]]
) -> Schema:
    """Return the schema of one kind of receiver.

    Args:
        kind: its word.
        description: one sentence about it.
        properties: its own settings.
        needed: groups of settings, of each of which exactly one must be given.
    """
    schema: Schema = {
        "type": "object",
        "title": kind,
        "description": description,
        "properties": {
            "kind": {"const": kind, "description": "Kind of the receiver."},
            **properties,
            **HTTP_PROPERTIES,
        },
        "required": ["kind", *(name for group in needed if len(group) == 1 for name in group)],
        "additionalProperties": False,
    }
    choices = [{"oneOf": [{"required": [name]} for name in group]} for group in needed if len(group) > 1]
    return {**schema, "allOf": choices} if choices else schema


def check_settings(settings: Mapping[str, object], schema: Schema, where: str) -> None:
    """Check a receiver's settings against its schema.

    Args:
        settings: the settings.
        schema: of ``receiver_schema``.
        where: place of the settings, for errors.

    Raises:
        ConfigError: names the first wrong, unknown or missing key. The value of an unknown key is not shown, because it
            may be a misplaced secret.
    """
    known = _properties(schema)
    for name in sorted(settings, key=str):
        if name not in known:
            _refuse_unknown(settings, str(name), known, where)
    for error in sorted(
        jsonschema.Draft202012Validator(schema).iter_errors(dict(settings)), key=lambda e: list(e.path)
    ):
        raise _error_of(error, where)


def http_config(settings: Mapping[str, object], where: str) -> HttpConfig:
    """Return timeouts, authorities and proxy of checked settings.

    Raises:
        ConfigError: ``ca_file`` is no file, or ``proxy`` no address of a proxy.
    """
    ca_file, proxy = str(settings.get("ca_file", "")), str(settings.get("proxy", ""))
    if ca_file and not Path(ca_file).expanduser().is_file():
        raise ConfigError(f"{where}.ca_file", ca_file, "a file that is there")
    if proxy:
        checked_url(proxy, f"{where}.proxy")
    seconds = float(str(settings.get("timeout_seconds", 10)))
    return HttpConfig(min(5.0, seconds / 2), seconds, str(Path(ca_file).expanduser()) if ca_file else "", proxy)


def checked_url(url: object, where: str) -> str:
    """Return an address that is fit for a receiver.

    Raises:
        ConfigError: it is no ``http`` or ``https`` URL with a host, or it holds a user or a password.
    """
    if not isinstance(url, str) or not host_of(url) or "@" in urlsplit(url).netloc:
        shown = url if isinstance(url, str) and "@" not in url else "(not shown)"
        raise ConfigError(where, shown, _URL_TEXT)
    return url


def texts_of(settings: Mapping[str, object], name: str) -> dict[str, str]:
    """Return a checked table of texts, {} if it is not given."""
    table = settings.get(name)
    return {str(key): str(value) for key, value in table.items()} if isinstance(table, Mapping) else {}


def _properties(schema: Schema) -> Mapping[str, object]:
    """Return the settings that a schema knows."""
    properties = schema["properties"]
    return properties if isinstance(properties, Mapping) else {}


def _refuse_unknown(settings: Mapping[str, object], name: str, known: Collection[str], where: str) -> None:
    """Raise the error of a key that a schema does not know.

    Raises:
        ConfigError: always.
    """
    if f"{name}_file" in known:
        refuse_literal(settings, name, where)
    near = difflib.get_close_matches(name, list(known), 1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise ConfigError(f"{where}.{name}", "(not shown)", f"one of {', '.join(sorted(known))}{hint}")


def _error_of(error: Any, where: str) -> ConfigError:
    """Return the error of the schema's checker as one that names the key."""
    place = ".".join([where, *map(str, error.path)])
    if error.validator == "required":
        missing = next((name for name in error.validator_value if name not in error.instance), "")
        return ConfigError(f"{place}.{missing}", None, "given")
    if error.validator == "oneOf":
        names = [option["required"][0] for option in error.validator_value]
        given = [name for name in names if name in error.instance]
        if given:
            return ConfigError(f"{place}.{given[-1]}", "(not shown)", f"left out, because {given[0]} is given, too")
        return ConfigError(f"{place}.{names[0]}", None, f"given; or {' or '.join(names[1:])}")
    is_private = "@" in str(error.instance) or place.endswith("_env")
    return ConfigError(place, "(not shown)" if is_private else error.instance, _wanted(error))


def _wanted(error: Any) -> str:
    """Return what a value must be that the schema's checker refused."""
    value = error.validator_value
    match error.validator:
        case "const":
            return repr(value)
        case "enum":
            return " or ".join(map(str, value))
        case "type":
            return f"of the type {value}"
        case "minimum" | "maximum":
            return f"at {'least' if error.validator == 'minimum' else 'most'} {value}"
        case "minLength":
            return "a text that is not empty"
        case "minItems":
            return f"a list of at least {value}"
        case "pattern" if str(value).startswith("^https?"):
            return _URL_TEXT
    return f"as the schema says ({error.validator} {value})"
