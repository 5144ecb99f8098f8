"""Whether a rule's condition fits a verdict."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tocsin.pipeline.actions.policy.codes import (
    CODE_ACTIONS,
    HARDWARE_RANK,
    FoundCode,
    code_of,
    is_words_only,
    words_of,
)
from tocsin.pipeline.actions.policy.config import RuleMatch
from tocsin.schemas.causes import CAUSES
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Verdict


@dataclass(frozen=True, slots=True)
class VerdictFacts:
    """A verdict with what conditions ask of it.

    Attributes:
        verdict: the verdict.
        code: the code on which it rests, None for none.
        is_words_only: whether only words of a user's program tell it.
        words: these words.
        evicted_ns: when the job lost a machine by an eviction last, 0 for never.
    """

    verdict: Verdict
    code: FoundCode | None
    is_words_only: bool
    words: str
    evicted_ns: int

    @property
    def blames(self) -> str:
        """Word of ``Cause.blames`` for the verdict's cause; a cause outside the list counts as ``unknown``."""
        return CAUSES.get(self.verdict.cause, CAUSES["unknown"]).blames

    @property
    def is_hardware_code(self) -> bool:
        """Whether the verdict rests on a code about the hardware. The program's exception is then its consequence."""
        return self.code is not None and CODE_ACTIONS[self.code.action] >= HARDWARE_RANK


def facts_of(verdict: Verdict, heard: tuple[FoundCode, ...] = (), evicted_ns: int = 0) -> VerdictFacts:
    """Return a verdict with what conditions ask of it.

    Args:
        verdict: the verdict.
        heard: codes in events of its hosts about the time of its evidence.
        evicted_ns: when its job lost a machine by an eviction last, 0 for never.
    """
    return VerdictFacts(verdict, code_of(verdict, heard), is_words_only(verdict), words_of(verdict), evicted_ns)


def fits(match: RuleMatch, facts: VerdictFacts) -> bool:
    """Return whether a condition holds of a verdict."""
    verdict = facts.verdict
    return (
        (not match.fault or verdict.fault.value in match.fault)
        and (not match.cause or verdict.cause in match.cause)
        and (not match.blames or facts.blames in match.blames)
        and (not match.action or verdict.action.value in match.action)
        and (match.is_named is None or match.is_named is bool(verdict.suspects))
        and (match.has_common is None or match.has_common is (verdict.common is not None))
        and verdict.confidence >= match.min_confidence
        and (not match.code or (facts.code is not None and facts.code.action in match.code))
        and (match.is_words_only is None or match.is_words_only is facts.is_words_only)
        and (not match.witness or any(one.kind.value in match.witness for one in verdict.witnesses))
        and (not match.job or any(fnmatchcase(verdict.job.job_id, one) for one in match.job))
        and (not match.error or (_names_error(match.error, facts.words) and not facts.is_hardware_code))
        and (not match.after_evict_seconds or _is_after(match.after_evict_seconds, facts))
    )


def _names_error(names: tuple[str, ...], words: str) -> bool:
    """Return whether a program's words name one of these exceptions, such as ``builtins.TypeError: …``."""
    return bool(words) and bool(set(re.findall(r"\w+", words)).intersection(names))


def _is_after(seconds: float, facts: VerdictFacts) -> bool:
    """Return whether the fault began within a time after the job's last eviction."""
    since_ns = facts.verdict.onset_ns - facts.evicted_ns
    return facts.evicted_ns > 0 and 0 <= since_ns <= seconds * NS_PER_SECOND
