"""Which learned detectors run, and what their anomalies may do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class DetectorMode(StrEnum):
    """What the anomalies of a learned detector may do."""

    OFF = "off"
    """The detector does not run."""
    EVIDENCE = "evidence"
    """Its anomalies support findings of others about the same component; they open no verdict alone."""
    ACCUSE = "accuse"
    """They may also open a verdict alone."""


DEFAULT_MODE = DetectorMode.OFF
"""Mode of a detector that the settings do not name."""


@dataclass(frozen=True, slots=True)
class LearnedConfig:
    """Modes of the learned detectors.

    Attributes:
        modes: detector name -> its mode; ``DEFAULT_MODE`` for the others.
    """

    modes: Mapping[str, DetectorMode] = field(default_factory=dict)

    def mode_of(self, name: str) -> DetectorMode:
        """Return the mode of a detector."""
        return self.modes.get(name, DEFAULT_MODE)
