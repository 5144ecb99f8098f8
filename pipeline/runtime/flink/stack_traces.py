"""The sentence inside a stack trace: Java's, Python's, or one inside the other."""

from __future__ import annotations

import re
from typing import Final

_CAUSED: Final = "Caused by: "
_PYTHON: Final = "Traceback (most recent call last):"
_CLIENT: Final = (
    "org.apache.flink.client.program.ProgramAbortException: java.lang.RuntimeException: Python process exits"
)
_CLASS: Final = re.compile(r"((?:[\w$]+\.)+[\w$]+)(?:: |$)")
_TEXT_CHARACTERS: Final = 600


_WAYS_OUT = {
    "UnknownTopicOrPartition": "a topic is missing; 'tocsin topics check' says which, 'tocsin topics apply' makes it",
    "OutOfMemoryError": "the TaskManager needs more memory, see the sizing table in docs/operations.md",
}


def cause_of(trace: str) -> str:
    """Return what came first, as one line.

    In a Java trace that is its last cause, or the one around it where that says the same and more; where
    Python's trace stands in Java's, Python's error.
    """
    text = trace.partition(_CLIENT)[0].strip() or trace
    lines = [line.strip() for line in _python_part(text)]
    found = _python_error(lines) or _java_cause([line for line in text.splitlines() if line.strip()])
    told = " ".join(found.split())[:_TEXT_CHARACTERS] or "no reason given"
    way_out = next((what for name, what in _WAYS_OUT.items() if name in told), "")
    return f"{told.rstrip('.')}: {way_out}" if way_out else told


def _python_part(text: str) -> list[str]:
    """Lines of the last Python trace in it, without the Java lines that follow."""
    _, found, after = text.rpartition(_PYTHON)
    if not found:
        return []
    part = []
    for line in after.splitlines():
        if line.startswith(("\tat ", _CAUSED)):
            break
        if line.strip():
            part.append(line)
    return part


def _python_error(lines: list[str]) -> str:
    # where Python called Java and that failed, Java knows more
    is_javas = any(line.startswith("py4j.protocol.") for line in lines)
    return "" if is_javas or not lines else lines[-1]


def _java_cause(lines: list[str]) -> str:
    told = [
        line.strip() for line in lines if not line.startswith("\t") and not line.strip().startswith(("at ", "... "))
    ]
    causes = [line.removeprefix(_CAUSED) for line in told if line.startswith(_CAUSED)] or told[:1]
    if not causes:
        return ""
    deepest = causes[-1]
    name, message = _split(deepest)
    for outer in reversed(causes[:-1]):
        outer_message = _split(outer)[1]
        if message and message in outer_message and name not in outer_message:
            deepest, (name, message) = outer, _split(outer)
    short, message = _split(deepest)
    short = short.rpartition(".")[2].rpartition("$")[2]
    return f"{short}: {message}" if short and message else short or message


def _split(cause: str) -> tuple[str, str]:
    """Class and message of a cause."""
    found = _CLASS.match(cause)
    return (found[1], cause[found.end() :]) if found else ("", cause)
