"""Hosts whose agents call them otherwise than Slurm calls their nodes: the right node is drained, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.actions.executors.fake_slurm import USER, FakeSlurm
from tests.pipeline.actions.executors.made import carried_out, made_action
from tocsin.pipeline.actions.executors.reasons import ExecutorReason
from tocsin.pipeline.actions.executors.slurm import SlurmTarget, SlurmTargetConfig
from tocsin.pipeline.actions.executors.slurm_cluster import SlurmCluster
from tocsin.pipeline.actions.executors.slurm_nodes import NodeNames, read_node_map
from tocsin.pipeline.actions.executors.slurm_text import parse_machines
from tocsin.pipeline.actions.executors.target import Stage
from tocsin.schemas.errors import ConfigError, TargetAnswerError, TargetRefusedError
from tocsin.schemas.verdicts import ActionKind

NOW_NS = 1_800_000_000 * 10**9


def slurm_of(*nodes: tuple[str, str, str]) -> FakeSlurm:
    """Nodes, each with the name and the address of its machine."""
    slurm = FakeSlurm(*(name for name, _, _ in nodes))
    for name, host_name, address in nodes:
        slurm.nodes[name].host_name, slurm.nodes[name].address = host_name, address
    return slurm


@pytest.mark.parametrize(
    ("host", "node"),
    [
        ("gpu7", "gpu7"),  # as on most clusters
        ("gpu7.site.example", "gpu7"),  # the machine calls itself by its whole name
        ("rack2-a", "node1"),  # NodeHostName
        ("rack2-a.site.example", "node1"),
        ("10.1.0.3", "node2"),  # NodeAddr
        ("gpu8", "swapped"),  # the machine gpu8 is node swapped, and the node gpu8 is another machine
        ("several1", "several1"),  # several slurmd on one machine: the node's own name counts
        ("unheard", "unheard"),
        ("written", "node2"),  # in the map
        ("gpu7-b", "gpu7"),
    ],
)
def test_a_host_is_the_node_that_slurm_says(host: str, node: str) -> None:
    slurm = slurm_of(
        ("gpu7", "gpu7", "gpu7"),
        ("node1", "rack2-a", "10.1.0.2"),
        ("node2", "rack2-b", "10.1.0.3"),
        ("swapped", "gpu8", "10.1.0.4"),
        ("gpu8", "gpu9", "10.1.0.5"),
        ("several1", "vm", "127.0.0.1"),
        ("several2", "vm", "127.0.0.1"),
    )
    names = NodeNames(SlurmCluster(slurm), {"written": "node2", "gpu7-b": "gpu7"})
    assert names.node_of(host) == node
    assert slurm.effects == []


def test_a_host_with_several_nodes_is_none_of_them() -> None:
    slurm = slurm_of(("several1", "vm", "127.0.0.1"), ("several2", "vm", "127.0.0.1"))
    for host in ("vm", "vm.site.example", "127.0.0.1"):
        with pytest.raises(TargetRefusedError, match=r"has 2 nodes \(several1, several2\): --node-map"):
            NodeNames(SlurmCluster(slurm)).node_of(host)


def test_an_eviction_drains_and_excludes_the_node_of_the_host_and_its_undo_gives_that_one_back() -> None:
    slurm = slurm_of(("node1", "a", "a"), ("node2", "b", "b"))
    job = slurm.add_job(7, "node1")
    target = SlurmTarget(SlurmTargetConfig(USER), SlurmCluster(slurm))
    action = made_action(ActionKind.EVICT, "a", slurm_job_id="7", now_ns=NOW_NS)
    assert carried_out(target, action).stage is Stage.DONE
    assert (slurm.takes_no_work("node1"), slurm.takes_no_work("node2"), job.excluded) == (True, False, "node1")
    assert action.action_id in slurm.nodes["node1"].reason
    assert carried_out(target, action, back=True).stage is Stage.DONE
    assert not slurm.takes_no_work("node1")


def test_a_node_of_the_map_is_drained_and_one_that_slurm_does_not_have_is_refused() -> None:
    slurm = FakeSlurm("node1")
    target = SlurmTarget(SlurmTargetConfig(USER, node_of_host={"a": "node1", "b": "node9"}), SlurmCluster(slurm))
    assert carried_out(target, made_action(ActionKind.DRAIN, "a", now_ns=NOW_NS)).stage is Stage.DONE
    assert slurm.takes_no_work("node1")
    refused = carried_out(target, made_action(ActionKind.DRAIN, "b", now_ns=NOW_NS))
    assert (refused.stage, refused.reason) == (Stage.REFUSED, ExecutorReason.UNKNOWN_NODE)


def test_a_map_has_a_host_and_its_node_in_each_line(tmp_path: Path) -> None:
    path = tmp_path / "nodes"
    path.write_text("# host  node\n\ngpu1.site.example node1  # rack 2\n gpu2 node2\ngpu2 node2\n")
    assert read_node_map(str(path)) == {"gpu1.site.example": "node1", "gpu2": "node2"}


@pytest.mark.parametrize(
    ("line", "must"),
    [
        ("gpu1", "HOST NODE"),
        ("gpu1 node1 node2", "HOST NODE"),
        ("gpu1 node[1-2]", "HOST NODE"),
        ("gpu1 ALL", "HOST NODE"),
        ("gpu0 node7", "one node of the host gpu0"),
    ],
)
def test_a_wrong_line_of_a_map_is_named(tmp_path: Path, line: str, must: str) -> None:
    path = tmp_path / "nodes"
    path.write_text(f"gpu0 node0\n{line}\n")
    with pytest.raises(ConfigError, match=must) as caught:
        read_node_map(str(path))
    assert f"{path}:2: {line}" in str(caught.value)
    with pytest.raises(ConfigError, match="a file that can be read"):
        read_node_map(str(tmp_path / "absent"))


def test_a_list_of_machines_that_cannot_be_read_is_no_list() -> None:
    assert [one.name for one in parse_machines("a a a\na a a\nb b b\n")] == ["a", "b"]
    with pytest.raises(TargetAnswerError, match="sinfo --Node"):
        parse_machines("a a\n")
