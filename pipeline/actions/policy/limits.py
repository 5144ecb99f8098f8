"""Limits in the policy file: spares, jobs that can shrink, and budgets; what it leaves out keeps its default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tocsin.pipeline.actions.config import (
    DAY_SECONDS,
    HOUR_SECONDS,
    MACHINE_BUDGETS,
    RESTART_BUDGETS,
    WEEK_SECONDS,
    BudgetLimit,
    ControllerConfig,
)
from tocsin.pipeline.core.marked_file import Schema

WINDOWS: Final = {"hour": HOUR_SECONDS, "day": DAY_SECONDS, "week": WEEK_SECONDS, "at_once": 0}
"""Key of a budget -> length of its window in seconds, 0: how many are out at the same time."""
_NAMES: Final = {seconds: name for name, seconds in WINDOWS.items()}
MOST_SPARES: Final = 100_000
_SUBJECTS: Final = {
    "machines": (MACHINE_BUDGETS, "Most machines that are taken away."),
    "restarts": (RESTART_BUDGETS, "Most restarts and rollbacks that leave no machine out."),
}


@dataclass(frozen=True, slots=True)
class PolicyLimits:
    """What a policy file says of spares and budgets.

    Attributes:
        spare_count: machines that can take the place of another where no job controller says so, None: not said.
        may_shrink: whether jobs can go on with fewer machines where no job controller says so, None: not said.
        machine_budgets: limits for kinds that take machines away.
        restart_budgets: limits for restarts and rollbacks.
    """

    spare_count: int | None = None
    may_shrink: bool | None = None
    machine_budgets: tuple[BudgetLimit, ...] = MACHINE_BUDGETS
    restart_budgets: tuple[BudgetLimit, ...] = RESTART_BUDGETS

    def controller_config(
        self, *, is_dry_run: bool, spare_count: int | None = None, may_shrink: bool | None = None
    ) -> ControllerConfig:
        """Return the settings of a controller with these limits.

        Args:
            is_dry_run: True: actions are shown and never executed.
            spare_count: counts instead of the file's, None: the file's counts, 0 where it says nothing.
            may_shrink: counts instead of the file's, None: the file's counts, False where it says nothing.
        """
        spares = self.spare_count if spare_count is None else spare_count
        shrinks = self.may_shrink if may_shrink is None else may_shrink
        return ControllerConfig(
            is_dry_run=is_dry_run,
            spare_count=spares or 0,
            may_shrink=bool(shrinks),
            machine_budgets=self.machine_budgets,
            restart_budgets=self.restart_budgets,
        )


def limits_schema() -> Schema:
    """Return the JSON Schema of the key ``limits``."""
    properties: dict[str, Schema] = {
        "spares": {
            "type": "integer",
            "minimum": 0,
            "maximum": MOST_SPARES,
            "description": "Machines that can take the place of another, where no job controller says how many.",
        },
        "may_shrink": {
            "type": "boolean",
            "description": "Whether jobs can go on with fewer machines, where no job controller says so.",
        },
    }
    for key, (budgets, description) in _SUBJECTS.items():
        scopes: dict[str, Schema] = {}
        for scope in dict.fromkeys(one.scope.value for one in budgets):
            windows = [_NAMES[one.window_seconds] for one in budgets if one.scope.value == scope]
            scopes[scope] = {
                "type": "object",
                "properties": {window: _limit() for window in windows},
                "additionalProperties": False,
            }
        properties[key] = {
            "type": "object",
            "description": description,
            "properties": scopes,
            "additionalProperties": False,
        }
    return {
        "type": "object",
        "description": "Spares and budgets; what is left out keeps its default.",
        "properties": properties,
        "additionalProperties": False,
    }


def _limit() -> Schema:
    """Return the schema of one budget."""
    count: Schema = {"type": "integer", "minimum": 1, "maximum": 1_000_000, "description": "Most of them."}
    share: Schema = {
        "type": "number",
        "minimum": 0,
        "maximum": 1,
        "description": "Most of them as a share of the scope's machines, where their number is known; at least 1 of "
        "them is always allowed. Default: 1.",
    }
    return {
        "type": "object",
        "properties": {"count": count, "share": share},
        "required": ["count"],
        "additionalProperties": False,
    }


def limits_of(table: Mapping[str, Any]) -> PolicyLimits:
    """Return the limits of a checked table."""
    budgets = {key: _budgets(defaults, table.get(key, {})) for key, (defaults, _) in _SUBJECTS.items()}
    return PolicyLimits(table.get("spares"), table.get("may_shrink"), budgets["machines"], budgets["restarts"])


def _budgets(defaults: tuple[BudgetLimit, ...], table: Mapping[str, Any]) -> tuple[BudgetLimit, ...]:
    """Return the budgets of a checked table, those that it leaves out by default, in the order of the defaults."""
    found = []
    for one in defaults:
        said = table.get(one.scope.value, {}).get(_NAMES[one.window_seconds])
        if said is None:
            found.append(one)
        else:
            share_ratio = float(said.get("share", 1.0))
            found.append(BudgetLimit(one.scope, one.window_seconds, said["count"], share_ratio))
    return tuple(found)


def limit_words(limits: PolicyLimits) -> list[str]:
    """Return what the limits allow, one line for people each."""
    spares = "not said (0)" if limits.spare_count is None else str(limits.spare_count)
    shrinks = "not said (no)" if limits.may_shrink is None else ("yes" if limits.may_shrink else "no")
    lines = [f"spares: {spares}; jobs can shrink: {shrinks}"]
    for name, budgets in (("machines", limits.machine_budgets), ("restarts", limits.restart_budgets)):
        for scope in dict.fromkeys(one.scope for one in budgets):
            mine = [one for one in budgets if one.scope is scope]
            words = ", ".join(
                f"{_NAMES[one.window_seconds].replace('_', ' ')} {one.most_count}"
                + (f" or {100 * one.share_ratio:g} %" if one.share_ratio < 1.0 else "")
                for one in mine
            )
            lines.append(f"{name} of one {scope.value}: {words}" if scope.value != "fleet" else f"{name}: {words}")
    return lines
