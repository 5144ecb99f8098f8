"""Settings of the root cause analysis."""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin.pipeline.detect.whatif.config import CostLine
from tocsin.pipeline.rca.evidence.backlog import BacklogRules
from tocsin.pipeline.rca.evidence.dumps import DumpConfig
from tocsin.pipeline.rca.evidence.flows import FlowRules
from tocsin.pipeline.rca.evidence.hardware_log import HardwareRules
from tocsin.pipeline.rca.evidence.loaders import LoaderConfig
from tocsin.pipeline.rca.evidence.loading import LoadingConfig
from tocsin.pipeline.rca.evidence.loss_spikes import LossConfig
from tocsin.pipeline.rca.evidence.nan import NanConfig
from tocsin.pipeline.rca.evidence.network import NetworkConfig
from tocsin.pipeline.rca.evidence.phases import PhaseConfig
from tocsin.pipeline.rca.evidence.silence import SilenceConfig
from tocsin.pipeline.rca.evidence.stop import StopConfig
from tocsin.pipeline.rca.evidence.waits import WaitConfig
from tocsin.pipeline.rca.job_signs import JobSignsConfig
from tocsin.pipeline.rca.rules.deviations import MachineRules
from tocsin.pipeline.rca.rules.leaf_congestion import SwitchRules
from tocsin.pipeline.rca.rules.slow import SlowRules


@dataclass(frozen=True, slots=True)
class DiagnoseConfig:
    """Settings of each kind of evidence and of each rule."""

    stop: StopConfig = field(default_factory=StopConfig)
    nan: NanConfig = field(default_factory=NanConfig)
    losses: LossConfig = field(default_factory=LossConfig)
    loaders: LoaderConfig = field(default_factory=LoaderConfig)
    loading: LoadingConfig = field(default_factory=LoadingConfig)
    phases: PhaseConfig = field(default_factory=PhaseConfig)
    silence: SilenceConfig = field(default_factory=SilenceConfig)
    slow: SlowRules = field(default_factory=SlowRules)
    waits: WaitConfig = field(default_factory=WaitConfig)
    flows: FlowRules = field(default_factory=FlowRules)
    dumps: DumpConfig = field(default_factory=DumpConfig)
    hardware: HardwareRules = field(default_factory=HardwareRules)
    machine: MachineRules = field(default_factory=MachineRules)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    across: CostLine = field(default_factory=CostLine)
    backlog: BacklogRules = field(default_factory=BacklogRules)
    switches: SwitchRules = field(default_factory=SwitchRules)
    signs: JobSignsConfig = field(default_factory=JobSignsConfig)
