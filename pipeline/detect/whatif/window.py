"""A window of a job's steps with the causes that it shows, from step records or from traced operations."""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.models.step_causes import StepCauses


@dataclass(frozen=True, slots=True)
class CauseWindow:
    """Why the steps of a window were longer than ideal ones.

    Attributes:
        start_ns: begin of its first step.
        first_end_ns: end of its first step.
        end_ns: end of its last step.
        found: the causes.
    """

    start_ns: int
    first_end_ns: int
    end_ns: int
    found: StepCauses
