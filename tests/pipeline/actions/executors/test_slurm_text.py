"""Answers of Slurm are read as they were recorded; what is not understood is an error by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.actions.executors.recorded import REASON, recorded
from tocsin.pipeline.actions.executors.slurm_text import NodeReading, parse_jobs, parse_node, parse_settings
from tocsin.schemas.errors import TargetAnswerError


@pytest.mark.parametrize(
    ("answer", "node", "base", "flags", "takes_no_work", "is_drained"),
    [
        ("node_idle", "node1", "IDLE", set(), False, False),
        ("node_busy", "node1", "ALLOCATED", set(), False, False),
        ("node_draining", "node1", "ALLOCATED", {"DRAIN"}, True, False),
        ("node_drained", "node1", "IDLE", {"DRAIN"}, True, True),
        ("node_rebooted", "node3", "DOWN", set(), True, False),
    ],
)
def test_states_of_a_node(
    answer: str, node: str, base: str, flags: set[str], takes_no_work: bool, is_drained: bool
) -> None:
    read = parse_node(recorded(f"{answer}.txt"), node)
    assert (read.base, set(read.flags), read.takes_no_work, read.is_drained) == (base, flags, takes_no_work, is_drained)
    assert read.boot_seconds > 1_700_000_000


def test_a_reason_is_read_with_its_writer_and_without_what_slurm_wrote_behind_it() -> None:
    drained, rebooted = (
        parse_node(recorded("node_draining.txt"), "node1"),
        parse_node(recorded("node_rebooted.txt"), "node3"),
    )
    assert (drained.reason, drained.own_reason, drained.reason_user) == (REASON, REASON, "root")
    assert abs(drained.reason_seconds - rebooted.reason_seconds) < 60
    assert rebooted.reason == f"{REASON} : reboot issued : reboot complete"
    assert rebooted.own_reason == REASON


def test_a_reboot_is_read() -> None:
    asked, done = (
        parse_node(recorded("node_reboot_requested.txt"), "node3"),
        parse_node(recorded("node_rebooted.txt"), "node3"),
    )
    assert (asked.is_rebooting, asked.next_state) == (True, "DOWN")
    assert (done.is_rebooting, done.next_state) == (False, "")
    assert done.boot_seconds > asked.boot_seconds


def test_a_reason_of_several_lines_is_no_other_field() -> None:
    read = parse_node(recorded("node_two_lines.txt"), "node4")
    assert read.reason == f"by hand\nReason={REASON}\nState=IDLE"
    assert (read.is_drained, read.reason_user) == (True, "root")


@pytest.mark.parametrize(
    ("state", "base", "flags"),
    [
        ("IDLE*+DRAIN", "IDLE", {"DRAIN", "NOT_RESPONDING"}),
        ("DOWN+NOT_RESPONDING", "DOWN", {"NOT_RESPONDING"}),
        ("MIXED+COMPLETING+DRAIN", "MIXED", {"COMPLETING", "DRAIN"}),
        ("IDLE~", "IDLE", set()),
    ],
)
def test_states_as_other_versions_write_them(state: str, base: str, flags: set[str]) -> None:
    text = recorded("node_idle.txt").replace("State=IDLE ", f"State={state} ")
    read = parse_node(text, "node1")
    assert (read.base, set(read.flags)) == (base, flags)


@pytest.mark.parametrize("text", ["", "NodeName=node1 Arch=x86_64\n   Partitions=main\n", "Node node1 not found"])
def test_an_answer_without_the_node_or_its_state_is_an_error(text: str) -> None:
    with pytest.raises(TargetAnswerError, match="node1"):
        parse_node(text, "node1")


def test_an_answer_about_another_node_or_with_a_field_twice_is_an_error() -> None:
    idle = recorded("node_idle.txt")
    for text, name in ((idle, "node2"), (idle + idle, "node1"), (idle + "   State=DOWN\n", "node1")):
        with pytest.raises(TargetAnswerError, match=f"show node {name}"):
            parse_node(text, name)


@given(st.text(alphabet=st.characters(blacklist_characters="\n\r", blacklist_categories=["Cs"]), min_size=1))
def test_a_reason_of_one_line_comes_back_as_it_was(reason: str) -> None:
    text = recorded("node_draining.txt").replace(REASON, reason)
    assert parse_node(text, "node1") == NodeReading(
        "node1",
        "ALLOCATED",
        frozenset({"DRAIN"}),
        reason,
        "root",
        parse_node(recorded("node_draining.txt"), "node1").reason_seconds,
        parse_node(text, "node1").boot_seconds,
        host_name="vm",
    )


def test_a_running_and_a_held_job() -> None:
    running = next(iter(parse_jobs(recorded("job_running.json")).values()))
    held = parse_jobs(recorded("job_held.json"))[running.job_id]
    assert (running.is_running, running.is_pending, running.is_held, running.restart_count) == (True, False, False, 0)
    assert (running.nodes, running.required, running.can_requeue, running.is_batch) == (
        "node[1-2]",
        "node[1-2]",
        True,
        True,
    )
    assert (held.is_running, held.is_pending, held.is_held, held.restart_count) == (False, True, True, 1)
    assert (held.nodes, held.excluded, held.admin_comment) == ("", "", REASON)


@pytest.mark.parametrize(
    ("states", "is_running", "is_pending", "is_over"),
    [
        (["RUNNING"], True, False, False),
        (["RUNNING", "COMPLETING"], False, False, False),
        (["PENDING", "COMPLETING"], False, False, False),
        (["SUSPENDED"], True, False, False),
        (["COMPLETED"], False, False, True),
        (["NODE_FAIL"], False, False, True),
    ],
)
def test_states_and_numbers_as_later_versions_write_them(
    states: list[str], is_running: bool, is_pending: bool, is_over: bool
) -> None:
    entry: dict[str, Any] = json.loads(recorded("job_running.json"))["jobs"][0]
    unset = {"set": False, "infinite": False, "number": 0}
    later = entry | {
        "job_state": states,
        "priority": {"set": True, "infinite": False, "number": 7},
        "het_job_id": unset,
    }
    job = parse_jobs(json.dumps({"jobs": [later]}))[entry["job_id"]]
    assert (job.is_running, job.is_pending, job.is_over) == (is_running, is_pending, is_over)
    assert (job.is_held, job.het_job_id) == (False, 0)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"jobs": [{}]}', '{"jobs": [7]}', '{"jobs": null}'])
def test_other_answers_about_jobs_are_errors(text: str) -> None:
    with pytest.raises(TargetAnswerError, match="squeue"):
        parse_jobs(text)


def test_settings_are_read_and_a_missing_one_is_an_error() -> None:
    text = recorded("config.txt")
    read = parse_settings(text)
    assert (read.cluster, read.version, read.returns_by_itself, read.reboot_program) == (
        "ci",
        "22.05.8",
        False,
        "/etc/slurm/reboot",
    )
    assert parse_settings(text.replace("ReturnToService         = 1", "ReturnToService         = 2")).returns_by_itself
    assert parse_settings(text.replace("/etc/slurm/reboot", "(null)")).reboot_program == ""
    with pytest.raises(TargetAnswerError, match="ReturnToService"):
        parse_settings(text.replace("ReturnToService", "Return"))
