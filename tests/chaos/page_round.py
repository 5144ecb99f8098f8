"""The sender of alerts and the controller killed with -9 again and again: the pages are those of an undisturbed run."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.chaos.page_site import (
    ROLES,
    TOLD,
    Site,
    first_as_changed_count,
    messages_of,
    page_difference,
    pages_of,
    site_up,
)
from tests.chaos.page_stories import Story, VerdictStory, stories_of
from tocsin.cli.cluster.broker import Broker
from tocsin.schemas.records import NS_PER_SECOND

_LOOK_SECONDS: Final = 0.05
_ACTIVE_SECONDS: Final = 120.0
_SETTLE_SECONDS: Final = 120.0
_CALM_SECONDS: Final = 3.0
_BACK_NS: Final = 900 * NS_PER_SECOND


@dataclass(frozen=True)
class PageConfig:
    """How a round goes.

    Attributes:
        seed: of stories and kills.
        roles: who is killed.
        kills_count: of each.
        life_seconds: from when it works to its death, from and to; one of five dies while it starts.
    """

    seed: int
    roles: tuple[str, ...] = ROLES
    kills_count: int = 20
    life_seconds: tuple[float, float] = (0.0, 5.0)


@dataclass
class PageReported:
    """What came of a round.

    Attributes:
        problems: what differs.
        kills: by role.
        incidents_count: incidents that people were told of.
        pages_count: first tellings and ends.
        repeated_count: messages that came once more with the same key.
        changed_first_count: incidents that were first told as changed.
        absence_seconds: longest time from a death until the role works again, by role.
    """

    problems: list[str] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)
    incidents_count: int = 0
    pages_count: int = 0
    repeated_count: int = 0
    changed_first_count: int = 0
    absence_seconds: dict[str, float] = field(default_factory=dict)

    def text(self) -> str:
        """What came of it, and each problem."""
        parts = [
            f"{role} killed {count} times, longest absence {self.absence_seconds.get(role, 0.0):.0f} s"
            for role, count in sorted(self.kills.items())
        ]
        head = (
            f"  {'; '.join(parts)}\n  {self.incidents_count} incidents, {self.pages_count} pages and ends;"
            f" {self.repeated_count} messages came again with the same key,"
            f" {self.changed_first_count} incidents were first told as changed"
        )
        return "\n".join([head, *(f"  {problem:.600}" for problem in self.problems or ["equal"])])


class Teller:
    """Tells the stories to a site: what begins, changes and ends, each in its time."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._begun: dict[VerdictStory, float] = {}
        self._changed: set[VerdictStory] = set()
        self._told: dict[VerdictStory, float] = {}
        self._ended: set[VerdictStory] = set()

    def begin(self, story: Story) -> None:
        """Let a story begin."""
        self.site.begin(story)
        if isinstance(story, VerdictStory):
            self._begun[story] = time.monotonic()

    def step(self) -> None:
        """Say what is due now; an incident ends only after somebody was told of it."""
        now, told = time.monotonic(), {name for name, kind in pages_of(self.site.receiver) if kind == TOLD}
        for story, begun in self._begun.items():
            after = story.changes_after_seconds
            if after is not None and story not in self._changed and now - begun >= after:
                self._changed.add(story)
                self.site.say(story, 1)
            if story.name in told:
                self._told.setdefault(story, now)
            is_changed = after is None or story in self._changed
            if story.end is None or story in self._ended or story not in self._told or not is_changed:
                continue
            if now - self._told[story] >= story.ends_after_seconds:
                self._ended.add(story)
                self.site.say(story, 2)

    def is_told(self) -> bool:
        """Whether people were told of each verdict that was said."""
        return self._told.keys() >= self._begun.keys()

    def is_over(self) -> bool:
        """Whether all has been said, and each end was told."""
        ends = {name for name, kind in pages_of(self.site.receiver) if kind != TOLD}
        return all(one in self._told and (one.end is None or one.name in ends) for one in self._begun)


def run_page_round(config: PageConfig, broker: Broker, folder: Path, prefix: str) -> PageReported:
    """Tell the same stories to two sites, one of which is disturbed; compare what people were told."""
    reported = PageReported()
    begin_ns = (time.time_ns() - _BACK_NS) // NS_PER_SECOND * NS_PER_SECOND
    stories = stories_of(config.seed, 4 * config.kills_count, begin_ns)
    with site_up(broker, f"{prefix}-calm", folder) as calm, site_up(broker, f"{prefix}-killed", folder) as killed:
        tellers = [Teller(calm), Teller(killed)]
        _play(config, tellers, stories, reported)
        if not _wait(tellers, lambda: _is_settled(calm, killed, tellers), _SETTLE_SECONDS):
            reported.problems.append(f"not settled within {_SETTLE_SECONDS:.0f} s")
        _wait(tellers, lambda: False, _CALM_SECONDS)  # what comes too often comes now
        _compare(reported, calm, killed)
    return reported


def _is_settled(calm: Site, killed: Site, tellers: list[Teller]) -> bool:
    return all(one.is_over() for one in tellers) and pages_of(calm.receiver).keys() <= pages_of(killed.receiver).keys()


def _wait(tellers: list[Teller], condition: Callable[[], bool], seconds: float) -> bool:
    """Go on telling until a condition holds; False: it does not in that time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for one in tellers:
            one.step()
        if condition():
            return True
        time.sleep(_LOOK_SECONDS)
    return False


def _play(config: PageConfig, tellers: list[Teller], stories: list[Story], reported: PageReported) -> None:
    """Kill, with a story of each kind before and after each death."""
    drawn, killed, waiting = random.Random(config.seed + 1), tellers[1].site, list(stories)
    for one in tellers:
        _wait(tellers, lambda site=one.site: all(map(site.is_active, ROLES)), _ACTIVE_SECONDS)  # type: ignore[misc]
    for number in range(config.kills_count):
        _begin(tellers, waiting)
        if number == 0:  # the first death comes between the page and the end of an incident
            _wait(tellers, lambda: all(one.is_told() for one in tellers), _ACTIVE_SECONDS)
        for role in drawn.sample(config.roles, len(config.roles)):
            _wait(tellers, lambda: False, drawn.uniform(*config.life_seconds) / len(config.roles) if number else 0.0)
            killed.children[role].crash()
            reported.kills[role] += 1
        died = time.monotonic()
        _begin(tellers, waiting)
        for role in config.roles:
            killed.children[role].start()
        if number % 5 == 4 and number + 1 < config.kills_count:  # the next death comes while it starts
            continue
        for role in config.roles:
            if not _wait(tellers, lambda role=role: killed.is_active(role), _ACTIVE_SECONDS):  # type: ignore[misc]
                reported.problems.append(f"{role} was not active within {_ACTIVE_SECONDS:.0f} s of death {number + 1}")
                return
            away = time.monotonic() - died
            reported.absence_seconds[role] = max(reported.absence_seconds.get(role, 0.0), away)


def _begin(tellers: list[Teller], waiting: list[Story]) -> None:
    for _ in range(2):
        story = waiting.pop(0)
        for one in tellers:
            one.begin(story)


def _compare(reported: PageReported, calm: Site, killed: Site) -> None:
    """Note what people were told in one site only, what they were told twice, and lines that differ."""
    wanted, found = pages_of(calm.receiver), pages_of(killed.receiver)
    reported.incidents_count = sum(kind == TOLD for _, kind in wanted)
    reported.pages_count = wanted.total()
    reported.repeated_count = len(killed.receiver.asked) - len(messages_of(killed.receiver))
    reported.changed_first_count = first_as_changed_count(killed.receiver)
    reported.problems += page_difference(wanted, found)
    lines, others = calm.lines(), killed.lines()
    reported.problems += [f"line {one} is missing" for one in sorted((lines - others).keys())]
    reported.problems += [f"line {one} is too many" for one in sorted((others - lines).keys())]
    if not wanted:
        reported.problems.append("nobody was told anything: nothing was tried")
