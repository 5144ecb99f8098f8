"""What an engine tells ``status`` of a job whose every text an attacker chose."""

from __future__ import annotations

from typing import Any


def job_answer(evil: str) -> dict[str, Any]:
    """Return one job of the answer to ``status``, with a hostile text wherever a text can stand."""
    host = {"last_seen_seconds": 99.0, "late": 1, "clock_offset_seconds": 0.0, "clock_error_seconds": 0.0}
    verdict = {"state": evil, "fault": evil, "suspects": [{"name": evil}], "cause": evil}
    return {
        "job_id": evil,
        "cluster": evil,
        "attempt": 0,
        "ended": False,
        "world_size": 1,
        "max_step": 1,
        "hook_present": True,
        "groups": 1,
        "step_seconds": 0.1,
        "abstained": {evil: 1},
        "verdicts": [verdict],
        "hosts": {evil: host},
        "ranks": {"0": {"steps_per_second": 1.0}},
    }
