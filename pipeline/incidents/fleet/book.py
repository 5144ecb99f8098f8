"""The fleet view's own verdicts: opened, renewed and closed under a key, with numbers that only rise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tocsin.pipeline.incidents.fleet.config import FleetConfig, FleetReason
from tocsin.schemas.cloudevents import decode_verdict, encode_verdict
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import JobKey
from tocsin.schemas.verdicts import (
    ActionKind,
    Component,
    ComponentKind,
    Evidence,
    FaultKind,
    Suspect,
    Verdict,
    VerdictState,
    verdict_id_of,
)

DETECTOR = "fleet"
"""Name of the detector in the evidence of the fleet view's own verdicts."""


@dataclass(frozen=True, slots=True)
class Opening:
    """First contents of a verdict of the fleet view.

    Attributes:
        job_id: ``idle``, ``fleet``, or the job that a host runs.
        fault: kind of the fault.
        cause: word of ``schemas.causes``.
        onset_ns: time of the first signal.
        reason: why it is opened.
        action: proposed action.
        texts: sentences of evidence.
        metric: the signal's name.
        hosts: suspects; none for an incident of the fleet.
        common: what the hosts share, None: not known.
    """

    job_id: str
    fault: FaultKind
    cause: str
    onset_ns: int
    reason: FleetReason
    action: ActionKind
    texts: tuple[str, ...]
    metric: str
    hosts: tuple[str, ...] = ()
    common: Component | None = None


class FleetBook:
    """The verdicts of the fleet view that stand, by key.

    Attributes:
        live: key -> newest line. A key is ``host/HOST/SIGNAL``, ``fleet/SIGNAL``, ``repeat/HOST`` or
            ``starts/HOST``.
        lines: lines that were made and not yet taken.
    """

    def __init__(self, config: FleetConfig, cluster: str) -> None:
        """Start without verdicts."""
        self._config = config
        self._cluster = cluster
        self.live: dict[str, Verdict] = {}
        self.lines: list[Verdict] = []

    def key_of(self, verdict_id: str) -> str:
        """Return the key of a standing verdict, "": it is none of these."""
        return next((key for key, one in self.live.items() if one.verdict_id == verdict_id), "")

    def open(self, key: str, opening: Opening, now_ns: int) -> Verdict:
        """Open a verdict under a key that has none, and return its first line; its state is ``confirmed``."""
        suspects = tuple(Suspect(Component(ComponentKind.HOST, host)) for host in opening.hosts)
        onset_ns = opening.onset_ns
        verdict = Verdict(
            verdict_id=verdict_id_of(JobKey(self._cluster, key, 0), suspects, opening.fault, onset_ns),
            job=JobKey(self._cluster, opening.job_id, 0),
            fault=opening.fault,
            cause=opening.cause,
            suspects=suspects,
            onset_ns=onset_ns,
            detected_ns=now_ns,
            confidence=0.9,
            action=opening.action,
            reason=opening.reason.value,
            evidence=tuple(Evidence(DETECTOR, opening.metric, 2.0, onset_ns, now_ns, text) for text in opening.texts),
            state=VerdictState.CONFIRMED,
            update=0,
            expires_ns=now_ns + 2 * self._config.renew_ns,
            common=opening.common,
        )
        self.live[key] = verdict
        self.lines.append(verdict)
        return verdict

    def change(self, key: str, now_ns: int, reason: str, **fields: Any) -> Verdict:
        """Replace fields of a standing verdict, and make its next line."""
        old = self.live[key]
        new = replace(
            old,
            update=old.update + 1,
            detected_ns=now_ns,
            expires_ns=now_ns + 2 * self._config.renew_ns,
            reason=reason,
            **fields,
        )
        self.live[key] = new
        self.lines.append(new)
        return new

    def close(self, key: str, now_ns: int, state: VerdictState, reason: str, text: str = "") -> None:
        """Close a standing verdict; a sentence about why is added to its evidence."""
        evidence = self.live[key].evidence
        if text:
            evidence = (*evidence, Evidence(DETECTOR, reason, 0.0, now_ns, now_ns, text))
        self.change(key, now_ns, reason, state=state, evidence=evidence)
        del self.live[key]

    def renew(self, now_ns: int) -> None:
        """Make a line for each standing verdict whose last line is ``renew_ns`` old."""
        for key, verdict in list(self.live.items()):
            if now_ns - verdict.detected_ns >= self._config.renew_ns:
                self.change(key, now_ns, Reason.STILL_TRUE.value)

    def take(self) -> list[Verdict]:
        """Return the lines that were made since the last call."""
        lines, self.lines = self.lines, []
        return lines

    def to_state(self) -> dict[str, Any]:
        """Return the state as a JSON-able object."""
        live = [[key, encode_verdict(one).decode()] for key, one in self.live.items()]
        return {"live": live, "lines": [encode_verdict(one).decode() for one in self.lines]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that ``to_state`` returned."""
        self.live = {key: decode_verdict(text.encode()) for key, text in state["live"]}
        self.lines = [decode_verdict(text.encode()) for text in state["lines"]]
