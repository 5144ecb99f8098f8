"""The folder of an engine's state: locked by one engine, with the newest readable snapshot and the journal after it.

State that cannot be used is moved to a subfolder ``aside`` with a reason; no verdict is closed because a file is
damaged.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tocsin.pipeline.core.operator import STATE_VERSION
from tocsin.pipeline.runtime.embedded.persistence import journal as journals
from tocsin.pipeline.runtime.embedded.persistence.epoch_mark import BundleKey, EpochMark
from tocsin.pipeline.runtime.embedded.persistence.journal import (
    Journal,
    JournalConfig,
    JournalEntry,
    ReadTally,
)
from tocsin.pipeline.runtime.embedded.persistence.regular_files import read_regular
from tocsin.pipeline.runtime.embedded.persistence.snapshots import Generation, SnapshotFiles
from tocsin.schemas.errors import EngineError, SnapshotError
from tocsin.schemas.reasons import StateLoss
from tocsin.schemas.records import JobKey

_LOG = logging.getLogger("tocsin.state")
ISOLATED_END_COUNT: Final = 2
"""Number of consecutive deaths at one slice bundle after which its records become dead letters."""
FORGOTTEN_END_COUNT: Final = 3
"""Number of consecutive deaths after which the job's state is reset too."""
_KEPT_ASIDE_COUNT: Final = 3
_ASIDE_NAME: Final = re.compile(r"([0-9]{6,12})-.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FoundState:
    """Usable state found in a folder at the start.

    Attributes:
        generation: the snapshot to use, None = no usable snapshot.
        parts: its parts.
        aside: for each thing that could not be used, the reason and a sentence.
    """

    generation: Generation | None = None
    parts: Mapping[str, bytes] = field(default_factory=dict)
    aside: tuple[tuple[StateLoss, str], ...] = ()


class StateFolder:
    """An open state folder.

    Attributes:
        counters: ``snapshots``, ``snapshot_bytes``, ``snapshot_failures``.
        tally: counts of the journal reader.
    """

    def __init__(self, folder: Path, config: JournalConfig | None = None) -> None:
        """Open or create the folder, and lock it.

        Args:
            folder: a folder used for this only.
            config: bounds of the journal, None = the defaults.

        Raises:
            EngineError: another engine uses the folder, or it is unusable.
        """
        self.folder = folder
        self._config = config
        self.counters: Counter[str] = Counter()
        self.tally = ReadTally()
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock_fd = _locked(folder / "lock")
            try:
                self._mark = EpochMark(folder / "judging")
                self.snapshot_files = SnapshotFiles(folder)
                self._isolated = self._read_isolated()
            except BaseException:
                os.close(self._lock_fd)
                raise
        except OSError as error:
            raise EngineError(f"state folder {folder} cannot be used: {error}") from error
        self.journal: Journal | None = None
        self._note_suspect()

    def _note_suspect(self) -> None:
        """Remember the slice bundle at which previous processes died repeatedly, and log it."""
        suspect = self._mark.suspect
        if suspect is None or suspect.end_count < ISOLATED_END_COUNT:
            return
        self._isolated[suspect.bundle] = suspect.end_count
        fields = {"job": suspect.bundle.job.job_id, "end_ns": suspect.bundle.end_ns, "ends": suspect.end_count}
        _LOG.error(
            "ended again while judging the same records", extra={"reason": StateLoss.JUDGED_AT_TWO_ENDS, **fields}
        )
        self._write_isolated()

    def load(self) -> FoundState:
        """Return the newest readable snapshot; unusable state is moved aside."""
        aside: list[tuple[StateLoss, str]] = []
        if self._mark.is_incomplete and (self.snapshot_files.numbers() or journals.segments(self.folder)):
            aside.append((StateLoss.INCOMPLETE, "the engine before this one could not keep all that it took"))
            self.set_aside(*aside[-1])
        for number in self.snapshot_files.numbers():
            try:
                generation = self.snapshot_files.manifest(number)
                if generation.state_version != STATE_VERSION:
                    text = f"state version {generation.state_version}, this program has {STATE_VERSION}"
                    aside.append((StateLoss.OTHER_VERSION, text))
                    self.set_aside(*aside[-1])
                    break
                parts = self.snapshot_files.load(generation)
            except SnapshotError as error:
                aside.append((StateLoss.UNREADABLE, str(error)))
                continue
            if aside:
                _LOG.error("a snapshot cannot be read: the one before it is used", extra={"detail": aside[-1][1]})
            self.snapshot_files.resume(generation)
            return FoundState(generation, parts, tuple(aside))
        if self.snapshot_files.numbers():
            self.set_aside(*aside[-1])
        return FoundState(aside=tuple(aside))

    def entries(self, generation: Generation | None) -> Iterator[JournalEntry]:
        """Yield the journal entries after a snapshot, or from the beginning if it is None.

        Raises:
            SnapshotError: a segment is missing or damaged.
            OSError: a file cannot be read.
        """
        return journals.read_journal(self.folder, _first(generation), self.tally)

    def newest_tick_ns(self, generation: Generation | None) -> int | None:
        """Return the newest tick processed after a snapshot (or in it), None = no tick.

        Raises:
            SnapshotError: a segment is missing or damaged.
            OSError: a file cannot be read.
        """
        found = journals.newest_tick_ns(self.folder, _first(generation))
        return found if found is not None or generation is None else generation.tick_ns

    def set_aside(self, reason: StateLoss, detail: str) -> Path:
        """Move all state files to a new folder under ``aside`` and return its path.

        Only the newest such folders are kept.

        Raises:
            EngineError: the files cannot be moved.
        """
        try:
            target = self._move_aside(reason)
            self.snapshot_files = SnapshotFiles(self.folder)
        except OSError as error:
            raise EngineError(f"the state in {self.folder} cannot be set aside: {error}") from error
        self._isolated.clear()
        self._mark.set_whole()
        _LOG.error("state set aside", extra={"reason": reason.value, "detail": detail, "folder": str(target)})
        for old in _asides(target.parent)[:-_KEPT_ASIDE_COUNT]:
            try:
                shutil.rmtree(old)
            except OSError as error:  # it costs room, and nothing else
                _LOG.warning("old state cannot be removed", extra={"folder": str(old), "error": str(error)})
        return target

    def _move_aside(self, reason: StateLoss) -> Path:
        """Move all state files to a new numbered folder under ``aside``, and return its path."""
        base = self.folder / "aside"
        if os.path.lexists(base) and not base.is_dir():
            base.rename(self.folder / "aside.new")  # it is set aside, too
        base.mkdir(mode=0o700, exist_ok=True)
        number = 1 + max(map(_aside_number, _asides(base)), default=0)
        target = base / f"{number:06d}-{reason.value}"
        target.mkdir(mode=0o700)
        for path in list(self.folder.iterdir()):
            if path.suffix in {".json", ".pack", ".log", ".new"}:
                path.rename(target / path.name)
        return target

    def begin(self) -> Journal:
        """Open and return the journal for new entries, in a segment after the existing ones.

        Raises:
            EngineError: the journal cannot be opened.
        """
        number = 1 + max((*journals.segments(self.folder), 0))
        try:
            self.journal = Journal(self.folder, number, self._config, self._mark.set_incomplete)
        except OSError as error:
            raise EngineError(f"the journal in {self.folder} cannot be opened: {error}") from error
        return self.journal

    def write(self, parts: Mapping[str, bytes], journal: int, tick_ns: int) -> bool:
        """Write a snapshot and remove what it replaces; return False if that failed."""
        try:
            _, written = self.snapshot_files.write(parts, journal, tick_ns)
            journals.remove_before(self.folder, self.snapshot_files.first_journal)
        except (OSError, SnapshotError) as error:
            self.counters["snapshot_failures"] += 1
            _LOG.error("snapshot not written: the journal goes on", extra={"error": str(error)})
            return False
        if self.journal is None or self.journal.is_whole:
            self._mark.set_whole()
        self.counters["snapshots"] += 1
        self.counters["snapshot_bytes"] += written
        return True

    def judging(self, job: JobKey, end_ns: int) -> int:
        """Mark that a slice bundle is being processed.

        Return the number of consecutive deaths at it, 0 if below two.
        """
        self._mark.judging(job, end_ns)
        return self._isolated.get(BundleKey(job, end_ns), 0) if self._isolated else 0

    def judged(self) -> None:
        """Mark that no slice bundle is being processed."""
        self._mark.judged()

    def _read_isolated(self) -> dict[BundleKey, int]:
        """Return the bundles with repeated deaths from ``isolated.json``, with the count of each.

        Invalid entries are logged.
        """
        path = self.folder / "isolated.json"
        try:
            entries = json.loads(read_regular(path))
            if not isinstance(entries, list):
                raise TypeError("it is no list")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, RecursionError) as error:
            fields = {"reason": StateLoss.UNREADABLE.value, "error": f"{type(error).__name__}: {error}"}
            _LOG.error("isolated.json cannot be read: no turn is isolated", extra=fields)
            return {}
        found = [one for one in map(_isolated, entries) if one is not None]
        if len(found) < len(entries):
            fields = {"reason": StateLoss.UNREADABLE.value, "error": f"{len(entries) - len(found)} are ignored"}
            _LOG.error("isolated.json has entries that are none", extra=fields)
        return dict(found)

    def _write_isolated(self) -> None:
        """Write the newest bundles with repeated deaths to ``isolated.json``; a failure is only logged."""
        newest = [
            [[bundle.job.cluster, bundle.job.job_id, bundle.job.attempt], bundle.end_ns, count]
            for bundle, count in sorted(self._isolated.items(), key=lambda one: one[0].end_ns)[-100:]
        ]
        new, path = self.folder / "isolated.new", self.folder / "isolated.json"
        try:
            new.unlink(missing_ok=True)
            new.write_text(json.dumps(newest), encoding="utf-8")
            if path.is_dir():
                path.rename(self.folder / f"isolated-{os.getpid()}.new")
            os.replace(new, path)  # noqa: PTH105  # the old one or the new one
        except OSError as error:  # this start knows them all the same
            _LOG.error("isolated.json cannot be written", extra={"error": str(error)})

    def close(self, *, is_abandoned: bool = False) -> None:
        """Close all files; ``is_abandoned`` skips writing the journal's buffer, as if the process had died."""
        if self.journal is not None:
            self.journal.close(is_abandoned=is_abandoned)
        self._mark.close()
        os.close(self._lock_fd)


def _first(generation: Generation | None) -> int:
    """Return the number of the journal segment that continues from a snapshot; 1 if there is none."""
    return 1 if generation is None else generation.journal_index


def _aside_number(path: Path) -> int:
    """Return the running number of a folder under ``aside``, 0 if its name has another form."""
    found = _ASIDE_NAME.fullmatch(path.name)
    return 0 if found is None else int(found[1])


def _asides(base: Path) -> list[Path]:
    """Return the folders of state that was moved aside, oldest first."""
    return sorted((one for one in base.iterdir() if _aside_number(one)), key=_aside_number)


def _isolated(entry: Any) -> tuple[BundleKey, int] | None:
    """Parse an entry of ``isolated.json`` into bundle and count; None if it is invalid."""
    match entry:
        case [[str(cluster), str(job_id), int(attempt)], int(end_ns), int(count)]:
            return BundleKey(JobKey(cluster, job_id, attempt), end_ns), count
    return None


def _locked(path: Path) -> int:
    """Lock the folder and return the lock file's descriptor; the lock lasts until it is closed or the process ends.

    Raises:
        EngineError: another engine holds the lock.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        text = f"state folder {path.parent} is in use by another engine (process {holder}): one engine a folder"
        raise EngineError(text) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd
