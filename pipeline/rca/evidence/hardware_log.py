"""Log of the hardware events of a job's machines, kept per host for some minutes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from typing import Any

from tocsin.pipeline.rca.evidence.hardware_facts import (
    WEAK_CAUSES,
    HardwareFact,
    is_of,
    outage_of,
    part_of,
    rate_of,
    slows,
)
from tocsin.schemas.events import IB_PORT
from tocsin.schemas.hardware import HardwareMeaning, cause_of_event
from tocsin.schemas.records import NS_PER_SECOND, Event, EventSource
from tocsin.schemas.verdicts import ComponentKind, FaultKind, Suspect

_KEPT_PER_HOST = 32


@dataclass(frozen=True, slots=True)
class HardwareRules:
    """Settings.

    Attributes:
        keep_ns: age up to which an event explains what happens.
        open_ns: age up to which a fatal event opens a verdict by itself.
        impact_ns: an event without impact on the job within this time had none.
        steps_late_ns: longest time until a step's record reaches the engine, a metric slice after its end.
        stall_before_ns: an event can explain a standstill that begins at most this long after it.
        stall_after_ns: or at most this long before it; by then nothing else must have explained the standstill.
        before_ns: symptoms may show this long before the event that explains them is logged.
        max_host_ratio: when more than this share of the hosts report the same together, its cause lies outside of them.
        together_ns: hosts that report the same cause within this time report it together.
        flap_count: a port that came back this often within ``keep_ns`` is broken. Once is usual in many fabrics.
        flap_ns: time within which a port that went down is usually up again.
        flap_share_ratio: a flapping port has impact when it was down for at least this share of the time.
        flap_cost_ratio: and when the mean step grew by at least this share of that time.
        ailing_count: a host with this many reports of corrected memory errors within ``keep_ns`` has failing memory.
            That alone does not accuse it, but its deviations are no sign of more work.
    """

    keep_ns: int = 600 * NS_PER_SECOND
    open_ns: int = 120 * NS_PER_SECOND
    impact_ns: int = 60 * NS_PER_SECOND
    steps_late_ns: int = 7 * NS_PER_SECOND
    stall_before_ns: int = 10 * NS_PER_SECOND
    stall_after_ns: int = 30 * NS_PER_SECOND
    before_ns: int = 60 * NS_PER_SECOND
    max_host_ratio: float = 0.125
    together_ns: int = 10 * NS_PER_SECOND
    flap_count: int = 3
    flap_ns: int = 10 * NS_PER_SECOND
    flap_share_ratio: float = 0.03
    flap_cost_ratio: float = 0.5
    ailing_count: int = 3

    def broke_with(self, fact: HardwareFact, onset_ns: int) -> bool:
        """Return whether the driver told that a part broke for good about the time at which a job came to stand.

        A port that is down is none: most come back by themselves.

        Args:
            fact: what was reported.
            onset_ns: begin of the standstill.
        """
        is_broken = fact.accuses and fact.is_of_driver and fact.fault == FaultKind.FAIL_STOP.value
        is_near = onset_ns - self.stall_before_ns <= fact.ts_ns <= onset_ns + self.stall_after_ns
        return is_broken and is_near and fact.name != IB_PORT


class HardwareLog:
    """The hardware events of one job's machines.

    Attributes:
        facts: host -> what its events say, the oldest first.
    """

    def __init__(self, rules: HardwareRules) -> None:
        """Start without events.

        Args:
            rules: settings.
        """
        self._rules = rules
        self.facts: dict[str, list[HardwareFact]] = {}

    def take(self, event: Event) -> None:
        """Keep what an event says; an event that says that a part is well removes what was said of it before."""
        meaning, part = cause_of_event(event), part_of(event)
        known = self.facts.get(event.host, [])
        if meaning is None:
            if known:
                self.facts[event.host] = [fact for fact in known if not is_of(fact, event.name, part)]
            return
        best = max([rate_of(event), *(f.best_gbits_per_second for f in known if is_of(f, event.name, part))])
        outage = (0, 0, 0)
        if event.name == IB_PORT and meaning.fault != "fail_stop":
            outage = outage_of(event, [fact for fact in known if is_of(fact, event.name, part)], self._rules.keep_ns)
            meaning, known = self._came_back(event, meaning, part, best)
        fact = HardwareFact(
            event.ts_ns,
            event.host,
            event.name,
            meaning.cause,
            meaning.fault,
            meaning.accuses,
            meaning.text,
            event.rank,
            part,
            best,
            *outage,
            is_of_driver=event.source is EventSource.KERNEL,
        )
        oldest_ns = event.ts_ns - self._rules.keep_ns
        self.facts[event.host] = [*(f for f in known if f.ts_ns >= oldest_ns), fact][-_KEPT_PER_HOST:]

    def _came_back(
        self, event: Event, meaning: HardwareMeaning, part: str, best: float
    ) -> tuple[HardwareMeaning, list[HardwareFact]]:
        """Return what a port that is up again means, and the host's facts without those that said it was down.

        A port that runs slower than before, or came back several times, has a bad cable.

        Args:
            event: the event.
            meaning: what such an event means by itself.
            part: the port; "": not known.
            best: the highest rate that the port was seen to run at, Gb/s.
        """
        known = self.facts.get(event.host, [])
        of_port = [fact for fact in known if is_of(fact, event.name, part)]
        kept = [fact for fact in known if fact not in of_port or not fact.accuses]
        oldest_ns = event.ts_ns - self._rules.keep_ns
        count = 1 + sum(not fact.accuses and fact.ts_ns >= oldest_ns for fact in of_port)
        text = ""
        if meaning.fault == "degraded" and 0.0 < rate_of(event) < best:
            text = f"{part or 'a port'} runs at {rate_of(event):g} Gb/s, it had {best:g}"
        elif meaning.fault == "degraded" and count >= self._rules.flap_count:
            text = f"the link of {part or 'a port'} came back {count} times: its cable"
        return HardwareMeaning("aoc_error", "fail_slow", accuses=True, text=text) if text else meaning, kept

    def hosts_with_reports(self, now_ns: int) -> frozenset[str]:
        """Return the hosts that lately reported a broken part, or corrected memory errors several times."""
        oldest_ns = now_ns - self._rules.keep_ns
        recent = {
            host: [fact for fact in facts if fact.cause not in ("", *WEAK_CAUSES) and fact.ts_ns >= oldest_ns]
            for host, facts in self.facts.items()
        }
        return frozenset(
            host
            for host, facts in recent.items()
            if any(fact.accuses for fact in facts)
            or sum(fact.cause == "ecc_error" for fact in facts) >= self._rules.ailing_count
        )

    def accusing_hosts(self, hosts: Collection[str], onset_ns: int, cause: str = "") -> frozenset[str]:
        """Return those of these hosts whose driver or kernel reported a broken part around an onset or later.

        Args:
            hosts: names of hosts.
            onset_ns: the onset.
            cause: only events of this cause count; "": all do.
        """
        oldest_ns = onset_ns - self._rules.before_ns
        return frozenset(
            host
            for host in hosts
            if any(
                fact.accuses and fact.is_of_driver and fact.ts_ns >= oldest_ns and cause in ("", fact.cause)
                for fact in self.facts.get(host, ())
            )
        )

    def said_of(self, suspect: Suspect) -> list[HardwareFact]:
        """Return what was said of a suspect machine, or of a rank whose machine is not known."""
        if suspect.component.kind is not ComponentKind.RANK:
            return self.facts.get(suspect.component.name, [])
        return [fact for _, facts in sorted(self.facts.items()) for fact in facts if fact.rank in suspect.ranks]

    def degrade(self, host: str) -> None:
        """Let a host's reports of slow parts accuse nobody any more; they count as deviations without impact."""
        self.facts[host] = [
            replace(fact, fault=FaultKind.DEGRADED.value) if slows(fact) else fact for fact in self.facts.get(host, [])
        ]

    def to_state(self) -> list[Any]:
        """Return the state as a JSON-able object."""
        return [[host, [asdict(fact) for fact in facts]] for host, facts in sorted(self.facts.items())]

    def load_state(self, state: list[Any]) -> None:
        """Restore the state that ``to_state`` returned."""
        self.facts = {host: [HardwareFact(**fact) for fact in facts] for host, facts in state}
