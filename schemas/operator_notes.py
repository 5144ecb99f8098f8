"""What people tell tocsin: whether a verdict was right, and which work on machines is planned."""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.schemas.verdicts import Component


@dataclass(frozen=True, slots=True)
class Feedback:
    """A person's judgement of one verdict; of several on one verdict the latest counts.

    Attributes:
        cluster: cluster of the verdict.
        verdict_id: id of the verdict.
        is_true: whether the verdict was right: its suspects were at fault, or nobody was where it names nobody.
        note: why, in the person's words; "" for none.
        actor: who says so: ``uid:1000`` on a control socket, the credential's id over a network.
        ts_ns: when it was said.
    """

    cluster: str
    verdict_id: str
    is_true: bool
    note: str
    actor: str
    ts_ns: int


@dataclass(frozen=True, slots=True)
class Maintenance:
    """Planned work: incidents of its target are seen and stored meanwhile, never paged and never acted on.

    Of several with one id the latest counts; one that is ended early is said again with an earlier ``end_ns``.

    Attributes:
        maintenance_id: stable id, 16 hexadecimal digits.
        cluster: cluster of the target.
        target: a host, a leaf or a job.
        begin_ns: first moment of the work.
        end_ns: first moment after it.
        reason: what is done, in the person's words.
        actor: who planned it, as in ``Feedback``.
        ts_ns: when it was said.
    """

    maintenance_id: str
    cluster: str
    target: Component
    begin_ns: int
    end_ns: int
    reason: str
    actor: str
    ts_ns: int

    def is_on(self, now_ns: int) -> bool:
        """Return whether the work goes on at this time."""
        return self.begin_ns <= now_ns < self.end_ns
