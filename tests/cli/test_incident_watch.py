"""tocsin incidents watch: each change once, over restarts of the engine, and over a database that is polled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.cli.incident_samples import lines
from tocsin.cli import paths
from tocsin.cli.incident_source import IncidentParts, IncidentWish, Row
from tocsin.cli.incident_watch import ChangeWatcher, follow_database, follow_engine
from tocsin.cli.main import main
from tocsin.pipeline.runtime.embedded.control_socket import ControlServer
from tocsin.pipeline.runtime.embedded.service_memory import marked
from tocsin.pipeline.stores.incident_queries import IncidentFilter
from tocsin.pipeline.stores.rows import summary_of
from tocsin.schemas.errors import StoreAwayError
from tocsin.schemas.verdicts import VerdictState

MESSAGES: list[dict[str, Any]] = [{"verdict": one.to_line(), "summary": summary_of(one)} for one in lines()]
"""story 0, other 0, story 1, other 1 (cancelled), story 2, story 3 (a renewal)."""


class Enough(BaseException):
    """Ends a watch that goes on for ever."""


@dataclass
class Printed:
    """What a watch printed."""

    said: list[str] = field(default_factory=list)
    reported: list[str] = field(default_factory=list)

    def watcher(
        self, wish: IncidentWish | None = None, *, renewals: bool = False, as_json: bool = True
    ) -> ChangeWatcher:
        return ChangeWatcher(wish or IncidentWish(), renewals, as_json, self.said.append, self.reported.append, {})

    def changes(self) -> list[tuple[str, int]]:
        found = [json.loads(line) for line in self.said]
        return [(one["verdict_id"], one["update_number"]) for one in found]


def engine_that_tells(*sessions: list[dict[str, Any]]) -> Any:
    """A handler of ``verdicts``: one session a connection, each ends; then none is left."""
    left = iter(sessions)

    def verdicts(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        assert request["mark"] is True
        return iter(next(left, []))

    return verdicts


def watch(tmp_path: Path, printed: Printed, watcher: ChangeWatcher, *sessions: list[dict[str, Any]]) -> None:
    rounds = iter(range(len(sessions) - 1))

    def sleep(_: float) -> None:
        if next(rounds, None) is None:
            raise Enough

    server = ControlServer(paths.control_socket(tmp_path), {"verdicts": engine_that_tells(*sessions)})
    with server, pytest.raises(Enough):
        follow_engine(tmp_path, watcher, sleep)


CAUGHT_UP: dict[str, Any] = {"caught_up": True}


def test_what_stands_is_told_first_then_each_change_once(tmp_path: Path) -> None:
    printed = Printed()
    session = [*MESSAGES[:4], CAUGHT_UP, *MESSAGES[4:], CAUGHT_UP]
    watch(tmp_path, printed, printed.watcher(), session)
    assert printed.changes() == [("story", 1), ("story", 2)], "other is over, and update 3 a renewal"


def test_renewals_are_told_where_they_are_asked_for(tmp_path: Path) -> None:
    printed = Printed()
    watch(tmp_path, printed, printed.watcher(renewals=True), [CAUGHT_UP, *MESSAGES])
    assert printed.changes() == [("story", 0), ("other", 0), ("story", 1), ("other", 1), ("story", 2), ("story", 3)]


def test_an_engine_that_comes_back_goes_on_where_it_was(tmp_path: Path) -> None:
    printed = Printed()
    watch(
        tmp_path,
        printed,
        printed.watcher(),
        [*MESSAGES[:1], CAUGHT_UP, *MESSAGES[1:2]],
        [],
        [*MESSAGES[:5], CAUGHT_UP],
    )
    assert printed.changes() == [("story", 0), ("other", 0), ("story", 1), ("other", 1), ("story", 2)]
    assert [line.split(",")[0].split(":")[0] for line in printed.reported] == [
        "the engine is away",
        "the engine is back",
        "the engine is away",
    ]


def test_without_an_engine_it_waits_and_says_so_once(tmp_path: Path) -> None:
    printed, rounds = Printed(), iter(range(3))

    def sleep(_: float) -> None:
        if next(rounds, None) is None:
            raise Enough

    with pytest.raises(Enough):
        follow_engine(tmp_path, printed.watcher(), sleep)
    assert len(printed.reported) == 1
    assert "no engine listens" in printed.reported[0]


@pytest.mark.parametrize(
    ("wish", "found"),
    [
        (IncidentWish(wanted=IncidentFilter(host="n5")), [("other", 0), ("other", 1)]),
        (IncidentWish(wanted=IncidentFilter(state=VerdictState.CANCELLED)), [("other", 1)]),
        (IncidentWish(job_id="nix"), []),
    ],
)
def test_the_filters_hold_for_changes(tmp_path: Path, wish: IncidentWish, found: list[tuple[str, int]]) -> None:
    printed = Printed()
    watch(tmp_path, printed, printed.watcher(wish), [CAUGHT_UP, *MESSAGES])
    assert printed.changes() == found


def test_a_line_is_safe_for_a_terminal(tmp_path: Path) -> None:
    printed = Printed()
    message = {**MESSAGES[0], "summary": "evil\x1b[2J\n2026 forged"}
    watch(tmp_path, printed, printed.watcher(as_json=False), [CAUGHT_UP, message])
    [line] = printed.said
    assert line.isprintable()
    assert line.startswith("2025-10-31T23:59:55Z  story  open       job-1  probe  evil\\x1b[2J\\n2026")


@dataclass
class Polled:
    """A database whose answers are given; None: it is away."""

    answers: Iterator[list[Row] | None]
    wishes: list[IncidentWish] = field(default_factory=list)

    def fetch(self, wish: IncidentWish) -> list[Row]:
        self.wishes.append(wish)
        answer = next(self.answers)
        if answer is None:
            raise StoreAwayError("connection refused")
        return answer

    def parts(self, verdict_id: str) -> IncidentParts:
        raise NotImplementedError(verdict_id)

    def known_jobs(self) -> list[str]:
        return []

    def is_judged(self) -> bool:
        return True


def row(verdict_id: str, update: int, reason: str = "recovered") -> Row:
    names = ("job", "machine", "fault", "cause", "summary", "ranks")
    reported = {"verdict_id": verdict_id, "update_number": update, "state": "open", "reason": reason}
    return {
        **dict.fromkeys(names, "x"),
        **reported,
        "action": "none",
        "detected": f"2025-11-01 00:00:0{update}.000000000",
    }


def test_a_database_is_polled_and_each_change_told_once() -> None:
    printed, rounds = Printed(), iter(range(4))
    answers = [[row("a", 0)], [row("a", 1, "still_true"), row("b", 0)], None, [row("a", 2), row("b", 0)]]
    polled = Polled(iter(answers))

    def sleep(_: float) -> None:
        if next(rounds, None) is None or not printed.said:
            raise Enough

    with pytest.raises((Enough, RuntimeError, StopIteration)):
        follow_database(polled, printed.watcher(), 2.0, sleep)
    assert printed.changes() == [("a", 0), ("b", 0), ("a", 2)]
    assert [line.split(":")[0] for line in printed.reported] == ["no answer, and one is awaited", "it answers again"]
    assert not polled.wishes[0].everything
    assert polled.wishes[1].wanted.written_within_seconds >= 60


def test_the_keyboard_ends_it_with_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tocsin.cli.incidents.follow_engine", interrupted)
    assert main(["incidents", "watch", "--data", str(tmp_path)]) == 0


def test_signs_of_life_come_when_there_is_nothing_new() -> None:
    line = {"verdict": 1}
    given = [line, {}, {}, line, *[{}] * 11]
    assert list(marked(iter(given))) == [line, CAUGHT_UP, {}, line, CAUGHT_UP, *[{}] * 9, CAUGHT_UP]
