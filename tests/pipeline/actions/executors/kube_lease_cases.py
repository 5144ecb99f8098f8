"""Replicas of an executor and their Lease: on a fake in ``make test``, on a real API server in ``tests/peers_kube``."""

from __future__ import annotations

from typing import Any

import pytest

from tests.pipeline.actions.executors.kube_cases import action_on
from tests.pipeline.actions.executors.kube_world import EXECUTOR, KubeWorld
from tests.pipeline.actions.executors.made import SECOND_NS
from tocsin.pipeline.actions.executors.kubernetes_api import KubernetesApi
from tocsin.pipeline.actions.executors.kubernetes_lease import KubernetesLease, LeaseSettings
from tocsin.pipeline.actions.executors.reasons import ExecutorReason
from tocsin.pipeline.actions.executors.turns import TurnTarget
from tocsin.schemas.errors import TargetAwayError
from tocsin.schemas.verdicts import ActionKind

NAME = "tocsin-executor-kubernetes"
PATH = f"/apis/coordination.k8s.io/v1/namespaces/tocsin/leases/{NAME}"


class SwitchedApi(KubernetesApi):
    """Calls as the executor, unless the API server is away."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def call(self, method: str, path: str, body: Any = None, *, query: Any = (), content: str = "") -> Any:
        if self._replicas.is_away:
            raise TargetAwayError("no answer")
        if method == "PUT" and self._replicas.faster:
            self._replicas.world.patch(PATH, {"spec": {"holderIdentity": self._replicas.faster}})
            self._replicas.faster = ""
        return self._replicas.world.api(EXECUTOR).call(method, path, body, query=query)


class Replicas:
    """Two replicas, each with its own clock."""

    def __init__(self, world: KubeWorld) -> None:
        self.world = world
        self.is_away = False
        self.faster = ""
        """A replica that takes the Lease between the next one's question and its change."""
        self.clocks = {"a": [world.clock_ns[0] // SECOND_NS * SECOND_NS], "b": [5 * SECOND_NS]}
        self.leases = {name: self.lease(name) for name in self.clocks}

    def lease(self, name: str) -> KubernetesLease:
        settings = LeaseSettings("tocsin", NAME, name)
        return KubernetesLease(settings, SwitchedApi(self), lambda: self.clocks[name][0])

    def after(self, seconds: float, *names: str) -> dict[str, bool]:
        """Time passes on all clocks; these replicas ask then. Return who may act."""
        for clock in self.clocks.values():
            clock[0] += int(seconds * SECOND_NS)
        return {name: self.leases[name].is_mine() for name in names}


class LeaseCases:
    """One replica acts at a time."""

    @pytest.fixture
    def replicas(self, world: KubeWorld) -> Replicas:
        world.made(PATH)
        return Replicas(world)

    def test_the_first_replica_acts_and_the_second_stands_by(self, replicas: Replicas) -> None:
        for _ in range(20):
            assert replicas.after(11, "a", "b") == {"a": True, "b": False}

    def test_a_dead_replica_is_followed_after_its_time_and_not_before(self, replicas: Replicas) -> None:
        assert replicas.after(0, "a", "b") == {"a": True, "b": False}
        for _ in range(5):
            assert replicas.after(11, "b") == {"b": False}
        assert replicas.after(11, "b", "a") == {"b": True, "a": False}

    def test_a_replica_that_was_paused_begins_nothing(self, replicas: Replicas) -> None:
        assert replicas.after(0, "a") == {"a": True}
        replicas.is_away = True
        assert replicas.after(39, "a") == {"a": True}
        assert replicas.after(2, "a") == {"a": False}

    def test_while_the_api_server_is_away_only_the_last_one_speaks(self, replicas: Replicas) -> None:
        assert replicas.after(0, "a", "b") == {"a": True, "b": False}
        replicas.is_away = True
        assert replicas.after(3600, "a", "b") == {"a": False, "b": False}
        assert {name: lease.may_speak() for name, lease in replicas.leases.items()} == {"a": True, "b": False}
        replicas.is_away = False
        assert replicas.after(11, "b", "a") == {"b": True, "a": False}
        assert not replicas.leases["a"].may_speak()

    def test_one_that_lost_the_lease_to_a_faster_one_says_nothing_more(self, replicas: Replicas) -> None:
        assert replicas.after(0, "a") == {"a": True}
        replicas.faster = "b"
        replicas.after(11, "a")
        assert not replicas.faster
        replicas.is_away = True
        assert replicas.after(3600, "a") == {"a": False}
        assert not replicas.leases["a"].may_speak()

    def test_one_that_stands_by_gives_up_nothing(self, replicas: Replicas) -> None:
        assert replicas.after(0, "a", "b") == {"a": True, "b": False}
        replicas.leases["b"].give_up()
        assert replicas.after(11, "b", "a") == {"b": False, "a": True}

    def test_one_that_gives_up_is_followed_at_once(self, replicas: Replicas) -> None:
        assert replicas.after(0, "a", "b") == {"a": True, "b": False}
        replicas.leases["a"].give_up()
        assert replicas.after(11, "b", "a") == {"b": True, "a": False}

    def test_a_replica_that_starts_anew_has_to_wait(self, replicas: Replicas) -> None:
        assert replicas.after(0, "a") == {"a": True}
        replicas.leases["b"] = replicas.lease("b")
        assert replicas.after(11, "b") == {"b": False}

    def test_an_effect_is_made_in_the_own_turn_only(self, replicas: Replicas, world: KubeWorld) -> None:
        world.add_node("n")
        action = action_on(ActionKind.DRAIN, "n")
        targets = {name: TurnTarget(world.target(), lease) for name, lease in replicas.leases.items()}
        assert replicas.after(0, "a", "b") == {"a": True, "b": False}
        look = targets["b"].look(action)
        with pytest.raises(TargetAwayError) as caught:
            targets["b"].make(action, look)
        assert caught.value.reason == ExecutorReason.ANOTHER_REPLICA
        assert not world.is_cordoned("n")
        targets["a"].make(action, look)
        assert world.is_cordoned("n")
