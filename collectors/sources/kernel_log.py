"""Hardware errors from the kernel's log: /dev/kmsg, or a file that a log daemon writes.

Reads without blocking, and reports nothing old: it begins at the end of the log. Lines that the kernel overwrote
unread are counted (``kernel_log_lost``). A repeated finding is one event a minute with a count, so that a storm of
10 lines a second stays one event.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tocsin.collectors.api import Collector, CollectorError, HostEvent, NothingHere, Reading
from tocsin.collectors.sources.settings import SourceSettings
from tocsin.schemas import events
from tocsin.schemas.errors import FieldError
from tocsin.schemas.formats.kernel_lines import MAX_LINE_CHARACTERS, KernelFinding, read_line
from tocsin.schemas.formats.kmsg import parse_kmsg
from tocsin.schemas.records import NS_PER_SECOND, EventSource, Severity

RECORD_BYTES: Final = 65_536
"""Size of the read buffer; a record of /dev/kmsg that does not fit would be lost (EINVAL)."""
MAX_RECORDS: Final = 4_096
MAX_FILE_BYTES: Final = 1 << 20
"""Most bytes of a file that one call reads; the rest is read by the next one."""
REPEAT_NS: Final = 60 * NS_PER_SECOND
MAX_KINDS: Final = 512


@dataclass(frozen=True, slots=True)
class KernelLogConfig:
    """Settings of the kernel log collector.

    Attributes:
        path: /dev/kmsg, or a log file.
        period_seconds: time between two calls.
        from_start: whether to report what is in the log already, too.
    """

    path: str = "/dev/kmsg"
    period_seconds: float = 1.0
    from_start: bool = False


class KernelLogCollector:
    """Reports events only; rotation or overwriting of the log never stops it.

    Attributes:
        skipped: skipped lines by reason: ``overwritten`` (by the kernel, unread), ``truncated`` (only the beginning was
            read), ``malformed`` (no record), ``repeated`` (counted instead of reported again).
    """

    name = "kernel_log"

    def __init__(self, config: KernelLogConfig) -> None:
        """Create the collector; nothing is opened yet."""
        self.period_seconds = config.period_seconds
        self.skipped: Counter[str] = Counter()
        self._config = config
        self._descriptor = -1
        self._is_device = False
        self._identity = (0, 0)
        self._partial = b""
        self._skipping = False
        self._reported: dict[tuple[str, str], _ReportedFinding] = {}

    def collect(self, now_ns: int) -> Reading:
        """Return the events in the log since the last call.

        Raises:
            NothingHere: the file does not exist, or this user may not read it.
            CollectorError: the file cannot be read.
        """
        if self._descriptor < 0:
            self._open(at_end=not self._config.from_start)
        overwritten = self.skipped["overwritten"]
        lines = self._records() if self._is_device else self._lines()
        found = [finding for line in lines if (finding := read_line(line)) is not None]
        host_events = self._first_of_each(found, now_ns)
        lost = self.skipped["overwritten"] - overwritten
        if lost:
            host_events.append(_host_event(events.KERNEL_LOG_LOST, Severity.WARNING, {"dropped_count": lost}))
        return Reading(events=tuple(host_events))

    # --- reading ---------------------------------------------------------------------------------

    def _open(self, *, at_end: bool) -> None:
        """Open the log, at its end or at its beginning."""
        path = self._config.path
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise NothingHere(f"{path} does not exist") from error
        except PermissionError as error:
            text = f"{path}: this user may not read it; grant CAP_SYSLOG, or name a log file with --kmsg-path"
            raise NothingHere(text) from error
        except OSError as error:
            raise CollectorError(f"{path} cannot be opened: {error.strerror}") from error
        try:
            found = os.fstat(descriptor)
            if stat.S_ISDIR(found.st_mode):
                raise CollectorError(f"{path} is a folder: name /dev/kmsg or a log file")
            self._is_device = stat.S_ISCHR(found.st_mode)
            if at_end:
                os.lseek(descriptor, 0, os.SEEK_END)
        except OSError as error:
            os.close(descriptor)
            raise CollectorError(f"{path} cannot be read: {error.strerror}") from error
        except CollectorError:
            os.close(descriptor)
            raise
        self._descriptor, self._identity = descriptor, (found.st_dev, found.st_ino)
        self._partial, self._skipping = b"", False

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _records(self) -> Iterator[str]:
        """Yield the messages of /dev/kmsg, one record a read (see dev-kmsg in the kernel's documentation)."""
        for _ in range(MAX_RECORDS):
            try:
                data = os.read(self._descriptor, RECORD_BYTES)
            except BlockingIOError:
                return
            except BrokenPipeError:  # EPIPE: overwritten before we came; the next read goes on with what is left
                self.skipped["overwritten"] += 1
                continue
            except OSError as error:
                self.close()
                raise CollectorError(f"{self._config.path} cannot be read: {error.strerror}") from error
            if not data:
                return
            try:
                message = parse_kmsg(data.decode("utf-8", "replace")).message
            except FieldError:
                self.skipped["malformed"] += 1
                continue
            yield self._cut(message)

    def _lines(self) -> Iterator[str]:
        """Yield the new complete lines of a log file; a rotated or truncated file is followed."""
        data = self._read_file()
        if not data:
            if not self._was_replaced():
                return
            self.close()
            try:
                self._open(at_end=False)
            except NothingHere:
                return  # between a rotation's two steps
            data = self._read_file()
        *whole, rest = (self._partial + data).split(b"\n")
        self._partial = rest
        for line in whole:
            if self._skipping:  # the end of a line whose beginning was told
                self._skipping = False
                continue
            yield self._cut(line[: 4 * MAX_LINE_CHARACTERS].decode("utf-8", "replace"), len(line))
        if len(rest) > 4 * MAX_LINE_CHARACTERS:
            if not self._skipping:
                yield self._cut(rest[: 4 * MAX_LINE_CHARACTERS].decode("utf-8", "replace"), len(rest))
            self._partial, self._skipping = b"", True

    def _read_file(self) -> bytes:
        """Return the next bytes of the log file."""
        try:
            return os.read(self._descriptor, MAX_FILE_BYTES)
        except BlockingIOError:  # a pipe
            return b""
        except OSError as error:
            self.close()
            raise CollectorError(f"{self._config.path} cannot be read: {error.strerror}") from error

    def _was_replaced(self) -> bool:
        """Return whether the path names another file now, or the file became shorter than what was read."""
        with contextlib.suppress(OSError):
            found = os.stat(self._config.path)
            if (found.st_dev, found.st_ino) != self._identity:
                return True
            return stat.S_ISREG(found.st_mode) and found.st_size < os.lseek(self._descriptor, 0, os.SEEK_CUR)
        return False

    def _cut(self, line: str, size: int = 0) -> str:
        """Return a line cut to the longest length, counting it if it was longer."""
        if max(size, len(line)) > MAX_LINE_CHARACTERS:
            self.skipped["truncated"] += 1
        return line[:MAX_LINE_CHARACTERS]

    # --- telling ---------------------------------------------------------------------------------

    def _first_of_each(self, findings: list[KernelFinding], now_ns: int) -> list[HostEvent]:
        """Return events for findings not reported within the last minute, and for repetitions whose minute is over."""
        out: list[HostEvent] = []
        for key, reported in list(self._reported.items()):
            if now_ns - reported.at_ns >= REPEAT_NS:
                if reported.repeats:
                    finding = reported.finding
                    payload = {**finding.payload, "repeats": reported.repeats}
                    out.append(_host_event(finding.name, finding.severity, payload))
                    self._reported[key] = _ReportedFinding(now_ns, finding)
                else:
                    del self._reported[key]
        for finding in findings:
            key = (finding.name, _identity(finding.payload))
            known = self._reported.get(key)
            if known is not None:
                known.repeats += 1
                self.skipped["repeated"] += 1
                continue
            if len(self._reported) >= MAX_KINDS:
                self._reported.pop(next(iter(self._reported)))
            self._reported[key] = _ReportedFinding(now_ns, finding)
            out.append(_host_event(finding.name, finding.severity, {**finding.payload, "repeats": 0}))
        return out


@dataclass(slots=True)
class _ReportedFinding:
    """A reported finding: when it was reported, and how often it was repeated since."""

    at_ns: int
    finding: KernelFinding
    repeats: int = 0


def _identity(payload: Mapping[str, Any]) -> str:
    """Return a key that is equal for repeated findings: their payload without text and registers."""
    return json.dumps(
        {key: value for key, value in payload.items() if key not in {"text", "registers"}}, sort_keys=True
    )


def _host_event(name: str, severity: Severity, payload: Mapping[str, Any]) -> HostEvent:
    """Build a host event of the kernel."""
    return HostEvent(name, EventSource.KERNEL, severity, payload)


def from_settings(settings: SourceSettings) -> list[Collector]:
    """Return the collector of the kernel log."""
    return [KernelLogCollector(KernelLogConfig(settings.kmsg_path))]
