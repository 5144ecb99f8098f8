"""What an attempt of a job spent its wall time on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from tocsin.schemas.records import JobKey


class TimePart(StrEnum):
    """A part of a job's wall time; where two were measured at once, the one that stands first here has the time."""

    PRODUCTIVE = "productive"
    """A step was made that was never made before."""
    RECOMPUTED = "recomputed"
    """A step was made again: its number was reached before, and what it did then was lost. Or a fault broke it off."""
    START_UP = "start_up"
    """From the first hello of a rank (or its first start-up stage) to the begin of the next step."""
    DETECTION = "detection"
    """From the onset of a standstill or a death to its verdict."""
    DIAGNOSIS = "diagnosis"
    """From such a verdict to its confirmation."""
    IDLE = "idle"
    """No step, by the job's own word (an announced phase, a goodbye), or because most of its processes were stopped."""
    SCHEDULING = "scheduling"
    """No process: from the acknowledged action, else from the last process's end, to the next attempt's first sign."""


UNATTRIBUTED: Final = "unattributed"
"""Name of the wall time that no pair of events tells anything of."""
PART_NAMES: Final = (*(part.value for part in TimePart), UNATTRIBUTED)


@dataclass(frozen=True, slots=True)
class AttemptTime:
    """What one attempt of a job spent its wall time on; the parts and ``unattributed_ns`` sum to ``wall_ns``.

    Attributes:
        job: the attempt.
        began_ns: its first sign.
        until_ns: its end, the next attempt's first sign, or the present.
        told_ns: stream time of this account; of two accounts of one attempt the later one is kept.
        is_over: whether the attempt has ended, or another one followed.
        parts_ns: part -> nanoseconds; a part that was never measured is absent.
        steps_count: steps that were made for the first time.
        recomputed_steps_count: steps that were made again.
        last_step: number of the newest step, -1 = none.
        gpu_count: ranks that were heard, each of which has a GPU.
    """

    job: JobKey
    began_ns: int
    until_ns: int
    told_ns: int
    is_over: bool
    parts_ns: Mapping[TimePart, int] = field(default_factory=dict)
    steps_count: int = 0
    recomputed_steps_count: int = 0
    last_step: int = -1
    gpu_count: int = 0

    @property
    def wall_ns(self) -> int:
        """The whole time of the attempt, in nanoseconds."""
        return self.until_ns - self.began_ns

    @property
    def unattributed_ns(self) -> int:
        """The time that no pair of events tells anything of, in nanoseconds."""
        return self.wall_ns - sum(self.parts_ns.values())

    @property
    def ettr_ratio(self) -> float:
        """The productive share of the wall time, 0 to 1; 0 for an attempt without any time."""
        return self.parts_ns.get(TimePart.PRODUCTIVE, 0) / self.wall_ns if self.wall_ns > 0 else 0.0
