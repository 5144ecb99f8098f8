"""Where log lines go, and what they look like."""

from __future__ import annotations

import argparse
import io
import json
import logging
import sys

import pytest

from tocsin.cli.logs import set_up_logs


def test_whoever_redirects_stderr_later_gets_the_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", first)
    set_up_logs(argparse.Namespace(log_json=False, log_level="info"))
    logging.getLogger("tocsin.engine").info("job appeared", extra={"job": "j1"})
    monkeypatch.setattr(sys, "stderr", second)
    first.close()
    logging.getLogger("tocsin.engine").info("job ended", extra={"job": "j1"})

    assert second.getvalue().endswith('Z INFO tocsin.engine job ended job="j1"\n')
    assert "Logging error" not in second.getvalue()


def test_a_line_of_json_carries_the_callers_fields_and_the_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    set_up_logs(argparse.Namespace(log_json=True, log_level="warning"))
    log = logging.getLogger("tocsin.engine")
    log.info("below the level")
    try:
        raise ValueError("bad")
    except ValueError:
        log.exception("operators failed", extra={"key": "t/j"})
    [line] = map(json.loads, stderr.getvalue().splitlines())

    assert (line["level"], line["logger"], line["message"]) == ("error", "tocsin.engine", "operators failed")
    assert line["key"] == "t/j"
    assert line["exception"].endswith("ValueError: bad")


@pytest.mark.parametrize("stderr", [io.StringIO(), None])
def test_what_cannot_be_logged_does_not_end_who_logs_it(monkeypatch: pytest.MonkeyPatch, stderr: object) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(logging, "raiseExceptions", False)
    set_up_logs(argparse.Namespace(log_json=False, log_level="info"))

    logging.getLogger("tocsin.engine").info("%(x)s", {"y": 1})
    logging.getLogger("tocsin.engine").info("after")

    assert stderr is None or str(getattr(stderr, "getvalue")()).endswith("after\n")  # noqa: B009  # a union
