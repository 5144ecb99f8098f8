"""Policy files: a mistake is named by file, line and key; the schema allows what the program reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.pipeline.actions.policy.samples import asked, ladder, verdict
from tocsin.pipeline.actions.config import (
    HOUR_SECONDS,
    MACHINE_BUDGETS,
    RESTART_BUDGETS,
    BudgetLimit,
    BudgetScope,
    ControllerConfig,
)
from tocsin.pipeline.actions.policy.config import Policy, PolicyRule, ProposalTarget, Repetition, RuleMatch, Tolerance
from tocsin.pipeline.actions.policy.limits import PolicyLimits
from tocsin.pipeline.actions.policy.policy_file import DEFAULT_POLICY, load_policy
from tocsin.pipeline.actions.policy.policy_schema import policy_schema
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.verdicts import ActionKind

FILE = """# a policy
version: 1
forget_seconds: 60
limits:
  spares: 3
  machines:
    job: {hour: {count: 5, share: 0.2}}
rules:
  - name: first
    match: {cause: [ecc_error, gpu_card_drop], named: true, min_confidence: 0.5}
    do: evict
    approval: true
  - name: second
    match: {cause: nic_dropout}
    do: drain
    tolerate: {count: 3, within_seconds: 60, stands_seconds: 90}
    again: {count: 2, within_seconds: 10, do: probe}
  - name: third
    match: {named: false}
    do: [probe, restart]
    target: job
"""


def _write(folder: Path, text: str) -> Path:
    path = folder / "policy.yaml"
    path.write_text(text)
    return path


def test_a_right_file_is_read(tmp_path: Path) -> None:
    path = _write(tmp_path, FILE)
    first = RuleMatch(cause=("ecc_error", "gpu_card_drop"), is_named=True, min_confidence=0.5)
    second = RuleMatch(cause=("nic_dropout",))

    assert load_policy(path) == Policy(
        (
            PolicyRule("first", first, (ActionKind.EVICT,), needs_approval=True),
            PolicyRule(
                "second",
                second,
                (ActionKind.DRAIN,),
                tolerate=Tolerance(3, 60, 90),
                again=Repetition(2, 10, ActionKind.PROBE),
            ),
            PolicyRule("third", RuleMatch(is_named=False), (ActionKind.PROBE, ActionKind.RESTART), ProposalTarget.JOB),
        ),
        60.0,
        {"first": f"{path}:9: rules.0", "second": f"{path}:13: rules.1", "third": f"{path}:18: rules.2"},
        PolicyLimits(3, None, (BudgetLimit(BudgetScope.JOB, HOUR_SECONDS, 5, 0.2), *MACHINE_BUDGETS[1:])),
    )


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("cause: [ecc", "cuase: [ecc", ":10: rules.0.match.cuase = 'cuase': must be one of"),
        ("ecc_error", "ecc_eror", ":10: rules.0.match.cause.0 = 'ecc_eror'"),
        ("ecc_error", "ecc_eror", "(did you mean ecc_error?)"),
        ("do: evict", "do: evct", ":11: rules.0.do = 'evct'"),
        ("do: evict", "do: none", ":11: rules.0.do = 'none'"),
        ("    do: evict\n", "", ":9: rules.0.do = None: must be given"),
        ("0.5", "5", ":10: rules.0.match.min_confidence = 5"),
        ("approval: true", "approval: maybe", ":12: rules.0.approval = 'maybe'"),
        ("name: second", "name: first", ":13: rules.1.name = 'first': must be a name of its own"),
        ("name: second", "name: first\n    name: second", ":14: rules.1.name = 'given twice'"),
        ("count: 3", "count: 1", ":16: rules.1.tolerate.count = 1"),
        ("within_seconds: 10, do: probe", "within_seconds: 10, do: evict", ":17: rules.1.again.do = 'evict'"),
        ("    target: job\n", "", ":18: rules.2.target = None: must be job"),
        ("target: job", "target: common", ":21: rules.2.target = 'common'"),
        ("    do: drain\n", "    do: drain\n    target: common\n", ":16: rules.1.target = 'common'"),
        ("do: drain", "do: [probe, drain]", ":16: rules.1.tolerate"),
        ("version: 1", "version: 2", ":2: version = 2"),
        ("spares: 3", "spars: 3", ":5: limits.spars = 'spars'"),
        ("spares: 3", "spares: -1", ":5: limits.spares = -1"),
        ("spares: 3", "may_shrink: 1", ":5: limits.may_shrink = 1"),
        ("{count: 5,", "{cuont: 5,", ":7: limits.machines.job.hour"),
        ("count: 5, share: 0.2", "count: 0", ":7: limits.machines.job.hour.count = 0"),
        ("share: 0.2", "share: 20", ":7: limits.machines.job.hour.share = 20"),
        ("job: {hour", "job: {month", ":7: limits.machines.job.month = 'month'"),
        ("  machines:", "  restarts:\n    leaf: {}\n  machines:", ":7: limits.restarts.leaf = 'leaf'"),
        ("rules:", "ruels:", ":8: ruels"),
        ("do: [probe", "do: [[probe", ":21"),
    ],
)
def test_a_mistake_is_named_by_line_and_key(tmp_path: Path, old: str, new: str, words: str) -> None:
    text = FILE.replace(old, new, 1)
    assert text != FILE
    with pytest.raises(ConfigError) as error:
        load_policy(_write(tmp_path, text))

    message = str(error.value)
    assert message.startswith(str(tmp_path / "policy.yaml"))
    assert words in message


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"policy file.*absent\.yaml"):
        load_policy(tmp_path / "absent.yaml")


def test_the_schema_is_one_and_allows_the_policy_that_ships() -> None:
    schema: Any = policy_schema()
    jsonschema.Draft202012Validator.check_schema(schema)

    jsonschema.validate(yaml.safe_load(DEFAULT_POLICY.read_text()), schema)
    assert all(rule.meaning for rule in load_policy().rules), "each rule that ships says what it is for"


def test_no_policy_takes_a_machine_for_a_program_or_an_unknown_code(tmp_path: Path) -> None:
    from tests.pipeline.actions.policy.samples import seen

    path = _write(tmp_path, "version: 1\nrules:\n  - {name: all, match: {}, do: evict}\n")

    assert asked(ladder(path), verdict("process_exit")) == [("notify", "n1", "program_is_blamed")]
    assert asked(ladder(path), verdict("unknown", evidence=(seen("xid", "XID 999"),))) == [
        ("notify", "n1", "code_takes_no_machine")
    ]
    assert asked(ladder(path), verdict("ecc_error", evidence=(seen("exit"),), witnesses=())) == [
        ("notify", "n1", "words_take_no_machine")
    ]
    assert asked(ladder(path), verdict("ecc_error", hosts=())) == [("notify", "", "nobody_named")]
    assert asked(ladder(path), verdict("ecc_error")) == [("evict", "n1", "all")]


def test_without_a_rule_people_are_told(tmp_path: Path) -> None:
    path = _write(tmp_path, "version: 1\nrules:\n  - {name: one, match: {cause: ecc_error}, do: evict}\n")

    assert asked(ladder(path), verdict("power_cap")) == [("notify", "", "no_rule")]


def test_the_limits_that_ship_are_the_defaults_and_are_all_written_down() -> None:
    written = yaml.safe_load(DEFAULT_POLICY.read_text())["limits"]
    limits = load_policy().limits

    assert limits == PolicyLimits()
    assert sum(map(len, written["machines"].values())) == len(MACHINE_BUDGETS)
    assert sum(map(len, written["restarts"].values())) == len(RESTART_BUDGETS)


def test_flags_count_instead_of_the_file(tmp_path: Path) -> None:
    limits = load_policy(_write(tmp_path, FILE.replace("spares: 3", "spares: 3\n  may_shrink: true"))).limits

    assert (of_file := limits.controller_config(is_dry_run=True)).is_dry_run
    assert (of_file.spare_count, of_file.may_shrink) == (3, True)
    assert of_file.machine_budgets[0].most_count == 5
    flags = limits.controller_config(is_dry_run=False, spare_count=0, may_shrink=False)
    assert (flags.is_dry_run, flags.spare_count, flags.may_shrink) == (False, 0, False)
    assert PolicyLimits().controller_config(is_dry_run=True) == ControllerConfig()
