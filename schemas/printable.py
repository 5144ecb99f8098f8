r"""Printing of untrusted text: it cannot move the cursor, change the reading direction or begin a new line.

Names of jobs, hosts and metrics, values of settings and foreign messages come from whoever reaches a socket.
Each such text goes through ``plain`` before it is printed, and JSON through ``json_text``. Characters of Unicode's
categories Cc (controls), Cf (bidi marks, zero width), Zl and Zp (line ends) and Cs (surrogates) are
replaced by visible escapes.

>>> plain("job\x1b[2J\r\u202e1")
'job\\x1b[2J\\r\\u202e1'
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from typing import Any, Final

HIDDEN_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def plain(text: object, *, kept: str = "") -> str:
    r"""Return any value as text of one line in which hidden characters are shown as escapes.

    Args:
        text: the value to print.
        kept: control characters that are left unchanged, e.g. ``"\n"`` for a text of several lines of our own.
    """
    shown = str(text)
    if shown.isprintable():  # everything that is hidden is not printable in Python's sense
        return shown
    return "".join(one if one in kept or not _is_hidden(one) else _escaped(one) for one in shown)


def counted(count: int, noun: str) -> str:
    """Return a number and its noun, in the plural unless the number is 1.

    >>> counted(1, "recording"), counted(2, "recording")
    ('1 recording', '2 recordings')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def named(name: object, text: object) -> str:
    """Return a text that says what it is about: the name stands before it, unless it begins with it.

    >>> named("/runs/a", "manifest.json: missing"), named("/runs/a", "/runs/a: no such folder")
    ('/runs/a: manifest.json: missing', '/runs/a: no such folder')
    """
    return str(text) if str(text).startswith(f"{name}: ") else f"{name}: {text}"


def readable(value: object) -> object:
    """Return a JSON value with its floats rounded to six digits; integers stay exact.

    >>> readable({"f1": 0.1 + 0.2, "at_ns": 1764000000000000001, "of": [1 / 3]})
    {'f1': 0.3, 'at_ns': 1764000000000000001, 'of': [0.333333]}
    """
    if isinstance(value, dict):
        return {key: readable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [readable(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def json_text(value: object, *, indent: int | None = None, default: Callable[[Any], object] | None = None) -> str:
    """Return a value as JSON in ASCII, without control characters except the line ends of ``indent``."""
    return json.dumps(value, indent=indent, default=default).replace("\x7f", "\\u007f")


def json_escaped(text: str) -> str:
    """Return foreign JSON text with every hidden character as a JSON escape, so that its value is unchanged.

    Line ends and tabs stay: inside JSON strings they are escaped already.
    """
    if text.isprintable():
        return text
    return "".join(one if one in "\n\t" or not _is_hidden(one) else _json_escape(one) for one in text)


def _is_hidden(character: str) -> bool:
    """Return whether a character belongs to one of ``HIDDEN_CATEGORIES``."""
    return unicodedata.category(character) in HIDDEN_CATEGORIES


def _escaped(character: str) -> str:
    """Return a character as a visible backslash escape."""
    number = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _json_escape(character: str) -> str:
    """Return a character as a JSON escape, a surrogate pair beyond the basic plane."""
    number = ord(character)
    if number < 0x10000:
        return f"\\u{number:04x}"
    number -= 0x10000
    return f"\\u{0xD800 + (number >> 10):04x}\\u{0xDC00 + (number & 0x3FF):04x}"
