"""Extract the root cause from a stack trace of Java, Python, or one inside the other."""

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
"""Text in an error -> advice on what to do."""


def cause_of(trace: str) -> str:
    """Return the root cause in a stack trace as one line, with advice if there is any.

    For a Java trace this is the last cause, or an outer one that has the same message and more. For a Python trace
    inside a Java trace, it is Python's error.
    """
    text = trace.partition(_CLIENT)[0].strip() or trace
    lines = [line.strip() for line in _python_part(text)]
    found = _python_error(lines) or _java_cause([line for line in text.splitlines() if line.strip()])
    sentence = " ".join(found.split())[:_TEXT_CHARACTERS] or "no reason given"
    way_out = next((what for name, what in _WAYS_OUT.items() if name in sentence), "")
    return f"{sentence.rstrip('.')}: {way_out}" if way_out else sentence


def _python_part(text: str) -> list[str]:
    """Return the lines of the last Python traceback in a text, without the Java lines after it."""
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
    """Return the error line of a Python traceback, "" if there is none or it wraps a Java error."""
    is_javas = any(line.startswith("py4j.protocol.") for line in lines)
    return "" if is_javas or not lines else lines[-1]


def _java_cause(lines: list[str]) -> str:
    """Return the root cause of a Java trace as class and message."""
    messages = [
        line.strip() for line in lines if not line.startswith("\t") and not line.strip().startswith(("at ", "... "))
    ]
    causes = [line.removeprefix(_CAUSED) for line in messages if line.startswith(_CAUSED)] or messages[:1]
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
    """Split a cause into class name and message."""
    found = _CLASS.match(cause)
    return (found[1], cause[found.end() :]) if found else ("", cause)
