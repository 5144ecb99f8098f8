"""``tocsin incidents watch``: one line for each change of an incident, as it is told."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tocsin.cli.incident_source import IncidentSource, IncidentWish, Row
from tocsin.cli.incident_text import action_text, moment_text, time_of
from tocsin.cli.paths import control_socket
from tocsin.pipeline.incidents.transitions import LIVE
from tocsin.pipeline.runtime.embedded.control_socket import ControlClient
from tocsin.schemas.cloudevents import rfc3339
from tocsin.schemas.errors import EngineError, StoreAwayError
from tocsin.schemas.printable import json_text, plain
from tocsin.schemas.reasons import Reason
from tocsin.schemas.verdicts import VerdictState

SILENT_SECONDS: Final = 30.0
"""Longest silence of an engine before it counts as away; it gives a sign of life each five seconds."""
RETRY_SECONDS: Final = 1.0
_KEPT_SECONDS: Final = 60
_MAX_NAMED_COUNT: Final = 8
_MAX_KNOWN_COUNT: Final = 100_000


@dataclass(frozen=True, slots=True)
class Change:
    """One change of an incident, however it was heard of.

    Attributes:
        verdict_id: the incident.
        update_number: number of the update.
        state: state after it.
        reason: its reason.
        job: the job.
        machine: the suspects' names; "nobody" for none.
        hosts: names of the suspects, for ``--host``.
        fault: the fault.
        cause: the cause.
        action: the proposed action.
        detected: when, by ISO 8601 in UTC.
        summary: the incident in one sentence.
    """

    verdict_id: str
    update_number: int
    state: str
    reason: str
    job: str
    machine: str
    hosts: tuple[str, ...]
    fault: str
    cause: str
    action: str
    detected: str
    summary: str

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object of ``watch --json``."""
        names = (name for name in self.__dataclass_fields__ if name != "hosts")
        return {name: getattr(self, name) for name in names}

    def as_line(self) -> str:
        """Return the line of ``watch``, safe for a terminal."""
        when = moment_text(time_of(self.detected.replace("T", " ").rstrip("Z")))
        text = f"{when}  {self.verdict_id[:8]}  {self.state:<9}  {self.job}  {self.action}  {self.summary}"
        return plain(f"{text} ({self.reason.replace('_', ' ')})")


def change_of_line(message: Row) -> Change:
    """Return the change that a line of the control socket tells: ``{"verdict": …, "summary": …}``."""
    line = message["verdict"]
    hosts = tuple(str(one["name"]) for one in line["suspects"])
    machine = ", ".join(hosts[:_MAX_NAMED_COUNT]) or "nobody"
    if len(hosts) > _MAX_NAMED_COUNT:
        machine += f" and {len(hosts) - _MAX_NAMED_COUNT} more"
    return Change(
        *(str(line["id"]), int(line["update"]), str(line["state"]), str(line["reason"]), str(line["job_id"])),
        *(machine, hosts, str(line["fault"]), str(line["cause"]), str(line["action"])),
        *(rfc3339(line["detected_ns"]), str(message.get("summary", ""))),
    )


def change_of_row(row: Row) -> Change:
    """Return the change that a row of the incidents query tells."""
    detected = f"{str(row['detected']).replace(' ', 'T')}Z"
    return Change(
        *(str(row["verdict_id"]), int(row["update_number"]), str(row["state"]), str(row["reason"]), str(row["job"])),
        *(str(row["machine"]), (), str(row["fault"]), str(row["cause"]), action_text(row)),
        *(detected, str(row["summary"])),
    )


@dataclass(slots=True)
class ChangeWatcher:
    """Prints changes once each.

    Attributes:
        wish: which incidents; its host filter applies to lines of the control socket only, a database filters itself.
        renewals: whether to print renewals, too.
        as_json: whether to print JSON.
        say: prints a line of output.
        tell: prints a line about the engine, on stderr.
    """

    wish: IncidentWish
    renewals: bool
    as_json: bool
    say: Callable[[str], None]
    tell: Callable[[str], None]
    _known: dict[str, int]

    def show(self, change: Change) -> None:
        """Print a change, unless it is known, not wanted or a renewal; remember it in any case."""
        if not self.is_new(change) or not self._is_wanted(change):
            return
        if change.reason == Reason.STILL_TRUE and not self.renewals:
            return
        self.say(json_text(change.as_json()) if self.as_json else change.as_line())

    def is_new(self, change: Change) -> bool:
        """Remember a change; return whether it is newer than what is known of its incident."""
        if change.update_number <= self._known.get(change.verdict_id, -1):
            return False
        self._known.pop(change.verdict_id, None)
        self._known[change.verdict_id] = change.update_number
        while len(self._known) > _MAX_KNOWN_COUNT:
            del self._known[next(iter(self._known))]
        return True

    def _is_wanted(self, change: Change) -> bool:
        """Return whether the change passes the filters of the command."""
        wanted = self.wish.wanted
        return (
            change.reason != Reason.CANARY
            and self.wish.job_id in (None, change.job)
            and (wanted.host is None or not change.hosts or wanted.host in change.hosts)
            and (wanted.host is None or change.machine != "nobody")
            and wanted.fault in (None, change.fault)
            and wanted.state in (None, change.state)
        )


def watcher_of(wish: IncidentWish, *, renewals: bool, as_json: bool) -> ChangeWatcher:
    """Return a watcher that prints on stdout, each line at once, and says on stderr when the engine is away."""
    return ChangeWatcher(
        wish,
        renewals,
        as_json,
        lambda line: print(line, flush=True),
        lambda line: print(f"tocsin incidents: {line}", file=sys.stderr, flush=True),
        {},
    )


def follow_engine(data: Path, watcher: ChangeWatcher, sleep: Callable[[float], None] = time.sleep) -> None:
    """Print what stands now, then each change of the engine of a data folder, until interrupted.

    While the engine is away it waits; lines that were told meanwhile are printed when it is back.

    Args:
        data: the data folder.
        watcher: prints the changes.
        sleep: waits for a number of seconds.
    """
    client, is_away, is_first = ControlClient(control_socket(data), SILENT_SECONDS), False, True
    held: dict[str, Change] = {}
    while True:
        try:
            for message in client.stream("verdicts", after=0, mark=True):
                if is_away:
                    watcher.tell("the engine is back")
                    is_away = False
                if is_first:
                    is_first = _take_backlog(message, held, watcher)
                elif "verdict" in message:
                    watcher.show(change_of_line(message))
            why = "it ended"
        except EngineError as error:
            why = str(error)
        if not is_away:
            watcher.tell(plain(f"the engine is away, and what it tells is awaited: {why}"))
            is_away = True
        sleep(RETRY_SECONDS)


def _take_backlog(message: Row, held: dict[str, Change], watcher: ChangeWatcher) -> bool:
    """Take a line of those that were told before; at their end print what stands.

    Args:
        message: the line, or the sign that there are no more.
        held: incident -> its newest change so far; changed here.
        watcher: prints the changes.

    Returns:
        Whether more such lines follow.
    """
    if "verdict" in message:
        change = change_of_line(message)
        held[change.verdict_id] = change
        return True
    for change in held.values():
        if change.state in LIVE:
            watcher.show(replace(change, reason="stands") if change.reason == Reason.STILL_TRUE else change)
        else:
            watcher.is_new(change)
    return False


def follow_database(
    source: IncidentSource, watcher: ChangeWatcher, every_seconds: float, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Print what stands now, then each change that a database shows, until interrupted.

    Args:
        source: the database, or an engine on another machine.
        watcher: prints the changes.
        every_seconds: time between two looks; of several changes of one incident in it the last one is printed.
        sleep: waits for a number of seconds.
    """
    is_away = False
    for wish in _wishes(watcher.wish, every_seconds):
        while True:
            try:
                rows = source.fetch(wish)
            except (EngineError, StoreAwayError) as error:
                if not is_away:
                    watcher.tell(plain(f"no answer, and one is awaited: {error}"))
                is_away = True
                sleep(every_seconds)
            else:
                break
        if is_away:
            watcher.tell("it answers again")
            is_away = False
        for row in sorted(rows, key=lambda one: (str(one["detected"]), str(one["verdict_id"]))):
            watcher.show(change_of_row(row))
        sleep(every_seconds)


def _wishes(wish: IncidentWish, every_seconds: float) -> Iterator[IncidentWish]:
    """Yield what to ask for: first what stands, then without end what was written lately."""
    state = wish.wanted.state
    is_live = state is None or state in (VerdictState.OPEN, VerdictState.CONFIRMED)
    if is_live:
        yield replace(wish, everything=False, wanted=replace(wish.wanted, since_ns=0))
    lately = round(2 * every_seconds) + _KEPT_SECONDS
    while True:
        yield replace(wish, everything=True, wanted=replace(wish.wanted, written_within_seconds=lately))
