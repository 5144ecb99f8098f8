"""``tocsin serve --act`` with chDB and its executor, killed with -9 while actions are under way.

Real agents watch made-up jobs whose ranks ail. What the job controller was asked to do must be what it is asked where
nothing dies.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.chaos.embedded_action_site import EXECUTOR, EmbeddedActionSite
from tests.chaos.live_jobs import HOSTS, Fault, Job
from tests.chaos.live_round import ENGINE
from tocsin.schemas.action_states import ActionState

ROLES: Final = (ENGINE, EXECUTOR)
"""Who is killed."""
_KINDS: Final = ("freeze", "kill", "crash")
"""Faults after which the shipped policy starts the job again."""
_UNDER_WAY: Final = frozenset({ActionState.APPROVED, ActionState.CLAIMED, ActionState.STARTED})
_LOOK_SECONDS: Final = 0.05
_LONGEST_CALM_SECONDS: Final = 7.0
_WATCH_SECONDS: Final = 32.0
_LEAD_SECONDS: Final = 3.0
_SETTLE_SECONDS: Final = 6.0


@dataclass(frozen=True)
class EmbeddedActionConfig:
    """How a round goes.

    Attributes:
        seed: of faults and kills.
        kills_count: most kills of each role.
        faults_count: in all; a fleet of four machines has four restarts an hour.
        tracks_count: jobs at a time.
        away_seconds: how long who was killed is away, from and to.
    """

    seed: int
    kills_count: int = 10
    faults_count: int = 4
    tracks_count: int = 4
    away_seconds: tuple[float, float] = (0.0, 1.5)


@dataclass
class EmbeddedActionsReported:
    """What came of a round.

    Attributes:
        problems: what differs, and what was carried out twice or too late.
        kills: by role.
        under_way: kills by the state of the action that was under way.
        effects_count: what the job controller began in the disturbed run.
    """

    problems: list[str] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)
    under_way: Counter[str] = field(default_factory=Counter)
    effects_count: int = 0

    def text(self) -> str:
        """What came of it, and each problem."""
        kills = ", ".join(f"{role} {count} times" for role, count in sorted(self.kills.items()))
        states = ", ".join(f"{count} while one was {state}" for state, count in sorted(self.under_way.items()))
        head = f"  killed: {kills} ({states})\n  {self.effects_count} effects"
        return "\n".join([head, *(f"  {problem:.600}" for problem in self.problems or ["equal"])])


@dataclass(frozen=True)
class _Life:
    """What one run did: effects by job, and the last state of each job's actions."""

    effects: Counter[tuple[str, str]]
    states: dict[str, list[str]]
    twice: list[str]


class _Killer:
    """Kills one of the roles whenever an action comes into a state in which something is under way, or it is calm."""

    def __init__(self, config: EmbeddedActionConfig, site: EmbeddedActionSite, reported: EmbeddedActionsReported):
        self._config, self._site, self._reported = config, site, reported
        self._drawn = random.Random(config.seed + 1)
        self._seen: set[tuple[str, ActionState]] = set()
        self._last = time.monotonic() + _WATCH_SECONDS / 2  # the first jobs are healthy for a while
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.wait(_LOOK_SECONDS):
            found = {(one.action_id, one.state) for one in self._site.actions() if one.state in _UNDER_WAY}
            fresh = found - self._seen
            self._seen |= found
            is_calm = time.monotonic() - self._last >= _LONGEST_CALM_SECONDS
            if fresh or is_calm:
                self._kill(min(fresh)[1].value if fresh else "")

    def _kill(self, state: str) -> None:
        left = [role for role in ROLES if self._reported.kills[role] < self._config.kills_count]
        for role in self._drawn.sample(left, min(len(left), self._drawn.choice((1, 1, 2)))):
            time.sleep(self._drawn.choice((0.0, 0.1, 0.4)))
            self._reported.kills[role] += 1
            self._reported.under_way[state or "none"] += 1
            self._site.kill(role, self._drawn.uniform(*self._config.away_seconds))
        self._last = time.monotonic()


def faults_of(config: EmbeddedActionConfig) -> list[Fault]:
    """The faults of a round: each kind as often, track by track."""
    drawn = random.Random(config.seed)
    kinds = [_KINDS[number % len(_KINDS)] for number in range(config.faults_count)]
    drawn.shuffle(kinds)
    ends = [track * 4.0 for track in range(config.tracks_count)]
    faults: list[Fault] = []
    for number, kind in enumerate(kinds):
        track, name = number % config.tracks_count, f"job-{config.seed}-{number}-{kind}"
        faults.append(Fault(name, kind, drawn.randrange(len(HOSTS)), ends[track], _WATCH_SECONDS))
        ends[track] = faults[-1].end_seconds
    return faults


def run_embedded_action_round(config: EmbeddedActionConfig, folder: Path) -> EmbeddedActionsReported:
    """Let the same jobs ail in two installations, one after the other; the second one is disturbed."""
    faults, reported = faults_of(config), EmbeddedActionsReported()
    wanted = _life(faults, EmbeddedActionSite(folder / "calm"), None)
    site = EmbeddedActionSite(folder / "killed")
    found = _life(faults, site, _Killer(config, site, reported))
    _compare(reported, faults, wanted, found)
    return reported


def _life(faults: Sequence[Fault], site: EmbeddedActionSite, killer: _Killer | None) -> _Life:
    """Let all jobs run in an installation; return what it did."""
    try:
        site.start(faults)
        begun = time.monotonic() + _LEAD_SECONDS
        jobs = [threading.Thread(target=Job(one, site.agents, site.folder).run, args=(begun,)) for one in faults]
        threads = [threading.Thread(target=killer.run)] if killer is not None else []
        for thread in (*jobs, *threads):
            thread.start()
        for thread in jobs:
            thread.join()
        if killer is not None:
            killer.stopping.set()
        for thread in threads:
            thread.join()
        time.sleep(_SETTLE_SECONDS)
        states: dict[str, list[str]] = {one.job_id: [] for one in faults}
        for action in site.actions():
            states[action.target.job.job_id].append(f"{action.kind.value} {action.state.value}")
        effects = Counter((job_id, effect.split()[0]) for _, job_id, effect in site.jobs.made)
        whole = Counter(effect for _, _, effect in site.jobs.made)
        twice = [f"{effect} came {count} times" for effect, count in whole.items() if count > 1]
        return _Life(effects, {name: sorted(found) for name, found in states.items()}, [*twice, *site.jobs.late])
    finally:
        site.close()


def _compare(reported: EmbeddedActionsReported, faults: Sequence[Fault], wanted: _Life, found: _Life) -> None:
    reported.effects_count = found.effects.total()
    for fault in faults:
        ours = {effect: count for (job, effect), count in wanted.effects.items() if job == fault.job_id}
        theirs = {effect: count for (job, effect), count in found.effects.items() if job == fault.job_id}
        if ours != theirs:
            reported.problems.append(f"{fault.job_id}: {theirs}, must be {ours}")
        if not ours:
            reported.problems.append(f"{fault.job_id}: nothing was carried out in the undisturbed run")
        if wanted.states[fault.job_id] != found.states[fault.job_id]:
            reported.problems.append(
                f"{fault.job_id}: actions {found.states[fault.job_id]}, must be {wanted.states[fault.job_id]}"
            )
    reported.problems += [f"undisturbed: {one}" for one in wanted.twice] + found.twice
