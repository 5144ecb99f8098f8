"""The embedded engine's database thread: away, back, stopped; on a shared server only its own verdicts expire."""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.pipeline.stores.samples import JOB, ONSET, verdict
from tocsin.pipeline.incidents.proposals import changes_of
from tocsin.pipeline.lab.testing.store import MemoryStore
from tocsin.pipeline.runtime.embedded import store_writer
from tocsin.pipeline.runtime.embedded.open_verdicts import OpenVerdicts
from tocsin.pipeline.runtime.embedded.store_writer import StoreWriter, Write
from tocsin.pipeline.stores.backoff import Backoff, BackoffConfig
from tocsin.pipeline.stores.base import HostHealth
from tocsin.schemas.errors import RowRefusedError, StoreAwayError, StoreError
from tocsin.schemas.verdicts import ActionKind, Verdict, VerdictState

QUICK = BackoffConfig(first_seconds=0.001, longest_seconds=0.002)


class Shared(MemoryStore):
    """A store that says what it was asked, and can be away."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.is_away = False
        self.refused = ""
        self.refusal: Exception = RowRefusedError("too large")

    def migrate(self) -> int:
        self._ask("migrate")
        return 6

    def expire_overdue(self, until_ns: int, verdict_ids: Sequence[str] | None = None) -> tuple[str, ...]:
        self._ask(f"expire {'all' if verdict_ids is None else ' '.join(verdict_ids)}")
        return super().expire_overdue(until_ns, verdict_ids)

    def write_verdicts(self, verdicts: Sequence[Verdict]) -> None:
        self._ask(f"verdicts {' '.join(v.verdict_id for v in verdicts)}")
        if self.refused in {v.verdict_id for v in verdicts}:
            raise self.refusal
        super().write_verdicts(verdicts)

    def _ask(self, what: str) -> None:
        if self.is_away:
            raise StoreAwayError("connection refused")
        self.asked.append(what)


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_what_queued_up_while_the_database_was_away_goes_in_together_and_in_order() -> None:
    store = Shared()
    store.is_away = True
    writer = StoreWriter(store, is_prepared=False, config=QUICK)
    writer.start()
    for number in range(3600):
        writer.put(Write(verdicts=(verdict(f"v{number}"),) if number % 900 == 0 else ()))
        writer.put(Write(health=(HostHealth(JOB, "n3", ONSET, number, 0, 0),)))
    until(lambda: writer.error_count > 3)
    store.is_away = False
    writer.stop()
    assert store.asked == ["migrate", "verdicts v0 v900 v1800 v2700"]
    assert [minute.sample_count for minute in store.health] == list(range(3600))
    assert not writer.is_alive()


def test_what_is_lost_at_the_end_is_said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_writer, "LAST_TRY_SECONDS", 0.05)
    store = Shared()
    store.is_away = True
    writer = StoreWriter(store, config=QUICK)
    writer.start()
    for number in range(3):
        writer.put(Write(verdicts=(verdict(f"v{number}"),)))
    with caplog.at_level(logging.ERROR, "tocsin.store"):
        writer.stop()
    lost = [record for record in caplog.records if record.getMessage().startswith("rows lost")]
    assert [vars(record)["verdicts"] for record in lost] == [3]


@pytest.mark.parametrize("refusal", [RowRefusedError("too large"), OverflowError("int too large"), TypeError("None")])
def test_a_row_that_cannot_be_stored_does_not_hold_up_the_others(
    refusal: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it raises: the thread goes on."""
    store = Shared()
    store.refused, store.refusal = "bad", refusal
    writer = StoreWriter(store, config=QUICK)
    writer.start()
    writer.put(Write(verdicts=(verdict("a"), verdict("bad"), verdict("b"))))
    writer.stop()
    assert [v.verdict_id for v in store.verdicts] == ["a", "b"]
    assert "row lost: the database cannot take it" in caplog.text


def test_on_a_shared_server_only_what_this_engine_left_expires(tmp_path: Path) -> None:
    file = tmp_path / "open-verdicts.json"
    store = Shared()
    first = StoreWriter(store, OpenVerdicts(file), config=QUICK)
    first.start()
    first.put(Write(verdicts=(verdict("left"), verdict("done"))))
    first.put(Write(verdicts=(verdict("done", 1, state=VerdictState.RESOLVED),)))
    first.stop()

    again = OpenVerdicts(file)
    assert again.ids() == ("left",)
    second = StoreWriter(store, again, is_prepared=False, config=QUICK)
    second.start()
    second.put(Write(overdue_ns=verdict("left").expires_ns - 1))
    until(lambda: "expire left" in store.asked)
    assert again.ids() == ("left",)  # its time is not over: it stays open
    second.put(Write(overdue_ns=verdict("left").expires_ns))
    second.stop()
    assert OpenVerdicts(file).ids() == ()
    assert store.latest()["left"].state is VerdictState.EXPIRED


def test_an_opening_is_remembered_before_its_row_and_forgotten_after_the_last(tmp_path: Path) -> None:
    """Killed in between, the next engine knows one too many rather than one too few."""
    file = tmp_path / "open-verdicts.json"
    store = Shared()
    seen: list[tuple[str, ...]] = []
    write = store.write_verdicts
    store.write_verdicts = lambda rows: (seen.append(OpenVerdicts(file).ids()), write(rows))[1]  # type: ignore[assignment,method-assign,func-returns-value]
    writer = StoreWriter(store, OpenVerdicts(file), config=QUICK)
    writer.start()
    writer.put(Write(verdicts=(verdict("a"),)))
    until(lambda: len(store.verdicts) == 1)
    writer.put(Write(verdicts=(verdict("a", 1, state=VerdictState.CANCELLED),)))
    writer.stop()
    assert seen == [("a",), ("a",)]
    assert OpenVerdicts(file).ids() == ()


def test_whoever_sees_an_incident_sees_its_action() -> None:
    """Also where the evidence between them is long: a database has no transaction over tables."""
    store = Shared()
    said = verdict("a", action=ActionKind.DRAIN)
    proposed = tuple(changes_of(said, ()))
    seen: list[int] = []
    write = store.write_verdicts
    store.write_verdicts = lambda rows: (seen.append(len(store.actions)), write(rows))[1]  # type: ignore[assignment,method-assign,func-returns-value]
    writer = StoreWriter(store, config=QUICK)
    writer.start()
    writer.put(Write(verdicts=(said,), actions=proposed))
    writer.stop()
    assert proposed
    assert seen == [len(proposed)]


def test_a_file_that_is_broken_is_named(tmp_path: Path) -> None:
    file = tmp_path / "open-verdicts.json"
    for text in ("", "[]", '{"verdict_ids": 3}'):
        file.write_text(text)
        with pytest.raises(StoreError, match=r"open-verdicts\.json cannot be read"):
            OpenVerdicts(file)


def test_waits_grow_are_bounded_and_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    patience = Backoff(logging.getLogger("tocsin.store"), BackoffConfig(), lambda: now[0])
    waits = []
    with caplog.at_level(logging.INFO, "tocsin.store"):
        for _ in range(200):
            waits.append(patience.failed(StoreAwayError("gone")))
            now[0] += waits[-1]
        patience.succeeded()
        patience.succeeded()
    assert 0.25 <= waits[0] <= 0.5
    assert max(waits) <= 30.0
    assert min(waits[10:]) >= 15.0
    errors = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert len(errors) == pytest.approx(now[0] / 60, rel=0.5)
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.INFO] == ["writes again"]
