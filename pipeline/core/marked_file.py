"""A YAML file as plain values, with the line of each key, so that an error names file, line and key.

``read_marked`` reads it, ``check_schema`` holds it against a JSON Schema.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jsonschema
import yaml

from tocsin.schemas.errors import ConfigError, ManySettingsError

Schema = dict[str, object]
"""A JSON Schema, draft 2020-12."""
Place = tuple[str | int, ...]
"""Keys and list indexes that lead to a value, outermost first."""
_LINE: Final = re.compile(r":(\d+)(?::|$)")
_MOST_BYTES: Final = 1_000_000
_MOST_NODES: Final = 50_000
_MOST_DEPTH: Final = 20


@dataclass(frozen=True, slots=True)
class MarkedFile:
    """Content of a YAML file.

    Attributes:
        path: the file.
        value: its content as dicts, lists, texts, numbers and booleans.
        lines: place of each value -> its line, from 1.
        errors: keys that stand twice; the first one counts.
    """

    path: Path
    value: object
    lines: dict[Place, int]
    errors: tuple[ConfigError, ...] = ()

    def where(self, place: Place) -> str:
        """Return file, line and key of a place; the nearest known line above it where it is not in the file."""
        known = place
        while known not in self.lines and known:
            known = known[:-1]
        key = ".".join(map(str, place))
        return f"{self.path}:{self.lines.get(known, 1)}" + (f": {key}" if key else "")


def read_marked(path: Path, what: str) -> MarkedFile:
    """Return the content of a YAML file with the line of each value.

    Args:
        path: the file.
        what: what the file is, for errors, e.g. ``alerts file``.

    Raises:
        ConfigError: the file cannot be read, is no YAML or is too large.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(what, str(path), f"a text file that can be read ({error})") from error
    if len(data) > _MOST_BYTES:
        raise ConfigError(what, str(path), f"at most {_MOST_BYTES} bytes")
    try:
        loader = yaml.SafeLoader(text)
        walker = _Walker(path, loader)
        root = loader.get_single_node()
        value = None if root is None else walker.value_of(root, ())
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date that is none
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 1
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or type(error).__name__
        raise ConfigError(f"{path}:{line}", "(not shown)", f"YAML ({problem})") from error
    return MarkedFile(path, value, walker.lines, tuple(walker.errors))


def check_schema(file: MarkedFile, schema: Schema) -> None:
    """Check the content of a file against a JSON Schema.

    Raises:
        ConfigError: names file, line and key of each mistake, and the nearest known word.
    """
    raise_all(schema_errors(file, schema))


def schema_errors(file: MarkedFile, schema: Schema) -> list[ConfigError]:
    """Return each mistake of a file: keys that stand twice, and what a JSON Schema refuses."""
    found = list(file.errors)
    for error in jsonschema.Draft202012Validator(schema).iter_errors(file.value):
        found += _errors_of(error, file)
    return found


def raise_all(errors: Sequence[ConfigError]) -> None:
    """Raise mistakes together, by line; return where there are none.

    Raises:
        ConfigError: there are some.
    """
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ManySettingsError(sorted(errors, key=_line_of))


def _line_of(error: ConfigError) -> int:
    """Return the line that an error names, 0 for none."""
    found = _LINE.search(error.setting)
    return int(found[1]) if found else 0


def unknown_word(where: str, value: object, known: Iterable[str]) -> ConfigError:
    """Return the error of a word that is none of the known ones.

    Args:
        where: file, line and key, as ``MarkedFile.where`` returns them.
        value: the word.
        known: the words that may stand there.
    """
    words = sorted(known)
    near = difflib.get_close_matches(str(value), words, 1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return ConfigError(where, value, f"one of {', '.join(words)}{hint}")


def _errors_of(error: Any, file: MarkedFile) -> list[ConfigError]:
    """Return an error of the schema's checker as errors that name file, line and key."""
    while error.validator == "anyOf" and error.context:
        error = max(error.context, key=lambda one: len(one.absolute_path))
        if error.validator == "type" and isinstance(error.instance, str):
            error = next((one for one in error.parent.context if one.validator == "enum"), error)
    place: Place = tuple(error.absolute_path)
    if error.validator == "additionalProperties":
        known = error.schema["properties"]
        wrong = [name for name in error.instance if name not in known]
        return [unknown_word(file.where((*place, name)), name, known) for name in wrong]
    if error.validator == "required":
        return _missing(error, file, place)
    if error.validator == "enum":
        return [unknown_word(file.where(place), error.instance, map(str, error.validator_value))]
    must = f"as the schema says ({error.validator} {error.validator_value})"
    return [ConfigError(file.where(place), error.instance, must)]


def _missing(error: Any, file: MarkedFile, place: Place) -> list[ConfigError]:
    """Return the error of a key that is missing; none where an unknown key is a typo of it."""
    unknown = [name for name in error.instance if name not in error.schema.get("properties", {})]
    # the checker gives one error for each missing key, and names it in its message only
    missing = next(name for name in error.validator_value if error.message.startswith(repr(name)))
    if difflib.get_close_matches(missing, unknown, 1):
        return []
    return [ConfigError(file.where((*place, missing)), None, "given")]


class _Walker:
    """Turns YAML nodes into plain values and notes their lines."""

    def __init__(self, path: Path, loader: yaml.SafeLoader) -> None:
        self._path = path
        self._loader = loader
        self._count = 0
        self.errors: list[ConfigError] = []
        self.lines: dict[Place, int] = {}

    def value_of(self, node: yaml.Node, place: Place) -> object:
        """Return a node's plain value.

        Raises:
            ConfigError: too many values, too deep, or a key that is no text.
        """
        self._count += 1
        line = node.start_mark.line + 1
        if self._count > _MOST_NODES or len(place) > _MOST_DEPTH:
            raise ConfigError(
                f"{self._path}:{line}", "(not shown)", f"at most {_MOST_NODES} values, {_MOST_DEPTH} deep"
            )
        self.lines.setdefault(place, line)
        if isinstance(node, yaml.MappingNode):
            return self._table_of(node, place)
        if isinstance(node, yaml.SequenceNode):
            return [self.value_of(one, (*place, index)) for index, one in enumerate(node.value)]
        value: object = self._loader.construct_object(node)
        return value if isinstance(value, str | int | float | bool) or value is None else str(node.value)

    def _table_of(self, node: yaml.MappingNode, place: Place) -> dict[str, object]:
        """Return a table; see ``value_of``."""
        table: dict[str, object] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigError(f"{self._path}:{line}", "(not shown)", "a key that is a text")
            key = str(key_node.value)
            inner = (*place, key)
            if key in table:
                where = f"{self._path}:{line}: {'.'.join(map(str, inner))}"
                must = f"given once; the first is in line {self.lines[inner]}"
                self.errors.append(ConfigError(where, "given twice", must))
                continue
            self.lines[inner] = line
            table[key] = self.value_of(value_node, inner)
        return table
