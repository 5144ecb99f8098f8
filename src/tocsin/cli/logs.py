"""Structured logs: one line per record, with ``key=value`` after the message, or as JSON."""

from __future__ import annotations

import argparse
import logging
import sys
import time

from tocsin.schemas.printable import json_text, plain

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def add_log_arguments(parser: argparse.ArgumentParser, default_level: str = "info") -> None:
    """Add the flags ``--log-level`` and ``--log-json``."""
    parser.add_argument("--log-level", default=default_level, choices=("debug", "info", "warning", "error"))
    parser.add_argument("--log-json", action="store_true", help="one JSON object a line")


def set_up_logs(args: argparse.Namespace) -> None:
    """Send the package's logs to stderr, with the level and format of the flags."""
    handler = StderrHandler()
    handler.setFormatter(JsonFormatter() if args.log_json else TextFormatter())
    root = logging.getLogger("tocsin")
    root.handlers[:] = [handler]
    root.setLevel(args.log_level.upper())
    root.propagate = False


def extras(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields that the caller added to a log record."""
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


class StderrHandler(logging.Handler):
    """Writes to the current ``sys.stderr``, so that it may be redirected or replaced at any time."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one log record as a line."""
        try:
            line = self.format(record) + "\n"
            sys.stderr.write(line)
            sys.stderr.flush()
        except Exception:  # noqa: BLE001  # supervising: what cannot be logged must not end who logs it
            self.handleError(record)


class TextFormatter(logging.Formatter):
    """Formats records like ``2026-11-21T03:07:33.120Z INFO tocsin.engine job appeared job=j1``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one record as text."""
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields = "".join(f" {plain(key)}={json_text(value, default=str)}" for key, value in extras(record).items())
        text = f"{when}.{int(record.msecs):03d}Z {record.levelname} {record.name} {plain(record.getMessage())}{fields}"
        if record.exc_info:
            text += "\n" + plain(self.formatException(record.exc_info), kept="\n")
        return text


class JsonFormatter(logging.Formatter):
    """Formats each record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one record as JSON."""
        entry: dict[str, object] = {
            "ts": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **extras(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json_text(entry, default=str)
