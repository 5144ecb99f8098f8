"""The queue of notices: a file that holds what waits, what was told, and the router's state.

One transaction takes a tick's notices together with the router's state, so a process that is killed at any point and
started again tells nothing twice and forgets nothing.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tocsin.pipeline.alerts.notice import AlertSeverity, DeliveryReason, Notice, NoticeKind
from tocsin.pipeline.alerts.queue_file import QueueReason, move_aside, open_queue_file
from tocsin.pipeline.stores.alert_sent import AlertSent
from tocsin.schemas.cloudevents import decode_verdict, encode_verdict
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.records import NS_PER_SECOND, JobKey

_NEVER_ARRIVED: Final = frozenset(
    {
        DeliveryReason.UNREACHABLE,
        DeliveryReason.RATE_LIMITED,
        DeliveryReason.SECRET_MISSING,
        DeliveryReason.REDIRECTED,
        DeliveryReason.REJECTED,
        DeliveryReason.UNAUTHORISED,
        DeliveryReason.NOT_FOUND,
    }
)
_ROUTER: Final = "router"
_SENT_KEPT_NS: Final = 86_400 * NS_PER_SECOND
_MOST_KEPT_SENT: Final = 10_000


@dataclass(frozen=True, slots=True)
class QueuedNotice:
    """A notice that waits.

    Attributes:
        notice: what is sent.
        receiver: name of its receiver.
        first_ns: when its incident began to wait, for the time after which it is given up.
        try_count: how often it was tried, this one included.
        is_resend: whether the receiver took it before and it is sent again.
    """

    notice: Notice
    receiver: str
    first_ns: int
    try_count: int
    is_resend: bool = False


class AlertQueue:
    """A queue in one SQLite file; all methods may be called from any thread.

    Attributes:
        path: the file.
        begun_anew: why the queue was begun anew when it was opened, None = it was not.
    """

    def __init__(self, path: Path, now_ns: int) -> None:
        """Open the file, or make it with access for this user alone.

        Args:
            path: the file.
            now_ns: the present time, for the name of a file that is moved aside.

        Raises:
            ConfigError: the file cannot be opened, or another process uses it for long.
        """
        self.path = path
        self.begun_anew: QueueReason | None = None
        self._lock = threading.Lock()
        try:
            self._db, reason = open_queue_file(path)
            if reason is not None:
                self.begun_anew = reason
                move_aside(path, now_ns)
                self._db, reason = open_queue_file(path)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError("alert queue", str(path), f"a file that can be used ({error})") from error

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    def router_state(self) -> Mapping[str, Any] | None:
        """Return the router's state, None if there is none."""
        with self._lock:
            row = self._db.execute("SELECT value FROM state WHERE name = ?", (_ROUTER,)).fetchone()
        found = None if row is None else json.loads(row[0])
        return found if isinstance(found, dict) else None

    def put(
        self, notices: Sequence[tuple[Notice, str]], now_ns: int, router_state: Mapping[str, Any] | None = None
    ) -> int:
        """Add notices and replace the router's state, in one transaction.

        The newest notice of an incident and route replaces the one that waits. The end of an incident whose firing
        certainly never arrived removes it, and is not sent.

        Args:
            notices: notices, oldest first, each with the name of its receiver.
            now_ns: the present time.
            router_state: new state of the router; None: as it is.

        Returns:
            How many waiting notices were replaced or removed.
        """
        replaced = 0
        with self._lock, self._db:
            for notice, receiver in notices:
                replaced += self._put(notice, receiver, now_ns)
            if router_state is not None:
                text = json.dumps(router_state, separators=(",", ":"))
                self._db.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (_ROUTER, text))
        return replaced

    def _put(self, notice: Notice, receiver: str, now_ns: int) -> bool:
        """Add one notice; return whether one that waited was replaced or removed."""
        key = (notice.route, notice.verdict.verdict_id)
        waiting = self._db.execute(
            "SELECT first_ns, is_maybe_told, kind FROM waiting WHERE route = ? AND verdict_id = ?", key
        ).fetchone()
        is_told = self._db.execute("SELECT 1 FROM told WHERE route = ? AND verdict_id = ?", key).fetchone() is not None
        kind = notice.kind
        if waiting is None and not is_told and notice.is_ending:
            return False  # its firing was given up
        if waiting is not None and not is_told and not waiting[1]:
            if notice.is_ending:
                self._db.execute("DELETE FROM waiting WHERE route = ? AND verdict_id = ?", key)
                return True
            kind = NoticeKind(waiting[2]) if kind is NoticeKind.CHANGED else kind
        self._db.execute(
            "INSERT OR REPLACE INTO waiting VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?)",
            (
                *key,
                receiver,
                kind.value,
                notice.severity.value,
                encode_verdict(notice.verdict).decode(),
                notice.told_ns,
                notice.made_ns,
                notice.note,
                now_ns,
                now_ns,
                int(waiting is not None and waiting[1]),
            ),
        )
        return waiting is not None

    def take(self, receiver: str, now_ns: int, most_count: int) -> list[QueuedNotice]:
        """Return the notices of one route that are due at a receiver, the most urgent and least tried first.

        One that failed several times comes after all others, whatever its urgency.

        Each counts as tried from here on; ``finish`` says how it ended.

        Args:
            receiver: name of the receiver.
            now_ns: the present time.
            most_count: most notices to return.
        """
        order = "tries >= 3, CASE severity WHEN 'page' THEN 0 WHEN 'ticket' THEN 1 ELSE 2 END, tries, made_ns"
        with self._lock, self._db:
            first = self._db.execute(
                f"SELECT route FROM waiting WHERE receiver = ? AND due_ns <= ? ORDER BY {order} LIMIT 1",  # noqa: S608
                (receiver, now_ns),
            ).fetchone()
            if first is None:
                return []
            rows = self._db.execute(
                "SELECT w.route, w.kind, w.severity, w.event, w.told_ns, w.made_ns, w.note, w.first_ns, w.tries,"  # noqa: S608
                " coalesce(t.reference, ''), w.verdict_id FROM waiting w"
                " LEFT JOIN told t ON t.route = w.route AND t.verdict_id = w.verdict_id"
                f" WHERE w.receiver = ? AND w.due_ns <= ? AND w.route = ? ORDER BY {_of_waiting(order)} LIMIT ?",
                (receiver, now_ns, first[0], most_count),
            ).fetchall()
            self._db.executemany(
                "UPDATE waiting SET tries = tries + 1, is_maybe_told = CASE WHEN is_maybe_told THEN 3 ELSE 1 END"
                " WHERE route = ? AND verdict_id = ?",
                [(row[0], row[10]) for row in rows],
            )
        return [
            QueuedNotice(_notice(row[:7], row[9]), receiver, row[7], row[8] + 1)
            for row in sorted(rows, key=lambda row: int(row[5]))
        ]

    def resends(self, receiver: str, sent_before_ns: int, most_count: int) -> list[QueuedNotice]:
        """Return told notices of one route that were last sent before a time and for which nothing newer waits."""
        with self._lock:
            rows = self._db.execute(
                "SELECT t.route, t.kind, t.severity, t.event, t.told_ns, t.sent_ns, t.note, t.reference FROM told t"
                " LEFT JOIN waiting w ON w.route = t.route AND w.verdict_id = t.verdict_id"
                " WHERE t.receiver = ? AND t.sent_ns <= ? AND w.route IS NULL ORDER BY t.route, t.sent_ns LIMIT ?",
                (receiver, sent_before_ns, most_count),
            ).fetchall()
        return [
            QueuedNotice(_notice(row[:7], row[7]), receiver, row[4], 1, is_resend=True)
            for row in rows
            if row[0] == rows[0][0]
        ]

    def delivered(self, sent: Sequence[QueuedNotice], references: Sequence[str], now_ns: int) -> None:
        """Note that a receiver took notices.

        Args:
            sent: what it took.
            references: per notice, what identifies its message; may be shorter.
            now_ns: the present time.
        """
        with self._lock, self._db:
            for index, one in enumerate(sent):
                if one.notice.is_ending:
                    self._db.execute("DELETE FROM told WHERE route = ? AND verdict_id = ?", _key(one)[:2])
                elif one.notice.kind is not NoticeKind.WATCHDOG:
                    self._tell(one, references[index] if index < len(references) else "", now_ns)
                self._drop(one)

    def _tell(self, one: QueuedNotice, reference: str, now_ns: int) -> None:
        """Note that an incident was told and stands."""
        notice = one.notice
        self._db.execute(
            "INSERT OR REPLACE INTO told VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                notice.route,
                notice.verdict.verdict_id,
                one.receiver,
                notice.kind.value,
                notice.severity.value,
                encode_verdict(notice.verdict).decode(),
                notice.told_ns,
                notice.note,
                reference or notice.reference,
                now_ns,
            ),
        )

    def failed(self, sent: Sequence[QueuedNotice], reason: DeliveryReason, due_ns: int) -> None:
        """Note that a delivery failed and is tried again.

        Args:
            sent: what was sent.
            reason: how it failed.
            due_ns: when it is due again.
        """
        with self._lock, self._db:
            for one in sent:
                if not one.is_resend:
                    self._db.execute(
                        "UPDATE waiting SET due_ns = ?, is_maybe_told = CASE WHEN ? THEN is_maybe_told >= 2 ELSE 1 END"
                        " WHERE route = ? AND verdict_id = ? AND made_ns = ?",
                        (due_ns, reason in _NEVER_ARRIVED, *_key(one)),
                    )

    def give_up(self, sent: Sequence[QueuedNotice], reason: DeliveryReason, now_ns: int) -> None:
        """Remove notices that are not sent again; an incident whose end cannot be told is no longer sent again.

        What may have arrived all the same counts as told, so that its end is sent.

        Args:
            sent: what is given up.
            reason: how its last try failed.
            now_ns: the present time.
        """
        with self._lock, self._db:
            for one in sent:
                key = _key(one)
                found = self._db.execute(
                    "SELECT is_maybe_told FROM waiting WHERE route = ? AND verdict_id = ?", key[:2]
                )
                row = found.fetchone()
                is_maybe_told = row is not None and row[0] >= (2 if reason in _NEVER_ARRIVED else 1)
                if one.notice.is_ending:
                    self._db.execute("DELETE FROM told WHERE route = ? AND verdict_id = ?", key[:2])
                elif is_maybe_told and one.notice.kind is not NoticeKind.WATCHDOG:
                    self._tell(one, "", now_ns)
                self._drop(one)

    def _drop(self, one: QueuedNotice) -> None:
        """Remove a waiting notice, unless a newer one took its place."""
        if not one.is_resend:
            self._db.execute("DELETE FROM waiting WHERE route = ? AND verdict_id = ? AND made_ns = ?", _key(one))

    def keep_sent(self, row: AlertSent) -> None:
        """Keep a row of the database for a day, in case it is lost on its way there."""
        with self._lock, self._db:
            text = json.dumps(asdict(row), separators=(",", ":"))
            self._db.execute("INSERT INTO sent VALUES (?, ?)", (row.sent_ns, text))
            self._db.execute("DELETE FROM sent WHERE sent_ns < ?", (row.sent_ns - _SENT_KEPT_NS,))

    def kept_sent(self, now_ns: int) -> list[AlertSent]:
        """Return the rows of the last day, at most ``_MOST_KEPT_SENT``, and forget the others."""
        with self._lock, self._db:
            self._db.execute("DELETE FROM sent WHERE sent_ns < ?", (now_ns - _SENT_KEPT_NS,))
            query = "SELECT row FROM sent ORDER BY sent_ns DESC LIMIT ?"
            texts = self._db.execute(query, (_MOST_KEPT_SENT,)).fetchall()
        rows = [json.loads(text) for (text,) in reversed(texts)]
        return [AlertSent(**{**row, "job": JobKey(**row["job"])}) for row in rows]

    def waiting_counts(self) -> dict[str, int]:
        """Return receiver -> how many notices wait."""
        with self._lock:
            return dict(self._db.execute("SELECT receiver, count(*) FROM waiting GROUP BY receiver").fetchall())

    def oldest_waiting_ns(self) -> dict[str, int]:
        """Return receiver -> since when its oldest notice waits."""
        with self._lock:
            return dict(self._db.execute("SELECT receiver, min(first_ns) FROM waiting GROUP BY receiver").fetchall())

    def told_count(self) -> int:
        """Return how many told incidents stand, counted by route."""
        with self._lock:
            return int(self._db.execute("SELECT count(*) FROM told").fetchone()[0])

    def is_told(self, verdict_id: str) -> bool:
        """Return whether an incident was told on some route, and stands."""
        with self._lock:
            return (
                self._db.execute("SELECT 1 FROM told WHERE verdict_id = ? LIMIT 1", (verdict_id,)).fetchone()
                is not None
            )

    def drop_unknown(self, receivers: Sequence[str]) -> int:
        """Remove what belongs to receivers that are no longer in the routes file; return how many rows."""
        marks = ",".join("?" * len(receivers))
        with self._lock, self._db:
            return sum(
                self._db.execute(f"DELETE FROM {table} WHERE receiver NOT IN ({marks})", tuple(receivers)).rowcount  # noqa: S608
                for table in ("waiting", "told")
            )


def _of_waiting(order: str) -> str:
    """Return an order with the columns of the joined table ``w``."""
    return order.replace("severity", "w.severity").replace("tries", "w.tries").replace("made_ns", "w.made_ns")


def _key(one: QueuedNotice) -> tuple[str, str, int]:
    """Return route, incident and time of a notice."""
    return one.notice.route, one.notice.verdict.verdict_id, one.notice.made_ns


def _notice(row: Sequence[Any], reference: str) -> Notice:
    """Return the notice of a row: route, kind, severity, event, told_ns, made_ns, note."""
    route, kind, severity, event, told_ns, made_ns, note = row
    verdict = decode_verdict(str(event).encode())
    return Notice(route, NoticeKind(kind), AlertSeverity(severity), verdict, told_ns, made_ns, reference, note)
