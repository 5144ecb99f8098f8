"""One TOML file with settings of ``serve`` and ``agent``; flags take precedence, then the environment, then the file.

Each command has a table. A key is a flag's name without its dashes, with ``-`` or ``_``::

    [serve]
    listen = "0.0.0.0:4440"
    hold = [300, 600]

    [agent]
    engine = "engine-1:4440"
    prometheus = ["http://127.0.0.1:9400/metrics"]

A value of the file becomes the default of its flag, unless the flag's environment variable is set.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from tocsin.schemas.errors import ConfigError

VARIABLE: Final = "TOCSIN_CONFIG"
COMMANDS: Final = ("serve", "agent")
"""Commands that read the file; each has a table in it."""
_VARIABLE: Final = re.compile(r"\[env: (TOCSIN_[A-Z_]+)")
_NO_SETTINGS: Final = frozenset({"help", "config"})


def add_config_argument(parser: argparse.ArgumentParser) -> None:
    """Add the flag ``--config FILE``."""
    text = f"TOML file with settings of serve and agent; flags and environment count more [env: {VARIABLE}]"
    parser.add_argument("--config", metavar="FILE", type=Path, help=text)


def with_file_defaults(parser: argparse.ArgumentParser, command: str, arguments: Sequence[str]) -> None:
    """Set the defaults of a command's parser from the settings file, if one is named.

    Args:
        parser: parser of the command, with all its flags.
        command: one of ``COMMANDS``.
        arguments: arguments of the command.

    Raises:
        ConfigError: the file cannot be read, or a key or value of it is wrong.
    """
    path = _named(arguments)
    if path is None:
        return
    actions = settings_of(parser)
    chosen = {
        name: value
        for name, value in checked(path, read(path), command, parser).items()
        if not (_is_in_environment(actions[name]) or _is_repeated_flag(actions[name], arguments))
    }
    parser.set_defaults(**{actions[name].dest: value for name, value in chosen.items()})


def read(path: Path) -> dict[str, Any]:
    """Return the tables of a settings file.

    Raises:
        ConfigError: the file cannot be read or is not TOML, or a table is unknown (the error suggests the nearest
            name).
    """
    import tomllib  # only who has such a file pays

    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError("--config", str(path), f"a file that can be read ({error.strerror or error})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("--config", str(path), f"a TOML file ({error})") from error
    for name, table in found.items():
        if name not in COMMANDS or not isinstance(table, dict):
            near = _nearest(name, COMMANDS)
            raise ConfigError(f"{path}: {name}", _shown(table), f"a table: [serve] or [agent]{near}")
    return found


def checked(
    path: Path,
    tables: Mapping[str, Any],
    command: str,
    parser: argparse.ArgumentParser,
    checks: Mapping[str, Callable[[Any], object]] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the settings of one command, converted as its flags would: flag name without dashes -> value.

    Args:
        path: the settings file, for errors.
        tables: its tables.
        command: one of ``COMMANDS``.
        parser: parser of the command, with all its flags.
        checks: flag name without dashes -> further check of its converted value, which raises ConfigError.

    Raises:
        ConfigError: a key or value is wrong; the error names file, key and value, and suggests the nearest known key.
    """
    actions = settings_of(parser)
    found: dict[str, Any] = {}
    for written, value in tables.get(command, {}).items():
        name = written.replace("_", "-")
        where = f"{path}: {command}.{written}"
        if name not in actions:
            raise ConfigError(where, _shown(value), f"a setting of tocsin {command}{_nearest(name, actions)}")
        if name in found:
            raise ConfigError(where, _shown(value), "written once, with - or with _")
        found[name] = _value(where, actions[name], value)
        try:
            checks.get(name, _take_any)(found[name])
        except ConfigError as error:  # its value is shown without a password, and it is the one of a list that is wrong
            raise ConfigError(where, error.value, error.must) from error
    return found


def _take_any(value: object) -> None:
    """Check nothing."""
    del value


def settings_of(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Return the flags that a file may set: flag name without dashes -> argparse action."""
    long = ((action, option) for action in parser._actions for option in action.option_strings)  # noqa: SLF001  # argparse lists its flags nowhere else
    return {option[2:]: action for action, option in long if option.startswith("--") and option[2:] not in _NO_SETTINGS}


def _value(where: str, action: argparse.Action, value: object) -> object:
    """Return one value of the file, converted as the flag would; raise ConfigError if it does not fit."""
    if isinstance(action.default, bool) or action.nargs == 0:
        if not isinstance(value, bool):
            raise ConfigError(where, _shown(value), "true or false")
        return value
    is_list = action.nargs not in (None, "?") or _is_repeated(action)
    if is_list != isinstance(value, list):
        raise ConfigError(where, _shown(value), "a list" if is_list else "one value, and no list")
    if not isinstance(value, list):
        return _one(where, action, value)
    if isinstance(action.nargs, int) and len(value) != action.nargs:
        raise ConfigError(where, _shown(value), f"a list of {action.nargs} values")
    return [_one(where, action, each) for each in value]


def _one(where: str, action: argparse.Action, value: object) -> object:
    """Return one element, converted with the flag's type; raise ConfigError if it does not fit."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError(where, _shown(value), "a text or a number")
    convert = action.type if callable(action.type) else str
    try:
        found = convert(str(value))
    except (ValueError, TypeError, argparse.ArgumentTypeError) as error:
        raise ConfigError(where, _shown(value), f"as the flag takes it ({error})") from error
    if action.choices is not None and found not in action.choices:
        raise ConfigError(where, _shown(value), f"one of {', '.join(map(str, action.choices))}")
    return found


def _is_repeated(action: argparse.Action) -> bool:
    """Return whether the flag may be given several times."""
    return isinstance(action, argparse._AppendAction)  # noqa: SLF001  # argparse names the class nowhere else


def _is_in_environment(action: argparse.Action) -> bool:
    """Return whether the flag's environment variable is set and takes effect."""
    named = _VARIABLE.search(action.help or "")
    if named is None or named[1] not in os.environ:
        return False
    return os.environ[named[1]] != "" or action.default == ""  # "" is a value where the flag took it for one


def _is_repeated_flag(action: argparse.Action, arguments: Sequence[str]) -> bool:
    """Return whether a flag that may be given several times is in the arguments.

    The file's list must then be ignored, because argparse would append to it.
    """
    if not _is_repeated(action):
        return False
    given = (argument.partition("=")[0] for argument in arguments if argument.startswith("--") and len(argument) > 2)
    return any(option.startswith(name) for name in given for option in action.option_strings)


def _named(arguments: Sequence[str]) -> Path | None:
    """Return the settings file that the flag or else the environment names, None: neither does."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    add_config_argument(finder)
    try:
        named: Path | None = finder.parse_known_args(list(arguments))[0].config
    except argparse.ArgumentError:  # --config without a file: the command's own parser says so
        return None
    variable = os.environ.get(VARIABLE, "")
    return named or (Path(variable) if variable else None)


def _nearest(name: str, known: Sequence[str] | Mapping[str, object]) -> str:
    """Return a hint for an unknown name: the nearest known name, or all known names."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f" ({', '.join(sorted(known))})"


def _shown(value: object) -> str:
    """Return the value as text, at most 80 characters."""
    return str(value)[:80]
