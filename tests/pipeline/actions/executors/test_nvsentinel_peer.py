"""The connection to NVSentinel's connector, and the release that it must be."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from tests.pipeline.actions.executors.nvsentinel_kit import PUBLISHED, ListeningConnector, action_on
from tocsin.pipeline.actions.executors.nvsentinel_events import EventSettings, unhealthy_events
from tocsin.pipeline.actions.executors.nvsentinel_peer import GrpcConnector, check_release
from tocsin.schemas.errors import TargetAwayError, TargetRefusedError

EVENTS = unhealthy_events(action_on("n1", "n2"), EventSettings())


def test_a_connector_receives_the_events_as_sent(tmp_path: Path) -> None:
    peer = ListeningConnector()
    with peer.listening(tmp_path / "s") as address, GrpcConnector(address, 5) as connector:
        connector.send(EVENTS)
    assert tuple(peer.events) == EVENTS


def test_a_missing_connector_is_away(tmp_path: Path) -> None:
    with (
        GrpcConnector(f"unix://{tmp_path}/nobody", 1) as connector,
        pytest.raises(TargetAwayError, match="UNAVAILABLE"),
    ):
        connector.send(EVENTS)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (grpc.StatusCode.UNAVAILABLE, TargetAwayError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, TargetAwayError),
        (grpc.StatusCode.INTERNAL, TargetAwayError),
        (grpc.StatusCode.PERMISSION_DENIED, TargetRefusedError),
        (grpc.StatusCode.UNAUTHENTICATED, TargetRefusedError),
        (grpc.StatusCode.INVALID_ARGUMENT, TargetRefusedError),
        (grpc.StatusCode.UNIMPLEMENTED, TargetRefusedError),
    ],
)
def test_codes_say_whether_it_may_be_sent_again(
    tmp_path: Path, code: grpc.StatusCode, expected: type[Exception]
) -> None:
    peer = ListeningConnector()
    peer.answer = code
    with (
        peer.listening(tmp_path / "s") as address,
        GrpcConnector(address, 5) as connector,
        pytest.raises(expected, match=f"{code.name}: as the test wants"),
    ):
        connector.send(EVENTS)


def test_the_published_release_is_taken() -> None:
    check_release(PUBLISHED)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("  ProcessingStrategy processingStrategy = 16;\n", "", "no field processingStrategy = 16"),
        ("processingStrategy = 16", "processingStrategy = 17", "no field processingStrategy = 16"),
        ("ProcessingStrategy processingStrategy = 16", "// ProcessingStrategy processingStrategy = 16", "no field"),
        ("STORE_ONLY = 2", "STORE_ONLY = 3", "no STORE_ONLY = 2"),
        ("message HealthEvent {", "message Other {", "no message HealthEvent"),
    ],
)
def test_a_release_that_would_act_on_what_is_to_be_stored_is_refused(old: str, new: str, said: str) -> None:
    text = PUBLISHED.replace(old, new)
    assert text != PUBLISHED
    with pytest.raises(TargetRefusedError, match=said):
        check_release(text)
