"""Find the host whose forward pass is longer than its peers', though the job's steps hardly show it.

MegaScale (NSDI'24) found such hosts: about 0.5 % of its machines took 10 % longer for the same forward pass. A forward
pass is a third of a step, so that the step is 3 % longer: below what ``tocsin.models.steps`` calls slow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tocsin.models.robust import median, median_of
from tocsin.models.steps import PHASES, StepWindow

FloatArray = npt.NDArray[np.float64]
_FORWARD = PHASES.index("forward")


@dataclass(frozen=True, slots=True)
class ForwardConfig:
    """Alarm lines of the comparison of forward passes.

    Attributes:
        least_peers_count: peers of the same role that a rank is compared with.
        least_excess_ratio: least excess of the forward pass over the peers'. Two thirds of the 10 % of MegaScale's slow
            hosts, so that noise hides none of them.
        spread_factor: least excess in robust spreads of the peers, as in ``SlowConfig``.
        least_share_ratio: least share of steps in which the slowest rank is one of the host's.
        least_own_ratio: least share of the excess that is in the rank's self time: else another phase is as much
            shorter, and only the border between two timers moved.
    """

    least_peers_count: int = 4
    least_excess_ratio: float = 0.067
    spread_factor: float = 5.0
    least_share_ratio: float = 0.8
    least_own_ratio: float = 0.5


@dataclass(frozen=True, slots=True)
class SlowForward:
    """A rank with a long forward pass.

    Attributes:
        column: its column in the window.
        excess_ratio: its forward pass over its peers', less 1; median over the window.
        excess_seconds: the same in seconds.
        step_ratio: that as a share of the step.
        score: smallest ratio of the tests to their lines, at least 1.
    """

    column: int
    excess_ratio: float
    excess_seconds: float
    step_ratio: float
    score: float


def forward_excess_ratios(window: StepWindow) -> FloatArray:
    """Return each rank's forward pass over its role's median, less 1; median over the steps, shape (ranks,).

    NaN where it is not measured.
    """
    found = np.full(window.roles.size, np.nan)
    for role in np.unique(window.roles):
        members = np.flatnonzero(window.roles == role)
        found[members] = median(_above(window, members), 0)
    return found


def _above(window: StepWindow, members: npt.NDArray[np.intp]) -> FloatArray:
    """Return the forward passes of a role's ranks over the median of their step, less 1; shape (steps, members)."""
    forward = window.phase_seconds[_FORWARD][:, members]
    middle = median(forward, 1)
    found: FloatArray = forward / np.where(middle > 0, middle, np.nan)[:, None] - 1.0
    return found


def find_slow_forward(window: StepWindow, hosts: npt.NDArray[np.str_], config: ForwardConfig) -> SlowForward | None:
    """Return the rank with the longest forward pass of the role whose host passes all tests; None: none does.

    Args:
        window: some steps.
        hosts: host of each rank, shape (ranks,).
        config: alarm lines.
    """
    found = [
        slow
        for role in np.unique(window.roles)
        if (slow := _find_in_role(window, np.flatnonzero(window.roles == role), hosts, config)) is not None
    ]
    return max(found, key=lambda slow: slow.excess_seconds, default=None)


def _find_in_role(
    window: StepWindow, members: npt.NDArray[np.intp], hosts: npt.NDArray[np.str_], config: ForwardConfig
) -> SlowForward | None:
    """Return the slowest rank of a role, if its host passes all tests."""
    above = _above(window, members)
    if members.size <= config.least_peers_count or not np.isfinite(above).all():
        return None
    excess = median(above, 0)
    top = int(np.argmax(excess))
    if excess[top] < config.least_excess_ratio:
        return None
    own_host = hosts[members] == hosts[members[top]]
    rest = np.flatnonzero(~own_host)
    if rest.size < config.least_peers_count or excess[rest].max() >= excess[top] / 2:
        return None
    share = float(own_host[np.argmax(above, axis=1)].mean())
    spread = _spread(excess[rest], above[:, rest])
    forward = float(median_of(window.phase_seconds[_FORWARD][:, members].ravel()))
    gain = float(excess[top]) * forward
    own = window.own_seconds[:, members]
    own_gain = float(median_of(own[:, top] - median(own, 1)))
    score = min(
        float(excess[top]) / config.least_excess_ratio,
        float(excess[top]) / (config.spread_factor * spread) if spread > 0 else np.inf,
        share / config.least_share_ratio,
        own_gain / gain / config.least_own_ratio,
    )
    if not score >= 1.0:  # NaN, too: not measured
        return None
    step_seconds = float(median_of(window.duration_seconds[:, members].ravel()))
    return SlowForward(int(members[top]), float(excess[top]), gain, gain / max(step_seconds - gain, 1e-3), score)


def _spread(excess: FloatArray, above: FloatArray) -> float:
    """Return the robust spread of the peers: between ranks, or that of one rank's median, whichever is larger."""
    between = 1.4826 * median_of(np.abs(excess - median_of(excess)))
    within = 1.4826 * median_of(np.abs(above - excess[None, :]).ravel()) / np.sqrt(above.shape[0])
    return float(max(between, within))
