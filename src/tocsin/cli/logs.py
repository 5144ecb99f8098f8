"""Structured logs: one line a record, ``key=value`` after the message, or JSON."""

from __future__ import annotations

import argparse
import logging
import sys
import time

from tocsin.schemas.printable import json_text, plain

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def add_log_arguments(parser: argparse.ArgumentParser, default_level: str = "info") -> None:
    """``--log-level`` and ``--log-json``."""
    parser.add_argument("--log-level", default=default_level, choices=("debug", "info", "warning", "error"))
    parser.add_argument("--log-json", action="store_true", help="one JSON object a line")


def set_up_logs(args: argparse.Namespace) -> None:
    """Send the package's logs to stderr."""
    handler = StderrHandler()
    handler.setFormatter(JsonFormatter() if args.log_json else TextFormatter())
    root = logging.getLogger("tocsin")
    root.handlers[:] = [handler]
    root.setLevel(args.log_level.upper())
    root.propagate = False


def extras(record: logging.LogRecord) -> dict[str, object]:
    """The fields that the caller added."""
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


class StderrHandler(logging.Handler):
    """Writes to what is stderr at that moment: who redirects it, or closes what it was, is followed."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        try:
            line = self.format(record) + "\n"
            sys.stderr.write(line)
            sys.stderr.flush()
        except Exception:  # noqa: BLE001  # supervising: what cannot be logged must not end who logs it
            self.handleError(record)


class TextFormatter(logging.Formatter):
    """``2026-11-21T03:07:33.120Z INFO tocsin.engine job appeared job=j1``."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one record."""
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields = "".join(f" {plain(key)}={json_text(value, default=str)}" for key, value in extras(record).items())
        text = f"{when}.{int(record.msecs):03d}Z {record.levelname} {record.name} {plain(record.getMessage())}{fields}"
        if record.exc_info:
            text += "\n" + plain(self.formatException(record.exc_info), kept="\n")
        return text


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one record."""
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
