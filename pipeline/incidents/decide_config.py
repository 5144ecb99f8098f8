"""Settings of the life of verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tocsin.pipeline.incidents.flapping import FlappingConfig
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import FaultKind


@dataclass(frozen=True, slots=True)
class DecideConfig:
    """Settings.

    Attributes:
        confirm_ns: how long a finding of each fault must hold before its verdict is confirmed. A daemon that takes
            CPU time for 10 s slows a rank for 10 s, so fail_slow waits 15 s.
        hard_ns: how long a finding of a fault must hold before a machine is drained or evicted, where that is longer.
            A longer step time alone, without event or counter, may come from the data of a few minutes.
        settle_ns: how long another cause must be seen before it replaces the verdict's.
        gone_ns: how long a fault must be gone before its verdict is closed.
        flapping: settings for machines that are slow again and again.
        fresh_ns: a verdict expires unless its newest evidence is younger than this.
        action_ttl_ns: time until a proposed action expires.
    """

    confirm_ns: Mapping[FaultKind, int] = field(
        default_factory=lambda: {
            FaultKind.FAIL_STOP: 2 * NS_PER_SECOND,
            FaultKind.HANG: 5 * NS_PER_SECOND,
            FaultKind.FAIL_SLOW: 15 * NS_PER_SECOND,
            FaultKind.SILENT_CORRUPTION: 0,
            FaultKind.DEGRADED: 60 * NS_PER_SECOND,
        }
    )
    hard_ns: Mapping[FaultKind, int] = field(default_factory=lambda: {FaultKind.FAIL_SLOW: 45 * NS_PER_SECOND})
    settle_ns: int = 20 * NS_PER_SECOND
    gone_ns: int = 5 * NS_PER_SECOND
    flapping: FlappingConfig = field(default_factory=FlappingConfig)
    closed_quiet_ns: int = 600 * NS_PER_SECOND
    fresh_ns: int = 30 * NS_PER_SECOND
    action_ttl_ns: int = 600 * NS_PER_SECOND
