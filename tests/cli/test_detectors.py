"""What people are told of learned detectors: mode, model, since when, whom they name, and the model's card."""

from __future__ import annotations

import json
import re
from typing import Any

from tocsin.cli.detectors import judging_lines, learned_lines
from tocsin.pipeline.detect.learned.registry import LEARNED
from tocsin.pipeline.job.graph import JobGraph

CARD = {"version": "20261127-1a2b3c4d", "content_hash": "ab" * 32, "metrics": ["gpu_power_watts"], "line_sigmas": 5.0}
IN_USE = {
    "minder": {"version": CARD["version"], "content_hash": CARD["content_hash"], "since_ns": 1_795_757_400 * 10**9}
}
NAMING = {"detector": "minder", "mode": "evidence", "card": CARD, "abstained": {"warming_up": 12}, "names": ["n03"]}


def test_a_running_detector_says_model_begin_names_and_why_it_judged_nothing() -> None:
    head, card, abstained = learned_lines([NAMING], IN_USE)

    assert head == (
        "  learned   minder: evidence, model 20261127-1a2b3c4d (abababab) since 2026-11-27 05:30:00 UTC; names n03"
    )
    assert card.strip() == "metrics gpu_power_watts, line_sigmas 5"
    assert abstained.strip() == "judged nothing: 12 x warming_up"


def test_families_and_the_programs_own_settings_are_said_in_words() -> None:
    graph = JobGraph()
    states: list[dict[str, Any]] = [
        {"detector": name, "mode": "evidence", "card": dict(LEARNED[name](graph).card()), "abstained": {}, "names": []}
        for name in ("entropy", "bilstm")
    ]
    entropy, _, bilstm, families = learned_lines(json.loads(json.dumps(states)), {})

    assert entropy == "  learned   entropy: evidence, model builtin as it ships; names nobody"
    assert bilstm.startswith("  learned   bilstm: evidence, model builtin (")
    assert re.fullmatch(
        r" +families phases \(sources data communication rest, line_factor [\d.]+\), "
        r"collectives \(sources [a-z_ ]+, line_factor [\d.]+\)",
        families,
    )


def test_a_detector_that_is_off_says_which_model_waits_for_it() -> None:
    off = {"detector": "minder", "mode": "off"}
    assert list(learned_lines([off], {})) == ["  learned   minder: off"]
    assert list(learned_lines([off], IN_USE)) == [
        "  learned   minder: off; model 20261127-1a2b3c4d is announced and judges nothing"
    ]


def test_a_list_of_what_judges_has_the_cards_of_the_registry_and_no_job_that_is_over() -> None:
    job: dict[str, Any] = {"job_id": "j", "cluster": "c", "attempt": 1, "learned": [NAMING], "models_in_use": IN_USE}
    metrics = {"training": {"f1": 0.5}}
    card = {"metrics": metrics, "training": {"recordings": 40}, "trained_at": "2026-11-22T15:31"}
    answer = {"jobs": [job, {**job, "job_id": "old", "ended": True}]}
    lines = list(judging_lines(answer, {("minder", "ab" * 32): card}))

    assert lines[0] == "job j (cluster c, attempt 1)"
    assert lines[-1].strip() == "card of minder: trained 2026-11-22 on 40 recordings, F1 0.500"
    assert not any("old" in line for line in lines)
    assert list(judging_lines({"jobs": [{**job, "ended": True}]}, {})) == ["no job runs: no model judges now"]
