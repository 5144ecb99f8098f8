"""One node or one job a command; what could be read as several is refused before anything runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.actions.executors.recorded import REASON, FakeCommands, recorded
from tocsin.pipeline.actions.executors.commands import CommandResult
from tocsin.pipeline.actions.executors.slurm_cluster import SlurmCluster
from tocsin.schemas.errors import TargetAwayError, TargetRefusedError

DONE = CommandResult(0, "", "")
Call = Callable[[SlurmCluster], object]


def asked_by(call: Call, answer: CommandResult = DONE) -> list[tuple[str, ...]]:
    commands = FakeCommands(lambda _arguments: answer)
    call(SlurmCluster(commands))
    return commands.asked


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        (lambda c: c.drain("n-1.x", REASON), "update NodeName=n-1.x State=DRAIN Reason=" + REASON),
        (lambda c: c.resume("node1"), "update NodeName=node1 State=RESUME"),
        (lambda c: c.reboot("node1", REASON), f"reboot ASAP nextstate=DOWN reason={REASON} node1"),
        (lambda c: c.cancel_reboot("node1"), "cancel_reboot node1"),
        (lambda c: c.note(7, REASON), f"update JobId=7 AdminComment={REASON}"),
        (lambda c: c.requeue_held(7), "requeuehold 7"),
        (lambda c: c.exclude(7, "node[1-2],x"), "update JobId=7 ExcNodeList=node[1-2],x"),
        (lambda c: c.release(7), "release 7"),
    ],
)
def test_commands(call: Call, arguments: str) -> None:
    (asked,) = asked_by(call)
    assert " ".join(asked) == f"scontrol {arguments}"


@given(st.text())
def test_only_the_name_of_one_node_reaches_slurm(name: str) -> None:
    commands = FakeCommands(lambda _arguments: DONE)
    cluster = SlurmCluster(commands)
    try:
        cluster.drain(name, REASON)
        cluster.cancel_reboot(name)
    except TargetRefusedError:
        assert not commands.asked
    for asked in commands.asked:
        assert name.isascii()
        assert not set(name) & set("[],* \t\n=")
        assert name.lower() != "all"
        assert name[0] != "-"
        assert any(name == word.removeprefix("NodeName=") for word in asked)


@pytest.mark.parametrize("name", ["ALL", "node[1-2]", "node1,node2", "-n", "", "node1\n", "n1-"])
def test_names_of_several_nodes_are_refused(name: str) -> None:
    with pytest.raises(TargetRefusedError, match="not the name of one node"):
        asked_by(lambda cluster: cluster.drain(name, REASON))


def test_a_reason_of_two_lines_and_a_strange_host_list_are_refused() -> None:
    calls: tuple[Call, ...] = (
        lambda c: c.drain("node1", "a\nb"),
        lambda c: c.exclude(7, "node1 Priority=9"),
        lambda c: c.hosts("$(reboot)"),
    )
    for call in calls:
        with pytest.raises(TargetRefusedError):
            asked_by(call)


def test_a_node_that_is_not_there_is_none_and_a_controller_that_is_away_an_error() -> None:
    unknown = CommandResult(1, recorded("node_unknown.txt"), "")
    assert SlurmCluster(FakeCommands(lambda _arguments: unknown)).node("node99") is None
    away = CommandResult(1, "", "slurm_load_node error: Unable to contact slurm controller (connect failure)")
    with pytest.raises(TargetAwayError, match="connect failure"):
        SlurmCluster(FakeCommands(lambda _arguments: away)).node("node1")
    denied = CommandResult(1, "", "slurm_update error: Invalid user id")
    with pytest.raises(TargetRefusedError, match="scontrol update: slurm_update error: Invalid user id"):
        asked_by(lambda cluster: cluster.resume("node1"), denied)


def test_nodes_jobs_and_hosts_are_read() -> None:
    answers = {"node": "node_idle.txt", "config": "config.txt", "--json": "job_running.json"}

    def answer(arguments: object) -> CommandResult:
        words = list(arguments)  # type: ignore[call-overload]
        if "hostnames" in words:
            return CommandResult(0, "node1\nnode2\n", "")
        return CommandResult(0, recorded(next(answers[word] for word in words if word in answers)), "")

    cluster = SlurmCluster(FakeCommands(answer))
    node, job = cluster.node("node1"), cluster.job(1)
    assert node is not None
    assert job is not None
    assert (node.name, job.job_id, cluster.job(2), cluster.settings().cluster) == ("node1", 1, None, "ci")
    assert cluster.hosts(job.nodes) == ("node1", "node2")
    assert cluster.hosts("") == ()
