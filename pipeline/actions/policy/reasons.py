"""Named reasons of the policy's decisions that come from no rule of the file."""

from __future__ import annotations

from tocsin.schemas.reasons import NamedReason


class PolicyReason(NamedReason):
    """Reason for which the ladder changes what a rule asks for, or decides without one."""

    MILDER_ADVICE = (
        "engine_proposes_milder",
        "The rule would stop the job or take a machine, and the engine that saw the fault proposes something milder.",
    )
    PROGRAM_BLAMED = (
        "program_is_blamed",
        "The rule would take a machine for what code or data of the job did; people are told.",
    )
    CODE_TAKES_NOTHING = (
        "code_takes_no_machine",
        "The rule would take a machine for a code that is unknown, harmless, or a user program's own; people are told.",
    )
    WORDS_ONLY = (
        "words_take_no_machine",
        "The rule would take a machine, and only words of a user's program tell of the fault; people are told.",
    )
    NOBODY_NAMED = "nobody_named", "The rule would act on named machines, and the verdict names none; people are told."
    TOLERATED = "tolerated", "The rule waits until it happens again, or stands for long."
    STEPS_EXHAUSTED = "steps_exhausted", "The job failed after the last step of the rule, too; people are told."
    NO_RULE = "no_rule", "No rule of the policy fits; people are told."
    CODE_REPEATED = (
        "code_repeated",
        "A GPU reported codes of user programs again and again: diagnostics, and no verdict asks for them.",
    )
    CHECKS_FAILED = "checks_failed", "A machine failed the checks that the ladder asked for."
