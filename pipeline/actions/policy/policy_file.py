"""Reads a policy file; a mistake is named by file, line and key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tocsin.pipeline.actions.policy.conditions import check_conditions, unknown_errors
from tocsin.pipeline.actions.policy.config import (
    Policy,
    PolicyRule,
    ProposalTarget,
    Repetition,
    RuleMatch,
    Tolerance,
)
from tocsin.pipeline.actions.policy.limits import limits_of
from tocsin.pipeline.actions.policy.policy_schema import policy_schema
from tocsin.pipeline.core.marked_file import MarkedFile, check_schema, read_marked
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.verdicts import ActionKind

DEFAULT_POLICY: Final = Path(__file__).with_name("policy.yaml")
"""The policy that ships."""
_FORGET_SECONDS: Final = 21_600.0
_FLAGS: Final = {"named": "is_named", "words_only": "is_words_only", "common": "has_common"}
"""Key of a condition -> field of ``RuleMatch``."""
_NUMBERS: Final = ("min_confidence", "after_evict_seconds")


def load_policy(path: Path = DEFAULT_POLICY) -> Policy:
    """Return the policy of a file.

    Raises:
        ConfigError: names file, line and key of the first mistake.
    """
    file = read_marked(path, "policy file")
    check_schema(file, policy_schema())
    content: Any = file.value
    _check_rules(file, content["rules"])
    check_conditions(file, content["rules"])
    places = {one["name"]: file.where(("rules", index)) for index, one in enumerate(content["rules"])}
    return Policy(
        tuple(_rule_of(one) for one in content["rules"]),
        float(content.get("forget_seconds", _FORGET_SECONDS)),
        places,
        limits_of(content.get("limits", {})),
        unknown_errors(file, content["rules"]),
    )


def _check_rules(file: MarkedFile, rules: Sequence[Mapping[str, Any]]) -> None:
    """Check what the schema cannot say about rules.

    Raises:
        ConfigError: a name stands twice, or settings of one rule exclude each other.
    """
    seen: set[str] = set()
    for index, rule in enumerate(rules):
        if rule["name"] in seen:
            raise ConfigError(file.where(("rules", index, "name")), rule["name"], "a name of its own")
        seen.add(rule["name"])
        is_list = isinstance(rule["do"], list)
        for key in ("tolerate", "again"):
            if is_list and key in rule:
                must = "left out where `do` is a list: its steps are the repetitions"
                raise ConfigError(file.where(("rules", index, key)), rule[key], must)
        if is_list and rule.get("target") != ProposalTarget.JOB.value:
            must = "job where `do` is a list: its steps are counted for a job"
            raise ConfigError(file.where(("rules", index, "target")), rule.get("target"), must)
        if rule.get("target") == ProposalTarget.COMMON.value and rule["match"].get("common") is not True:
            must = "suspects or job, or `common: true` in the rule's match"
            raise ConfigError(file.where(("rules", index, "target")), rule["target"], must)


def _rule_of(table: Mapping[str, Any]) -> PolicyRule:
    """Return the rule of a checked table."""
    tolerate, again = table.get("tolerate"), table.get("again")
    return PolicyRule(
        table["name"],
        _match_of(table["match"]),
        tuple(ActionKind(one) for one in _listed(table["do"])),
        ProposalTarget(table.get("target", ProposalTarget.SUSPECTS.value)),
        table.get("approval", False),
        None if tolerate is None else Tolerance(**tolerate),
        None if again is None else Repetition(again["count"], again["within_seconds"], ActionKind(again["do"])),
        table.get("meaning", ""),
    )


def _match_of(table: Mapping[str, Any]) -> RuleMatch:
    """Return the condition of a checked table."""
    fields: dict[str, Any] = {}
    for key, value in table.items():
        if key in _FLAGS:
            fields[_FLAGS[key]] = value
        else:
            fields[key] = float(value) if key in _NUMBERS else tuple(_listed(value))
    return RuleMatch(**fields)


def _listed(value: Any) -> list[str]:
    """Return a word or a list of words as a list."""
    return value if isinstance(value, list) else [value]
