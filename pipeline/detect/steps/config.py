"""Settings of the step detector."""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin.models.steps import SlowConfig
from tocsin.pipeline.detect.steps.candidates import RotationConfig
from tocsin.schemas.records import NS_PER_SECOND


@dataclass(frozen=True, slots=True)
class StepsConfig:
    """Settings of the step detector.

    Attributes:
        slow: alarm lines of the comparison among peers.
        short_count: steps of the window for strong evidence.
        long_count: steps of the window for weak evidence.
        least_ranks_count: least ranks of one role that are compared where their machines are too few to be peers.
        history_count: steps of the job's own past that are kept.
        warmup_count: first steps of a rank that are not judged (compilation, caches).
        active_ns: a rank that finished no step for so long is not waited for.
        ripe_ns: after so long a step is judged without the missing ranks.
        candidate_grace_ns: how long a candidate may fail the test before it is dropped.
        min_lasting_seconds: how long the strongest evidence must last.
        max_lasting_seconds: how long the weakest evidence must last.
        lasting_scale_seconds: need = scale / strength^2. With 0.4 a rank that doubles the step time is named after
            1.5 s, and one that adds a tenth after 40 s.
        early_ratio: an excess was always there if this share of it was there in the first ``long_count`` judged steps.
        from_start_factor: how many times longer an excess that was always there must last. It may be how the job is
            split (rank 0's extra work), not a machine.
        from_start_seconds: how long such an excess must last at least.
        max_volatility_ratio: scatter of the ranks' own times within a step above which only the long window is judged
            (sequences of many lengths). Ranks of a quiet job scatter by 0.02 to 0.08.
        max_host_ratio: largest share of the hosts that can be slow together by a machine fault (of 16 hosts: two).
        max_luck_ratio: greatest probability that a host's ranks were the slowest this often by luck at which it is
            reported, where others are late in some steps, too. 1e-5: a job of a step a second looks 86,400 times a day.
            Of four ranks one must have been the slowest ten times of ten, of eight seven of seven, of a hundred four of
            five.
        turn_luck_ratio: the same for a host that takes a slowness over from a reported one, and is not accused. 1e-3:
            it is asked in the dozen looks after a host has recovered.
        rotation: when one host after another looks slow.
        job_strength_ratio: least growth of the whole job's step time that is reported.
        job_kept_ratio: share of that line down to which a reported slowdown goes on. Without it a slowdown of just
            the line, in steps that scatter by some percent, would come and go every few steps.
        accepted_seconds: how long a slower pace must last before it is the job's normal one. Half an hour is longer
            than faults that pass by themselves, and short beside the days of a job.
        own_growth_ratio: least share of the growth that is all ranks' own time, for that to be what makes the job slow.
    """

    slow: SlowConfig = field(default_factory=SlowConfig)
    short_count: int = 5
    long_count: int = 24
    least_ranks_count: int = 4
    history_count: int = 512
    warmup_count: int = 3
    active_ns: int = 12 * NS_PER_SECOND
    ripe_ns: int = 6 * NS_PER_SECOND
    candidate_grace_ns: int = 3 * NS_PER_SECOND
    min_lasting_seconds: float = 1.5
    max_lasting_seconds: float = 60.0
    lasting_scale_seconds: float = 0.4
    early_ratio: float = 0.5
    from_start_factor: float = 4.0
    from_start_seconds: float = 20.0
    job_strength_ratio: float = 0.25
    job_kept_ratio: float = 0.6
    accepted_seconds: float = 1800.0
    own_growth_ratio: float = 0.6
    max_volatility_ratio: float = 0.12
    max_host_ratio: float = 0.125
    max_luck_ratio: float = 1e-5
    turn_luck_ratio: float = 1e-3
    rotation: RotationConfig = field(default_factory=RotationConfig)

    def need_seconds(self, strength_ratio: float) -> float:
        """Return how long evidence must last.

        Args:
            strength_ratio: the excess as a share of the step time.
        """
        need = self.lasting_scale_seconds / max(strength_ratio, 1e-3) ** 2
        return min(max(need, self.min_lasting_seconds), self.max_lasting_seconds)
