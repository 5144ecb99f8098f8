"""Settings of the detector of model FLOPs utilization."""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.schemas.records import NS_PER_SECOND


@dataclass(frozen=True, slots=True)
class MfuConfig:
    """Settings of the detector of model FLOPs utilization (MFU).

    Attributes:
        shown_count: newest steps whose median is the MFU of now.
        block_count: fewest steps whose median is kept as one number ...
        block_ns: ... and the least time that they take.
        level_count: successive blocks whose median is a level that the job held. The best such level is its past.
        newest_count: newest blocks, all of which must be below the line.
        decline_ratio: the best level is so many times the MFU of now in a decline. The straggler study calls a job
            straggling from 1.1 on (What-if, OSDI'25), and a slow host of MegaScale (NSDI'24) took 10 % longer.
        kept_ratio: share of that line down to which a decline goes on, as in ``WhatIfConfig``.
        new_work_ratio: a change of the announced operations by more than this is another batch or model.
        accepted_ns: after so long without a further decline, the MFU is the job's normal one, as for slow steps.
        stale_ns: the MFU is known no more when no step ended for so long.
    """

    shown_count: int = 24
    block_count: int = 16
    block_ns: int = 60 * NS_PER_SECOND
    level_count: int = 10
    newest_count: int = 5
    decline_ratio: float = 1.1
    kept_ratio: float = 0.6
    new_work_ratio: float = 0.05
    accepted_ns: int = 1800 * NS_PER_SECOND
    stale_ns: int = 60 * NS_PER_SECOND

    def line(self, *, is_told: bool) -> float:
        """Return how many times the MFU of now the best level must be for a decline.

        Args:
            is_told: whether the decline was told already.
        """
        return 1.0 + (self.decline_ratio - 1.0) * (self.kept_ratio if is_told else 1.0)
