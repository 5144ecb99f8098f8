"""What NVSentinel is told about an action."""

from __future__ import annotations

import pytest

from tests.pipeline.actions.executors.nvsentinel_kit import ISSUED_NS, action_on
from tocsin.pipeline.actions.executors.nvsentinel_events import (
    EventSettings,
    healthy_events,
    unhealthy_events,
)
from tocsin.schemas.formats.nvsentinel import (
    BehaviourOverrides,
    Entity,
    ProcessingStrategy,
    RecommendedAction,
    health_envelope,
)
from tocsin.schemas.verdicts import ActionKind, Component, ComponentKind

EXECUTE = EventSettings(ProcessingStrategy.EXECUTE_REMEDIATION)


@pytest.mark.parametrize("kind", [one for one in ActionKind if one is not ActionKind.NONE])
def test_no_event_leaves_the_strategy_open_and_the_default_only_stores(kind: ActionKind) -> None:
    action = action_on("n1", kind=kind)
    for events in (unhealthy_events(action, EventSettings()), healthy_events(action, EventSettings())):
        assert all(one.strategy is ProcessingStrategy.STORE_ONLY for one in events)


def test_a_strategy_that_means_leave_to_act_is_refused() -> None:
    with pytest.raises(ValueError, match="STORE_ONLY or EXECUTE_REMEDIATION"):
        EventSettings(ProcessingStrategy.UNSPECIFIED)


@pytest.mark.parametrize(
    ("kind", "recommended", "fatal"),
    [
        (ActionKind.EVICT, RecommendedAction.NONE, True),
        (ActionKind.DRAIN, RecommendedAction.NONE, True),
        (ActionKind.REBOOT, RecommendedAction.RESTART_BM, True),
        (ActionKind.RESET_GPU, RecommendedAction.COMPONENT_RESET, True),
        (ActionKind.NOTIFY, RecommendedAction.NONE, False),
    ],
)
def test_each_kind_asks_for_one_thing(kind: ActionKind, recommended: RecommendedAction, fatal: bool) -> None:
    (event,) = unhealthy_events(action_on("n1", kind=kind), EXECUTE)
    assert (event.recommended_action, event.is_fatal, event.is_healthy) == (recommended, fatal, False)
    assert event.generated_ns == ISSUED_NS


@pytest.mark.parametrize("kind", [ActionKind.RESTART, ActionKind.ROLLBACK, ActionKind.REPLAY, ActionKind.PROBE])
def test_what_concerns_the_job_alone_and_what_has_no_result_is_not_told(kind: ActionKind) -> None:
    assert unhealthy_events(action_on("n1", kind=kind), EXECUTE) == ()
    assert healthy_events(action_on("n1", kind=kind), EXECUTE) == ()


def test_only_a_drain_leaves_the_pods_where_they_are() -> None:
    (drain,) = unhealthy_events(action_on("n1", kind=ActionKind.DRAIN), EXECUTE)
    (evict,) = unhealthy_events(action_on("n1", kind=ActionKind.EVICT), EXECUTE)
    assert drain.drain_overrides == BehaviourOverrides(skip=True)
    assert evict.drain_overrides is None


def test_a_healthy_event_ends_its_own_action_only() -> None:
    gpu = Component(ComponentKind.GPU, "GPU-4")
    first, second = (action_on("n1", component=gpu, verdict_id=name) for name in ("v1", "v2"))
    (begun,), (ended,) = unhealthy_events(first, EXECUTE), healthy_events(first, EXECUTE)
    (other,) = unhealthy_events(second, EXECUTE)
    same = ("agent", "component_class", "check_name", "node_name", "entities")
    assert all(getattr(begun, name) == getattr(ended, name) for name in same)
    assert (ended.is_healthy, ended.is_fatal, ended.recommended_action) == (True, False, RecommendedAction.NONE)
    assert Entity("GPU", "GPU-4") in begun.entities
    assert set(other.entities) - set(ended.entities), "something of the second action stays unhealthy"


def test_nodes_have_their_names_in_kubernetes() -> None:
    settings = EventSettings(node_names={"n1": "ip-10-0-0-1"})
    first, second = unhealthy_events(action_on("n1", "n2"), settings)
    assert (first.node_name, second.node_name) == ("ip-10-0-0-1", "n2")


def test_the_envelope_is_that_of_nvsentinel_s_exporter() -> None:
    action = action_on("n1")
    (event,) = unhealthy_events(action, EventSettings())
    envelope = health_envelope(event, "c1", "e1")
    assert envelope["type"] == "com.nvidia.nvsentinel.health.v1"
    assert envelope["source"] == "nvsentinel://c1/healthevents"
    assert envelope["time"] == "2023-11-14T22:13:20.123456Z"
    assert envelope["data"]["metadata"] == {"cluster": "c1"}
    told = envelope["data"]["healthEvent"]
    assert (told["processingStrategy"], told["nodeName"], told["isFatal"]) == (2, "n1", True)
    assert told["metadata"]["tocsin_action_id"] == action.action_id
    assert "quarantineOverrides" not in told
