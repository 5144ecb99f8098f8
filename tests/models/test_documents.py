"""Models as they are announced: what is taken, and what is refused with which reason."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model_announcements import DEAF, announced, with_payload
from tocsin.models import documents
from tocsin.models.model_formats import FORMATS, accept
from tocsin.pipeline.detect.peers.config import PeersConfig
from tocsin.pipeline.detect.steps.config import StepsConfig
from tocsin.schemas.errors import ModelRefusedError
from tocsin.schemas.model_announcement import (
    BOUNDARY_NS,
    MAX_AHEAD_NS,
    NOTICE_NS,
    ModelAnnouncement,
    boundary_after,
    withdrawal,
)
from tocsin.schemas.reasons import ModelRefusal
from tocsin.schemas.records import METRIC_SLICE_NS, NS_PER_SECOND

START_NS = 1_800_000_000 * NS_PER_SECOND
GOOD = announced(START_NS, 0, 10)


def refusal(announcement: ModelAnnouncement) -> tuple[str, str]:
    """Reason and sentence."""
    with pytest.raises(ModelRefusedError) as caught:
        accept(announcement)
    assert caught.value.reason in set(ModelRefusal)
    return caught.value.reason, str(caught.value)


def test_a_model_is_its_numbers_and_its_name() -> None:
    model = accept(GOOD)

    assert (model.version, model.fitted) == ("deaf", DEAF)


def test_a_withdrawal_is_the_detectors_own_settings() -> None:
    model = accept(withdrawal("steps", START_NS + 1))

    assert (model.version, model.fitted) == ("", None)


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"name": "oracle"}, "unknown_detector", "name = 'oracle': must be one of bilstm entropy minder peers steps"),
        ({"format": "peers"}, "unknown_format", "format = 'peers': must be peers/1"),
        ({"format": "peers/0"}, "unknown_format", "peers/1"),
        ({"format": "steps/1"}, "unknown_format", "peers/1"),
        ({"format": "peers/2"}, "newer_format", "this program is older than the model"),
        ({"format": "peers/" + "9" * 40}, "newer_format", "older"),
        ({"payload": b"{}"}, "hash_mismatch", "content_hash"),
        ({"effective_ns": START_NS + 10 * NS_PER_SECOND + 1}, "not_a_boundary", "multiple of 5000000000"),
        ({"effective_ns": START_NS + 12 * NS_PER_SECOND}, "not_a_boundary", "effective_ns"),
        ({"effective_ns": START_NS + 5 * NS_PER_SECOND}, "short_notice", "at least 10 s"),
        ({"effective_ns": START_NS - 5 * NS_PER_SECOND}, "short_notice", "at least 10 s"),
        ({"effective_ns": START_NS + MAX_AHEAD_NS + 5 * NS_PER_SECOND}, "far_ahead", "at most a day"),
    ],
)
def test_what_is_said_of_a_model_must_be_right(changes: dict[str, Any], reason: str, words: str) -> None:
    found, text = refusal(replace(GOOD, **changes))

    assert found == reason
    assert words in text


@pytest.mark.parametrize(
    ("payload", "reason", "words"),
    [
        (b"", "model_undecodable", "no JSON"),
        (b"\x80\x05", "model_undecodable", "no JSON"),
        (b"[]", "model_undecodable", "model = []: must be a JSON object"),
        (b'{"working": 5}', "model_undecodable", "working = 5: must be a JSON object"),
        (b'{"wroking": {}}', "model_undecodable", "one of comparison floors lines standing working"),
        (b'{"working": {"alarm": 1}}', "model_undecodable", "field = 'working.alarm': must be one of alarm_sum"),
        (b'{"floors": {"gpu_fan": 1}}', "model_undecodable", "floors.gpu_fan"),
        (b'{"working": {"alarm_sum": "10"}}', "model_undecodable", "working.alarm_sum = '10': must be a number from 5"),
        (b'{"working": {"alarm_sum": true}}', "model_undecodable", "working.alarm_sum = True"),
        (b'{"working": {"alarm_sum": NaN}}', "model_undecodable", "no JSON"),
        (b'{"working": {"alarm_sum": 0}}', "out_of_range", "working.alarm_sum = 0: must be a number from 5 to 20"),
        (b'{"working": {"alarm_sum": 1' + b"0" * 400 + b"}}", "model_undecodable", "64 bit"),
        (
            b'{"standing": {"drift_sigmas": 9.5}}',
            "out_of_range",
            "standing.drift_sigmas = 9.5: must be a number from 2 to",
        ),
        (
            b'{"standing": {"max_sigmas": 4.5, "drift_sigmas": 4.5}}',
            "out_of_range",
            "drift_sigmas = 4.5: must be below",
        ),
        (
            b'{"working": {"max_sigmas": 4.5, "drift_sigmas": 4.4}}',
            "out_of_range",
            "working.alarm_sum = 10.0: must be reached",
        ),
    ],
)
def test_a_payload_is_read_strictly(payload: bytes, reason: str, words: str) -> None:
    found, text = refusal(with_payload(GOOD, payload))

    assert found == reason
    assert words in text


def test_of_two_lines_of_the_steps_the_lower_one_is_lower() -> None:
    numbers = {"lines": {"min_lasting_seconds": 61.0}}

    assert refusal(announced(START_NS, 0, 10, numbers, name="steps"))[0] == "out_of_range"


@given(st.binary(max_size=200))
def test_whatever_the_bytes_a_model_is_taken_or_refused(payload: bytes) -> None:
    with contextlib.suppress(ModelRefusedError):
        accept(with_payload(GOOD, payload))


@given(st.integers(0, 10**19 - 1), st.integers(0, 3600 * NS_PER_SECOND))
def test_the_boundary_leaves_the_notice(ts_ns: int, notice_ns: int) -> None:
    found = boundary_after(ts_ns, notice_ns)

    assert found % BOUNDARY_NS == 0
    assert max(NOTICE_NS, notice_ns) <= found - ts_ns < max(NOTICE_NS, notice_ns) + BOUNDARY_NS


def test_what_stands_here_is_what_the_detectors_have() -> None:
    """The bounds of each number hold the detector's own value, and its name is one of its settings."""
    peers, steps = PeersConfig(), StepsConfig()
    own = {
        "peers": {"comparison": peers.peers, "working": peers.sums, "standing": peers.stalled, "lines": peers},
        "steps": {"slow": steps.slow, "lines": steps},
    }
    assert METRIC_SLICE_NS == BOUNDARY_NS
    assert {name for name, one in FORMATS.items() if not one.is_trained} == own.keys()
    for name, sections in (("peers", documents.PEERS_SECTIONS), ("steps", documents.STEPS_SECTIONS)):
        numbers = {
            section: {field: getattr(own[name][section], field) for field in bounds}
            for section, bounds in sections.items()
            if section != "floors"
        }
        assert accept(announced(START_NS, 0, 10, numbers, name=name)).fitted == json.loads(json.dumps(numbers))
    assert {n: getattr(peers.sums, n) for n in documents.OWN_SUMS} == documents.OWN_SUMS
    assert {n: getattr(steps, n) for n in documents.OWN_LASTING} == documents.OWN_LASTING
