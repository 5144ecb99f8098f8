"""Actions on a fake of Kubernetes that refuses in recorded words; ``tests/peers_kube`` has the same on a real one."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.pipeline.actions.executors.fake_kube import FakeKube, serving_kube
from tests.pipeline.actions.executors.kube_cases import DRAIN, KubeCases, action_on
from tests.pipeline.actions.executors.kube_device_cases import GPU, DeviceCases, about_gpu
from tests.pipeline.actions.executors.kube_harm_cases import HarmCases, NameCases
from tests.pipeline.actions.executors.kube_lease_cases import LeaseCases
from tests.pipeline.actions.executors.kube_watch_cases import WatchCases
from tests.pipeline.actions.executors.kube_world import KubeWorld
from tests.pipeline.actions.executors.made import carried_out
from tocsin.pipeline.actions.executors.target import Stage
from tocsin.schemas.errors import TargetAwayError


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[FakeKube, KubeWorld]]:
    with serving_kube() as found:
        yield found


@pytest.fixture
def kube(served: tuple[FakeKube, KubeWorld]) -> FakeKube:
    served[0].objects.clear()
    served[0].effects.clear()
    served[0].lost = 0
    return served[0]


@pytest.fixture
def world(served: tuple[FakeKube, KubeWorld], kube: FakeKube) -> KubeWorld:
    served[1].clock_ns[0] = time.time_ns()
    return served[1]


class TestFakeKubernetes(KubeCases):
    """The cases on the fake."""


class TestFakeHarm(HarmCases):
    """What must not happen, on the fake."""


class TestFakeNames(NameCases):
    """Names of nodes on the fake."""


class TestFakeDevices(DeviceCases):
    """Rules on the fake."""


class TestFakeWatch(WatchCases):
    """Facts on the fake."""


class TestFakeLease(LeaseCases):
    """Replicas on the fake."""


def test_a_lost_answer_is_read_before_anything_is_repeated(world: KubeWorld, kube: FakeKube) -> None:
    world.add_node("a")
    action = action_on(DRAIN, "a")
    kube.lost = 1
    with pytest.raises(TargetAwayError):
        carried_out(world.target(), action)
    carried_out(world.target(), action)
    assert kube.effects == ["PATCH /api/v1/nodes/a", "PATCH /api/v1/nodes/a/status"]


def test_without_rights_for_rules_the_node_is_drained_all_the_same(world: KubeWorld, kube: FakeKube) -> None:
    world.add_node("a")
    world.add_device("a", "gpu-3", GPU)
    action = about_gpu(action_on(DRAIN, "a"))
    kube.forbidden = ("/apis/resource.k8s.io/",)
    try:
        target = world.target()
        target.on_action(action)
        target.on_time()
        assert carried_out(target, action).stage is Stage.DONE
    finally:
        kube.forbidden = ()
    assert world.rules() == []
    assert world.is_cordoned("a")
