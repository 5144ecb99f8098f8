"""Conditions of a policy's rules that no verdict can fulfil, and names of exceptions that nobody knows."""

from __future__ import annotations

import builtins
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tocsin.pipeline.actions.policy.codes import CODE_ACTIONS, HARDWARE_RANK
from tocsin.pipeline.core.marked_file import MarkedFile
from tocsin.schemas.causes import CAUSES
from tocsin.schemas.errors import ConfigError

_OF_PYTHON: Final = frozenset(
    name for name, one in vars(builtins).items() if isinstance(one, type) and issubclass(one, BaseException)
)
_OF_LIBRARIES: Final = frozenset(
    {
        # PyTorch: torch, torch.distributed, torch.distributed.elastic
        "AcceleratorError",
        "ChildFailedError",
        "DistBackendError",
        "DistError",
        "DistNetworkError",
        "DistQueueEmptyError",
        "DistStoreError",
        "OutOfMemoryError",
        "ProcessExitedException",
        "ProcessRaisedException",
        "RendezvousConnectionError",
        "RendezvousTimeoutError",
        # the standard library
        "BrokenProcessPool",
        "CalledProcessError",
        "Empty",
        "Full",
        "HTTPError",
        "JSONDecodeError",
        "PicklingError",
        "TimeoutExpired",
        "URLError",
        "UnpicklingError",
    }
)
KNOWN_ERRORS: Final = _OF_PYTHON | _OF_LIBRARIES
"""Exceptions that training programs end with: all of Python's own, and some of PyTorch's and the standard library's."""
_NAME: Final = re.compile(r"\w+")


def check_conditions(file: MarkedFile, rules: Sequence[Mapping[str, Any]]) -> None:
    """Check that the condition of each rule can hold.

    Args:
        file: the policy file, for places.
        rules: its rules, checked against the schema.

    Raises:
        ConfigError: names file, line and key of the first condition that no verdict can fulfil.
    """
    for index, rule in enumerate(rules):
        match = rule["match"]
        for key, must in _contradictions(match):
            raise ConfigError(file.where(("rules", index, "match", key)), match[key], must)
        for place, name in _errors(index, match):
            if _NAME.fullmatch(name) is None:
                must = "one word, the last of a dotted name: a program's text is compared word by word"
                raise ConfigError(file.where(place), name, must)


def unknown_errors(file: MarkedFile, rules: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return a line for each exception that neither Python nor a well-known library has: it may be the user's own.

    Args:
        file: the policy file, for places.
        rules: its rules.
    """
    return tuple(
        f"{file.where(place)}: {name} is no exception of Python or PyTorch{_hint(name)}; "
        "it counts where your program raises it"
        for index, rule in enumerate(rules)
        for place, name in _errors(index, rule["match"])
        if name not in KNOWN_ERRORS
    )


def _contradictions(match: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield keys of a condition that exclude others of it, each with what the value must be instead."""
    causes, blames, codes = (_listed(match.get(key)) for key in ("cause", "blames", "code"))
    if causes and blames and not any(CAUSES[one].blames in blames for one in causes):
        found = sorted({CAUSES[one].blames for one in causes})
        yield "blames", f"{' or '.join(found)}, which is what {_some(causes)} blames; no verdict fulfils both"
    if codes and match.get("words_only") is True:
        yield "words_only", "left out or false: a verdict that rests on a code rests on more than words"
    if codes and "error" in match and all(CODE_ACTIONS[one] >= HARDWARE_RANK for one in codes):
        yield "error", f"left out: beside a code of the hardware ({_some(codes)}) no exception counts"


def _errors(index: int, match: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the exceptions that a rule's condition names, each with its place in the file."""
    value = match.get("error")
    place = ("rules", index, "match", "error")
    if isinstance(value, list):
        yield from (((*place, number), name) for number, name in enumerate(value))
    elif value is not None:
        yield place, value


def _hint(name: str) -> str:
    """Return the known exception that a name may mean, as text; "" if none is near."""
    near = difflib.get_close_matches(name, KNOWN_ERRORS, 1, 0.8)
    return f" (did you mean {near[0]}?)" if near else ""


def _some(names: Sequence[str]) -> str:
    """Return the first of some names, and how many more there are."""
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _listed(value: Any) -> list[str]:
    """Return a word or a list of words as a list; nothing as an empty one."""
    return value if isinstance(value, list) else [] if value is None else [value]
