"""Register attacks and run them: each module ``attack_*.py`` beside this one holds those of one finding.

An attack is a function that tries hostile inputs and returns an ``Outcome``. The quick ones run in ``make test``,
all of them in ``make attack``.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

FINDINGS: Final = (
    *("C1", "C2", "C3", "C4", "C5", "C6", "C7"),
    *("H1", "H2", "H3", "H4", "H5"),
    *("M1", "M2", "M3", "M4", "M5", "M6", "M7"),
    "L",
)
"""The findings of the report of 2026-11-24; each needs at least one attack."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an attack did.

    Attributes:
        tries: hostile inputs that were tried.
        effect: one sentence: what they did.
        held: whether tocsin withstood all of them.
    """

    tries: int
    effect: str
    held: bool


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack.

    Attributes:
        finding: which finding of the report it repeats.
        name: what is attacked.
        is_slow: whether only ``make attack`` runs it.
        run: tries it.
    """

    finding: str
    name: str
    is_slow: bool
    run: Callable[[], Outcome]

    @property
    def label(self) -> str:
        """A readable test id."""
        return f"{self.finding}-{self.name.replace(' ', '-')}"


_ATTACKS: dict[str, Attack] = {}


def attack(finding: str, name: str, *, slow: bool = False) -> Callable[[Callable[[], Outcome]], Callable[[], Outcome]]:
    """Register a function as an attack.

    Args:
        finding: a member of ``FINDINGS``.
        name: what is attacked, unique for the finding.
        slow: whether it needs processes or more than seconds; ``make test`` leaves it out.
    """

    def register(run: Callable[[], Outcome]) -> Callable[[], Outcome]:
        if finding not in FINDINGS:
            raise ValueError(f"{finding}: no finding of the report ({' '.join(FINDINGS)})")
        found = Attack(finding, name, slow, run)
        if found.label in _ATTACKS:
            raise ValueError(f"{found.label} is registered twice")
        _ATTACKS[found.label] = found
        return run

    return register


def attacks() -> tuple[Attack, ...]:
    """All attacks, by finding and name."""
    package = importlib.import_module("tests.attacks")
    for module in pkgutil.iter_modules(package.__path__):
        if module.name.startswith("attack_"):
            importlib.import_module(f"tests.attacks.{module.name}")
    return tuple(_ATTACKS[label] for label in sorted(_ATTACKS))


def outcome_of(tried: Attack) -> Outcome:
    """Run an attack; one that raises did not hold."""
    try:
        return tried.run()
    except Exception as error:  # noqa: BLE001  # the supervising loop of all attacks
        where = traceback.extract_tb(error.__traceback__)[-1]
        return Outcome(
            1, f"raised {type(error).__name__} at {where.filename}:{where.lineno}: {error}"[:500], held=False
        )


def line_of(tried: Attack, outcome: Outcome) -> str:
    """The line that ``make attack`` prints."""
    return json.dumps(
        {
            "finding": tried.finding,
            "attack": tried.name,
            "tries": outcome.tries,
            "effect": outcome.effect,
            "held": outcome.held,
        }
    )


def missing(tried: Iterable[Attack]) -> tuple[str, ...]:
    """The findings that no attack repeats."""
    seen = {one.finding for one in tried}
    return tuple(finding for finding in FINDINGS if finding not in seen)
