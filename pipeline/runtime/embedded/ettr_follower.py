"""The ledger of effective training time inside the embedded engine: it hears all jobs, and writes their accounts."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tocsin.pipeline.core.slices import SliceBundle
from tocsin.pipeline.incidents.ettr.ledger import PART, EttrConfig, EttrLedger
from tocsin.pipeline.runtime.embedded.control_socket import EngineRefusedError, Handler
from tocsin.pipeline.runtime.embedded.listener.readers import Answerer
from tocsin.pipeline.runtime.embedded.store_writer import Write
from tocsin.pipeline.runtime.embedded.supervised_thread import SupervisedThread
from tocsin.pipeline.stores.attempt_times import UNATTRIBUTED, AttemptTime
from tocsin.pipeline.stores.base import ActionChange, Store
from tocsin.pipeline.stores.ettr_queries import ettr_query
from tocsin.pipeline.stores.startup_queries import DAYS_QUERY, startup_query
from tocsin.schemas.errors import SnapshotError
from tocsin.schemas.formats.prometheus_text import Family, Sample
from tocsin.schemas.private_files import write_private
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Verdict

if TYPE_CHECKING:
    from tocsin.pipeline.runtime.embedded.service import EngineService

_LOG = logging.getLogger("tocsin.ettr")
FILE_NAME: Final = "ettr-state"
_KEEP_NS: Final = 600 * NS_PER_SECOND
"""Distance of two writes of the ledger's own file."""
_MOST_SHOWN: Final = 100
"""Attempts on the metrics page."""


class EttrFollower:
    """The ledger of one engine's jobs; attach it after what adds verdict lines.

    Its state is part of the engine's snapshots. The engine drops a state that is ten minutes old; a job runs for
    months, so the ledger has a file of its own, too, which is read where no snapshot is restored.

    Attributes:
        name: ``ettr``.
        ledger: the accounts.
    """

    name = "ettr"

    def __init__(self, config: EttrConfig, path: Path | None, put: Callable[[Write], None]) -> None:
        """Start without jobs.

        Args:
            config: settings of the ledger.
            path: the ledger's own file; None: it has none.
            put: queues rows for the database.
        """
        self._config = config
        self._path = path
        self._put = put
        self._is_loaded = False
        self._kept_ns = 0
        self._now_ns = 0
        self.ledger = EttrLedger(config)
        self._shown: tuple[AttemptTime, ...] = ()
        """The newest account of each running attempt; replaced as a whole, so that other threads may read it."""

    def tap(self, bundle: SliceBundle) -> None:
        """Take a job's records of one second; add it to the engine's taps."""
        self._load()
        self.ledger.on_slice(bundle.fast)

    def take_action(self, change: ActionChange) -> None:
        """Take a change of an action, in the ticking thread."""
        self.ledger.on_action(change)

    def on_verdicts(self, verdicts: Sequence[Verdict], now_ns: int) -> Sequence[Verdict]:
        """Take the lines of one tick, and queue the accounts that are due; add no lines."""
        self._load()
        self._now_ns = now_ns
        self.ledger.on_verdicts(verdicts, now_ns)
        told = self.ledger.on_time(now_ns)
        self._put(Write(attempt_times=tuple(told), attempt_starts=tuple(self.ledger.starts_on_time(now_ns))))
        if told:
            running = [one for one in self.ledger.accounts(now_ns) if not one.is_over]
            self._shown = tuple(sorted(running, key=lambda one: one.wall_ns)[-_MOST_SHOWN:])
        if now_ns - self._kept_ns >= _KEEP_NS:
            self._kept_ns = now_ns
            self._keep()
        return ()

    def _load(self) -> None:
        """Read the ledger's own file, unless a state is there already."""
        if self._is_loaded:
            return
        self._is_loaded = True
        if self._path is None or not self._path.exists():
            return
        try:
            self.ledger.restore({PART: self._path.read_bytes()})
        except (OSError, SnapshotError) as error:
            _LOG.error("the ledger's file cannot be used: it begins anew", extra={"error": str(error)})
            self.ledger = EttrLedger(self._config)

    def _keep(self) -> None:
        """Write the ledger's own file."""
        if self._path is None:
            return
        try:
            fresh = self._path.with_name(f"{self._path.name}.new")
            write_private(fresh, self.ledger.snapshot()[PART])
            fresh.replace(self._path)
        except OSError as error:
            _LOG.error("the ledger's file cannot be written", extra={"error": str(error)})

    def start(self) -> None:
        """Read the ledger's own file where no snapshot was restored."""
        self._load()

    def close(self) -> None:
        """Queue the accounts as they stand, and write the ledger's own file."""
        if self._now_ns:
            self._put(Write(attempt_times=tuple(self.ledger.accounts(self._now_ns))))
        self._keep()

    def threads(self) -> Sequence[SupervisedThread]:
        """Return no threads: the ticking thread does all."""
        return ()

    def status(self) -> Mapping[str, Any]:
        """Return the ratio of each running attempt, at most a hundred."""
        return {
            "attempts": [
                {
                    "cluster": one.job.cluster,
                    "job_id": one.job.job_id,
                    "attempt": one.job.attempt,
                    "ettr_ratio": round(one.ettr_ratio, 4),
                }
                for one in self._shown
            ]
        }

    def families(self) -> Sequence[Family]:
        """Return the metrics: seconds of each part of each running attempt, at most a hundred attempts."""
        samples = [
            Sample({**_labels(one), "part": part.value}, length_ns / NS_PER_SECOND)
            for one in self._shown
            for part, length_ns in one.parts_ns.items()
        ]
        samples += [
            Sample({**_labels(one), "part": UNATTRIBUTED}, one.unattributed_ns / NS_PER_SECOND) for one in self._shown
        ]
        text = "Wall time of running attempts by what it was spent on, up to the last full minute."
        return [Family("tocsin_ettr_seconds", "gauge", text, tuple(samples))]

    def handlers(self) -> Mapping[str, Handler]:
        """Return no requests of the control socket: the accounts are asked for in SQL."""
        return {}

    def snapshot(self) -> dict[str, bytes]:
        """Return the ledger's state."""
        return self.ledger.snapshot()

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace the state by a snapshot's; without one the ledger's own file is read at the next tick."""
        self.ledger, self._is_loaded = EttrLedger(self._config), bool(parts)
        if parts:
            self.ledger.restore(parts)


def _labels(told: AttemptTime) -> dict[str, str]:
    """Return the labels of an attempt."""
    return {"cluster": told.job.cluster, "job": told.job.job_id, "attempt": str(told.job.attempt)}


def ettr_answerer(query: Callable[[str, str], bytes]) -> Answerer:
    """Return the answerer of ``ettr``: question with ``job_id`` (text or null), answer ``rows``, one an attempt.

    Args:
        query: ``Store.query`` of the engine's store.
    """

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        job_id = question.get("job_id")
        if job_id is not None and not isinstance(job_id, str):
            raise EngineRefusedError('ettr takes "job_id" as text', "bad_request")
        return {"rows": [json.loads(line) for line in query(ettr_query(job_id), "JSONEachRow").splitlines()]}

    return answer


def startup_answerer(query: Callable[[str, str], bytes]) -> Answerer:
    """Return the answerer of ``startup``: question with ``job_id`` or ``days``, answer ``rows``.

    Args:
        query: ``Store.query`` of the engine's store.
    """

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        job_id, days = question.get("job_id"), question.get("days")
        if days is not True and not isinstance(job_id, str):
            raise EngineRefusedError('startup takes "job_id" as text, or "days" as true', "bad_request")
        sql = DAYS_QUERY if days is True else startup_query(str(job_id))
        return {"rows": [json.loads(line) for line in query(sql, "JSONEachRow").splitlines()]}

    return answer


def attach_ettr(service: EngineService, store: Store, folder: Path, config: EttrConfig | None = None) -> EttrFollower:
    """Attach the ledger to an engine that has not started, and return it.

    Args:
        service: the engine.
        store: answers what readers ask.
        folder: folder of the ledger's own file.
        config: settings; None: the defaults.
    """
    follower = EttrFollower(config or EttrConfig(), folder / FILE_NAME, service.writer.put)
    service.engine.taps.append(follower.tap)
    service.attach(follower)
    readers = service.server.readers
    own = {"ettr": ettr_answerer(store.query), "startup": startup_answerer(store.query)}
    readers.answerers = {**readers.answerers, **own}
    return follower
