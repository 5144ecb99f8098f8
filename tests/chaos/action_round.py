"""Executors and the controller killed with -9 again and again: what is carried out is what an undisturbed run does."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.chaos.action_site import ACTORS, ActionSite, action_site_up
from tests.chaos.action_stories import ActionStory, story_of
from tocsin.cli.cluster.broker import Broker
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.records import NS_PER_SECOND

_LOOK_SECONDS: Final = 0.2
_ACTIVE_SECONDS: Final = 120.0
_SETTLE_SECONDS: Final = 180.0
_CALM_SECONDS: Final = 5.0
_STALE_NS: Final = 30 * NS_PER_SECOND
"""So long after its verdict's end nothing is expected any more of a story without an action."""
_OVER: Final = frozenset(
    {ActionState.DONE, ActionState.UNDONE, ActionState.CANCELLED, ActionState.EXPIRED, ActionState.REFUSED}
)


@dataclass(frozen=True)
class ActionRoundConfig:
    """How a round goes.

    Attributes:
        seed: of the kills.
        kills_count: of each role.
        roles: who is killed.
        life_seconds: from when all work to the deaths, from and to; one of five comes while they start.
        without: what is left out in the disturbed site (``tests.chaos.broken``), "" = nothing.
    """

    seed: int
    kills_count: int = 20
    roles: tuple[str, ...] = ACTORS
    life_seconds: tuple[float, float] = (0.0, 5.0)
    without: str = ""


@dataclass
class ActionsReported:
    """What came of a round.

    Attributes:
        problems: what differs, and what was carried out twice or too late.
        kills: by role.
        actions_count: actions whose effects must be equal.
        effects_count: changes of the systems in the disturbed site.
        chance_count: actions of which runs may differ in whether they are begun.
        begun_count: of these, those that were begun in the disturbed site.
        in_hand_count: of these, in both sites, those that an executor held and did not begin, for they were taken back.
    """

    problems: list[str] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)
    actions_count: int = 0
    effects_count: int = 0
    chance_count: int = 0
    begun_count: int = 0
    in_hand_count: int = 0

    def text(self) -> str:
        """What came of it, and each problem."""
        kills = ", ".join(f"{role} {count} times" for role, count in sorted(self.kills.items()))
        head = (
            f"  killed: {kills}\n  {self.actions_count} actions with equal effects are wanted, {self.effects_count}"
            f" effects in all\n  of {self.chance_count} cancelled, withdrawn or short-lived ones {self.begun_count}"
            f" were begun; in both runs {self.in_hand_count} were taken back while an executor held them"
        )
        return "\n".join([head, *(f"  {problem:.600}" for problem in self.problems or ["equal"])])


class ActionTeller:
    """Tells the stories to a site, and is the person who takes actions back."""

    def __init__(self, site: ActionSite) -> None:
        self.site = site
        self.stories: list[ActionStory] = []
        self._taken_back: set[str] = set()

    def begin(self, story: ActionStory) -> None:
        self.stories.append(story)
        self.site.begin(story)

    def step(self) -> None:
        """Let the engine live, read, and take back what is to be taken back."""
        self.site.step()
        for story in self.stories:
            action = self.site.action_of(story)
            if action is None or story.name in self._taken_back:
                continue
            if story.is_withdrawn and action.state is ActionState.CLAIMED:
                self._taken_back.add(story.name)
                self.site.withdraw(story)
            elif story.is_cancelled or (story.is_undone and action.state is ActionState.DONE):
                self._taken_back.add(story.name)
                self.site.cancel(action)

    def is_over(self, story: ActionStory) -> bool:
        state = self.site.state_of(story)
        if state is None:
            return story.is_short and story.is_stale(time.time_ns() - _STALE_NS)
        if story.is_undone:
            return state is ActionState.UNDONE
        is_back = not story.is_cancelled or state in {ActionState.CANCELLED, ActionState.UNDONE}
        return state in _OVER and is_back


def run_action_round(config: ActionRoundConfig, broker: Broker, folder: Path, prefix: str) -> ActionsReported:
    """Tell the same verdicts to two sites, one of which is disturbed; compare what was carried out."""
    reported = ActionsReported()
    with (
        action_site_up(broker, f"{prefix}-calm", folder) as calm,
        action_site_up(broker, f"{prefix}-killed", folder, without=config.without) as killed,
    ):
        tellers = [ActionTeller(calm), ActionTeller(killed)]
        _play(config, tellers, reported)
        if not _wait(tellers, lambda: _is_settled(tellers), _SETTLE_SECONDS):
            late = [f"{one.site.prefix} {s.name} {one.site.state_of(s)}" for one in tellers for s in _open(one)]
            reported.problems.append(f"not settled within {_SETTLE_SECONDS:.0f} s: {', '.join(late)}")
        _wait(tellers, lambda: False, _CALM_SECONDS)  # what comes too often comes now
        _compare(reported, calm, killed, tellers[1].stories)
    return reported


def _open(teller: ActionTeller) -> list[ActionStory]:
    return [one for one in teller.stories if not teller.is_over(one)]


def _is_settled(tellers: Sequence[ActionTeller]) -> bool:
    return not any(map(_open, tellers))


def _wait(tellers: Sequence[ActionTeller], condition: Callable[[], bool], seconds: float) -> bool:
    """Go on telling until a condition holds; False: it does not in that time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for one in tellers:
            one.step()
        if condition():
            return True
        time.sleep(_LOOK_SECONDS)
    return False


def _play(config: ActionRoundConfig, tellers: list[ActionTeller], reported: ActionsReported) -> None:
    """Kill, with a story before and after each death."""
    drawn, killed = random.Random(config.seed), tellers[1].site
    if not _wait(tellers, lambda: all(one.site.is_active(role) for one in tellers for role in ACTORS), _ACTIVE_SECONDS):
        reported.problems.append("not all processes work")
        return
    for number in range(config.kills_count):
        _begin(tellers)
        for role in drawn.sample(config.roles, len(config.roles)):
            _wait(tellers, lambda: False, drawn.uniform(*config.life_seconds) / len(config.roles))
            killed.children[role].crash()
            reported.kills[role] += 1
        _begin(tellers)
        for role in config.roles:
            killed.children[role].start()
        if number % 5 == 4 and number + 1 < config.kills_count:  # the next death comes while it starts
            continue
        if not _wait(tellers, lambda: all(map(killed.is_active, config.roles)), _ACTIVE_SECONDS):
            reported.problems.append(f"not all were active within {_ACTIVE_SECONDS:.0f} s of death {number + 1}")
            return


def _begin(tellers: list[ActionTeller]) -> None:
    """Begin the next story in each site, with the same times."""
    story = story_of(len(tellers[0].stories), time.time_ns())
    for one in tellers:
        one.begin(story)


def _compare(reported: ActionsReported, calm: ActionSite, killed: ActionSite, stories: list[ActionStory]) -> None:
    """Note what was carried out in one site only, twice, or too late."""
    for story in stories:
        wanted, found = calm.effects_of(story), killed.effects_of(story)
        reported.effects_count += found.total()
        if story.is_chance:
            reported.chance_count += 1
            reported.begun_count += bool(found)
        else:
            reported.actions_count += 1
            reported.problems += [f"{story.name}, undisturbed only: {one}" for one in sorted((wanted - found).keys())]
            reported.problems += [f"{story.name}, besides: {one}" for one in sorted((found - wanted).keys())]
            states = calm.state_of(story), killed.state_of(story)
            if not wanted or states[0] not in {ActionState.DONE, ActionState.UNDONE}:
                reported.problems.append(f"{story.name} was not carried out in the undisturbed run: {states[0]}")
            if states[0] is not states[1]:
                reported.problems.append(f"{story.name} ended as {states[0]} and as {states[1]}")
        for site in (calm, killed):
            reported.in_hand_count += site.is_taken_back_in_hand(story)
            reported.problems += _wrong_with(site, story)
    reported.problems += [f"{one} was posted after its deadline" for one in killed.jobs.late]
    if not reported.effects_count:
        reported.problems.append("nothing was carried out: nothing was tried")


def _wrong_with(site: ActionSite, story: ActionStory) -> list[str]:
    """Return what must not be in any run."""
    action, effects = site.action_of(story), site.effects_of(story)
    where = f"{site.prefix} {story.name} {story.kind}"
    found = [f"{where}: {one} came {count} times" for one, count in effects.items() if count > 1]
    if action is None:
        return found if story.is_short else [*found, f"{where}: no action"]
    first_ns = min((at_ns for at_ns, name, _ in site.effects() if name == story.name), default=0)
    if first_ns >= action.deadline_ns:
        late_seconds = (first_ns - action.deadline_ns) / NS_PER_SECOND
        found.append(f"{where}: its first effect came {late_seconds:.1f} s after its deadline")
    if action.state in {ActionState.CANCELLED, ActionState.EXPIRED} and effects:
        found.append(f"{where}: it is {action.state.value}, and something was changed")
    is_out = story.host in site.slurm.slurm.nodes and site.slurm.slurm.takes_no_work(story.host)
    if is_out and action.state is not ActionState.DONE:
        found.append(f"{where}: it is {action.state.value}, and its machine is out")
    return found
