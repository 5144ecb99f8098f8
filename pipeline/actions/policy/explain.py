"""What a cause, an event or a code leads to under a policy, as lines for people."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tocsin.pipeline.actions.policy.codes import CODE_ACTIONS, HARDWARE_RANK, FoundCode, codes_in
from tocsin.pipeline.actions.policy.config import TAKING, Policy, PolicyRule, ProposalTarget, RuleMatch
from tocsin.pipeline.actions.policy.proven import BY_PROCESS
from tocsin.schemas import events
from tocsin.schemas.causes import CAUSES
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.formats.xid import meaning_of_xid
from tocsin.schemas.hardware import cause_of_event
from tocsin.schemas.kinds import EventSource, Severity
from tocsin.schemas.records import Event, JobKey

_BAD_PAYLOADS: Final[Mapping[str, Mapping[str, Any]]] = {
    events.CLOCKS_EVENT: {"reasons": ["hw_thermal"]},
    events.ECC: {"kind": "uncorrected", "count": 1},
    events.FILE_SYSTEM: {"kind": "read_only", "device": "sda"},
    events.GPU_LOST: {},
    events.GPU_RECOVERY: {"action": 1},
    events.IB_PORT: {"port": "mlx5_0/1", "state": "down"},
    events.NET_LINK: {"device": "eth0", "state": "cable_error"},
    events.NVLINK_ERROR: {"state": "down"},
    events.OOM: {},
    events.PCIE_ERROR: {"kind": "fatal"},
    events.PCIE_LINK: {"gen": 1, "width": 8, "max_gen": 5, "max_width": 16},
    events.ROW_REMAP: {"failure": True},
    events.SEGFAULT: {},
    events.THERMAL: {},
}
"""Name of an event -> a payload that reports a fault."""
_FLAGS: Final = (
    ("is_named", "suspects are named", "nobody is named"),
    ("is_words_only", "only words of the program tell it", "more than words tell it"),
    ("has_common", "the suspects share a component", "the suspects share nothing"),
)


def explained(policy: Policy, words: str) -> Iterator[str]:
    """Yield lines that say what a cause, an event's name, an XID or a DCGM error leads to.

    Args:
        policy: the policy.
        words: such as ``ecc_error``, ``ib_port``, ``xid 79``, ``DCGM_FR_NVLINK_DOWN``.

    Raises:
        ConfigError: the words name nothing that is known.
    """
    if words in CAUSES:
        yield from _cause_lines(policy, words)
    elif codes := codes_in(re.sub(r"^(s?xid)\D*", r"\1 ", words, flags=re.IGNORECASE)):
        for code in codes:
            yield from _code_lines(policy, code)
    elif words in _BAD_PAYLOADS:
        yield from _event_lines(policy, words)
    else:
        known = [*CAUSES, *_BAD_PAYLOADS]
        near = difflib.get_close_matches(words, known, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ConfigError("CAUSE|EVENT", words, f"a cause, an event of hardware, 'xid N' or a DCGM_FR_ name{hint}")


def rule_words(rule: PolicyRule) -> str:
    """Return what a rule asks for and when, as text."""
    target = "" if rule.target is ProposalTarget.SUSPECTS else f" ({rule.target.value})"
    parts = [f"{rule.name}: {', then '.join(one.value for one in rule.kinds)}{target}"]
    if conditions := match_words(rule.match):
        parts.append(f"if {'; '.join(conditions)}")
    if rule.tolerate is not None:
        limit = rule.tolerate
        parts.append(
            f"only people are told until {limit.count} alerts of one host in {limit.within_seconds:g} s, "
            f"or one that stands for {limit.stands_seconds:g} s"
        )
    if rule.again is not None:
        again = rule.again
        parts.append(
            f"{again.kind.value} instead from {again.count} times on one host in {again.within_seconds:g} s on"
        )
    if rule.needs_approval:
        parts.append("a person must approve")
    return "; ".join(parts)


def match_words(match: RuleMatch) -> list[str]:
    """Return the parts of a condition as texts."""
    names = ("job", "fault", "cause", "blames", "action", "code", "error", "witness")
    found = [f"{name} {' or '.join(getattr(match, name))}" for name in names if getattr(match, name)]
    for name, yes, no in _FLAGS:
        if (value := getattr(match, name)) is not None:
            found.append(yes if value else no)
    if match.min_confidence:
        found.append(f"confidence from {match.min_confidence:g}")
    if match.after_evict_seconds:
        found.append(f"at most {match.after_evict_seconds:g} s after an eviction in this job")
    return found


def _cause_lines(policy: Policy, name: str) -> Iterator[str]:
    """Yield what a cause leads to: its meaning, then the rules that may take it, in their order."""
    cause = CAUSES[name]
    yield f"{name}: {cause.meaning}; blames {cause.blames}"
    yield "the first rule whose condition holds counts:"
    for rule in policy.rules:
        match = rule.match
        if (not match.cause or name in match.cause) and (not match.blames or cause.blames in match.blames):
            yield f"  {rule_words(rule)}"
    if name in BY_PROCESS:
        yield "no machine is taken for it, unless its own driver told of a broken part then: that part counts"
    elif cause.blames != "machine":
        yield "no machine is taken for it, whatever a rule says"


def _code_lines(policy: Policy, code: FoundCode) -> Iterator[str]:
    """Yield what a code leads to."""
    yield f"{code.name}: NVIDIA's table asks for {code.action}"
    rule = next((one for one in policy.rules if code.action in one.match.code), None)
    if rule is not None:
        yield f"  {rule_words(rule)}"
    if CODE_ACTIONS[code.action] < HARDWARE_RANK:
        yield "no machine is taken for it, whatever a rule says"
        return
    number = code.name.removeprefix("XID ")
    cause = meaning_of_xid(int(number)).cause if number.isdecimal() else ""
    if cause in CAUSES:
        yield from _cause_lines(policy, cause)
    else:
        yield "it is about the hardware: the cause of the verdict that rests on it decides"


def _event_lines(policy: Policy, name: str) -> Iterator[str]:
    """Yield what an event of hardware leads to."""
    payload = _BAD_PAYLOADS[name]
    event = Event(JobKey("", ""), "", 0, -1, EventSource.KERNEL, name, Severity.ERROR, payload)
    meaning = cause_of_event(event)
    if meaning is None or not meaning.cause:
        yield f"{name}: noted, and no evidence"
        return
    alone = "may blame its machine alone" if meaning.accuses else "explains what other evidence shows"
    yield f"{name}: such as {meaning.text}; {alone}"
    yield from _cause_lines(policy, meaning.cause)
    if any(one in TAKING for rule in policy.rules for one in rule.kinds):
        yield "an event takes no machine: that needs a verdict"
