"""``tocsin executor kubernetes``: its flags, and who it is to the API server."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.actions.executors.fake_kube import serving_kube
from tests.pipeline.actions.executors.kube_cases import DRAIN, action_on
from tests.pipeline.actions.executors.kube_world import EXECUTOR, KubeWorld
from tests.pipeline.actions.executors.made import carried_out
from tocsin.cli.executor import TARGETS
from tocsin.pipeline.actions.executors.signed_actions import SignedActions
from tocsin.pipeline.actions.executors.target import Stage
from tocsin.pipeline.actions.executors.turns import TurnTarget
from tocsin.schemas.errors import ConfigError


@pytest.fixture
def world() -> Iterator[KubeWorld]:
    with serving_kube() as (_, found):
        yield found


def flags(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    TARGETS["kubernetes"].add_arguments(parser)
    return parser.parse_args(words)


def kube_config(path: Path, world: KubeWorld) -> str:
    """A file as kubectl has it."""
    config = {
        "current-context": "one",
        "contexts": [{"name": "one", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": world.url}}],
        "users": [{"name": "u", "user": {"token": EXECUTOR}}],
    }
    file = path / "config"
    file.write_text(json.dumps(config))
    return str(file)


def test_it_drains_a_node_with_the_lease_of_its_flags(world: KubeWorld, tmp_path: Path) -> None:
    world.add_node("a")
    args = flags("--kubeconfig", kube_config(tmp_path, world), "--lease", "ops/mine")
    entry = TARGETS["kubernetes"]
    turn = entry.make_turn(args)
    assert turn is not None
    target = TurnTarget(entry.make(args, SignedActions()), turn)
    assert carried_out(target, action_on(DRAIN, "a")).stage is Stage.DONE
    assert world.is_cordoned("a")
    lease = "/apis/coordination.k8s.io/v1/namespaces/ops/leases/mine"
    assert world.api().call("GET", lease)["spec"]["holderIdentity"]
    turn.give_up()
    assert world.api().call("GET", lease)["spec"]["holderIdentity"] == ""


def test_a_single_process_needs_no_lease() -> None:
    assert TARGETS["kubernetes"].make_turn(flags("--lease", "")) is None


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--kubeconfig", "/nowhere/config"), "--kubeconfig"),
        (("--lease", "no-namespace"), "--lease"),
        (("--lease", "a/b/c"), "--lease"),
    ],
)
def test_a_flag_that_cannot_be_used_is_named(words: tuple[str, ...], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        TARGETS["kubernetes"].make_turn(flags(*words))
