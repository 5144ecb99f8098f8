"""Settings of the peer detector."""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin.models.peers import PeerConfig
from tocsin.pipeline.detect.peers.activity import WorkConfig
from tocsin.pipeline.detect.peers.cusum import SumConfig
from tocsin.pipeline.detect.peers.exits import ExitsConfig
from tocsin.pipeline.detect.peers.half_minutes import HalfMinuteConfig
from tocsin.pipeline.detect.peers.leaf_congestion import SwitchesConfig
from tocsin.pipeline.detect.peers.warmup import BeginConfig
from tocsin.pipeline.detect.peers.workload import LoadConfig
from tocsin.schemas.records import NS_PER_SECOND


@dataclass(frozen=True, slots=True)
class PeersConfig:
    """Settings of the peer detector.

    Attributes:
        peers: how machines are compared.
        sums: how evidence adds up while the job works.
        work: when the job works.
        stalled: how evidence adds up while the job stands. It does not decay: the peers' processes end after a
            while, and then all machines look alike.
        patience: how means of half a minute are compared and add up.
        exits: whose processes ended first.
        begin: when the job began to work in earnest.
        load: which machines do more work than expected.
        switches: which leaf switch is congested with all machines behind it.
        standing_share_ratio: least deviation of a host of a stalled job, as a share of its usual level.
        lone_standing_share_ratio: the same for a single GPU of a host.
        lone_gpu_ratio: weight of a single GPU's deviation, since the largest of eight is larger by chance.
        long_window_ns: least length of a long window (sampling periods of 5 s and more).
        long_warmup_count: long windows that are only learned from; twelve of a minute would take a quarter of an hour.
    """

    peers: PeerConfig = field(default_factory=PeerConfig)
    sums: SumConfig = field(default_factory=SumConfig)
    work: WorkConfig = field(default_factory=WorkConfig)
    stalled: SumConfig = field(default_factory=lambda: SumConfig(decays=False))
    patience: HalfMinuteConfig = field(default_factory=HalfMinuteConfig)
    exits: ExitsConfig = field(default_factory=ExitsConfig)
    begin: BeginConfig = field(default_factory=BeginConfig)
    load: LoadConfig = field(default_factory=LoadConfig)
    switches: SwitchesConfig = field(default_factory=SwitchesConfig)
    standing_share_ratio: float = 0.3
    lone_standing_share_ratio: float = 0.5
    lone_gpu_ratio: float = 0.8
    long_window_ns: int = 25 * NS_PER_SECOND
    long_warmup_count: int = 6
