"""Arnold's statements about a spread class, on the embedded engine: slow groups are nobody's fault, a host is named.

The second stage of a job on eight hosts lies in two minipods; its groups lose 17 % of the bandwidth of
collectives and 70 % of that point to point.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.bench.why_cases import WhyCase, healthy_work
from tests.bench.why_causes import MACHINE, PLACEMENT, crossing, host_numbers
from tests.bench.why_job import Layout, Work
from tests.bench.why_records import host_name, recording_of
from tocsin.pipeline.recording.replay import ReplayConfig, replay
from tocsin.schemas.verdicts import FaultKind, Verdict, VerdictState

LAYOUT = Layout(dp=8, pp=2, tp=1, gpus_per_host=2, microbatches=4, steps=48)
MINIPODS = (0, 0, 0, 0, 0, 0, 1, 1)
SLOW_HOST = 6
"""A host of that stage."""
ONSET_STEP = 16


def across_minipods(work: Work) -> Work:
    """The job with slower groups where they cross minipods."""
    stages, pairs = crossing(LAYOUT, list(MINIPODS))
    assert stages.tolist() == [0, 1]
    groups, edges = 1 + stages * (1 / 0.83 - 1), 1 + pairs[None, None] * (1 / 0.3 - 1)
    return replace(
        work,
        gather=work.gather * groups,
        scatter=work.scatter * groups,
        forward_p2p=work.forward_p2p * edges,
        backward_p2p=work.backward_p2p * edges,
    )


def slower_host(work: Work, ratio: float) -> Work:
    """The job with one host that computes longer by a ratio from some step on."""
    workers = (host_numbers(LAYOUT) == SLOW_HOST).max(axis=2)
    is_slow = np.arange(LAYOUT.steps) >= ONSET_STEP
    part = 1 + ratio * is_slow[:, None, None, None] * workers[None, None]
    return replace(work, forward=work.forward * part, backward=work.backward * part)


def standing_verdicts(work: Work, reason: str) -> list[Verdict]:
    """The last lines of all verdicts that were not cancelled."""
    case = WhyCase(1, "online", reason, LAYOUT, work, {}, frozenset(), 0, MINIPODS, False, False)
    last = {verdict.verdict_id: verdict for verdict in replay(recording_of(case), ReplayConfig())}
    return [one for one in last.values() if one.state is not VerdictState.CANCELLED]


def accused(verdicts: list[Verdict]) -> set[str]:
    """Hosts that are accused."""
    named = (one.suspects for one in verdicts if one.fault is not FaultKind.DEGRADED)
    return {suspect.component.name for suspects in named for suspect in suspects}


def test_groups_that_are_all_slower_across_minipods_accuse_no_machine() -> None:
    work = across_minipods(healthy_work(np.random.default_rng(3), LAYOUT, every_rank=False))

    assert accused(standing_verdicts(work, PLACEMENT)) == set()


def test_a_host_that_is_slower_inside_such_a_class_is_named() -> None:
    work = across_minipods(healthy_work(np.random.default_rng(3), LAYOUT, every_rank=False))

    assert accused(standing_verdicts(slower_host(work, 0.2), MACHINE)) == {host_name(SLOW_HOST)}
