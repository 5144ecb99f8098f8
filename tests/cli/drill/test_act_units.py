"""The parts of a drill that acts, without processes: what its job controller obeys, and when a drill is right."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.pipeline.actions.executors.made import made_action
from tocsin.cli.drill.act.attempts import DrillAttempts
from tocsin.cli.drill.act.controller import DrillController, server_of
from tocsin.cli.drill.act.forgery import answer_to_forgery, forged_restart
from tocsin.cli.drill.act.outcome import ActOutcome, json_line, what_is_wrong
from tocsin.cli.drill.act.settings import (
    JOB_ID,
    ControllerSettings,
    ControllerStatus,
    DoneAction,
    read_settings,
    read_status,
    write_object,
)
from tocsin.cli.drill.checkpoint_files import equal_steps, last_checkpoint, losses_file, losses_of, part_file
from tocsin.cli.drill.launcher import CLUSTER
from tocsin.pipeline.actions.executors.job_controller import PATH, SIGNATURE_HEADER, HttpJobController, JobActionState
from tocsin.pipeline.identity.action_signatures import AckChecker, ActionSigner
from tocsin.pipeline.identity.message_signatures import new_signing_key, public_half
from tocsin.schemas.action_codec import encode_action
from tocsin.schemas.action_events import JobFacts
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action, ActionTarget, Machine, action_id_of
from tocsin.schemas.credential_store import write_credentials
from tocsin.schemas.credentials import Credential, Role
from tocsin.schemas.job_key import JobKey
from tocsin.schemas.verdicts import ActionKind

KEY = new_signing_key(Role.CONTROLLER, "engine", 1)
FACTS_KEY = new_signing_key(Role.SCHEDULER, "job-controller", 1)
LATER_NS = 4_000_000_000_000_000_000


class FakeAttempts:
    """Notes which attempts begin."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, ...]] = []
        self.hosts: tuple[str, ...] = ("n0", "n1")
        self.number = -1
        self.job = None

    def may_leave_out(self, hosts: tuple[str, ...]) -> bool:
        return len(hosts) < 2

    def begin(self, left_out: tuple[str, ...] = ()) -> int:
        self.begun.append(tuple(left_out))
        self.hosts = tuple("n2" if one in left_out else one for one in self.hosts)
        self.number += 1
        return 20

    def wait_for_step(self, _step: int, _seconds: float) -> bool:
        return True

    def end(self) -> None:
        self.begun.append(("end",))

    def end_comparison(self) -> None:
        """No undisturbed job was begun."""


class Stand:
    """A job controller on a port, with attempts that start no processes."""

    def __init__(self, folder: Path) -> None:
        keys = folder / "controller-public.json"
        write_credentials(keys, (public_half(KEY),))
        own = folder / "job-controller.json"
        write_credentials(own, (FACTS_KEY,))
        settings = ControllerSettings(
            str(folder), ("--engine", "e.sock"), str(keys), str(own), 0, 2, ("n0", "n1", "n2"), compares=False
        )
        self.attempts = FakeAttempts()
        self.controller = DrillController(settings, cast("DrillAttempts", self.attempts))
        self.server = server_of(self.controller)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.status_file = folder / "job-status.json"

    def post(
        self, kind: ActionKind, key: Credential = KEY, action: Action | None = None, **changes: Any
    ) -> tuple[int, dict[str, Any]]:
        target = ActionTarget(JobKey(CLUSTER, JOB_ID, 0), None, (Machine("n1"),))
        values: dict[str, Any] = {
            "state": ActionState.STARTED,
            "deadline_ns": LATER_NS,
            "lease_ns": LATER_NS,
            "target": target,
        }
        action = action or made_action(kind, "n1", **values | {"action_id": action_id_of("v1", kind, target)} | changes)
        value = encode_action(action)
        header = {SIGNATURE_HEADER: ActionSigner(key).header(value).decode()}
        url = f"http://127.0.0.1:{self.server.server_port}{PATH}"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, value, header), timeout=5) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def carried_out(self) -> list[tuple[str, ...]]:
        """Let it work off what it took, and end; return what began after the first attempt."""
        self.attempts.number = -1  # the first attempt, which began before anything was posted, is counted by run()
        self.controller.stop()
        self.controller.run()
        return self.attempts.begun


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    made = Stand(tmp_path)
    made.attempts.number = 0  # as while the first attempt runs
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_a_signed_restart_begins_the_next_attempt_once(stand: Stand) -> None:
    assert stand.post(ActionKind.RESTART)[1]["state"] == "running"
    assert stand.post(ActionKind.RESTART)[1]["state"] == "running"
    assert stand.carried_out() == [(), (), ("end",)]
    status = read_status(stand.status_file)
    assert [(one.kind, one.left_out, one.checkpoint_step) for one in status.actions] == [("restart", (), 20)]
    assert status.is_over


def test_an_eviction_leaves_its_host_out(stand: Stand) -> None:
    stand.post(ActionKind.EVICT)
    assert stand.carried_out() == [(), ("n1",), ("end",)]


def test_one_attempt_is_ended_by_one_action(stand: Stand) -> None:
    assert stand.post(ActionKind.RESTART)[1]["state"] == "running"
    answer = stand.post(ActionKind.EVICT)[1]
    assert (answer["state"], answer["reason"]) == ("refused", "another_in_hand")
    assert stand.carried_out() == [(), (), ("end",)]


def test_an_action_whose_attempt_is_over_before_its_turn_begins_nothing(stand: Stand) -> None:
    stand.post(ActionKind.RESTART)
    action_id = next(iter(stand.controller.desk.answers))
    stand.controller.stop()
    stand.controller.run()  # it starts attempt 1 before the turn of what was posted for attempt 0
    assert stand.attempts.begun == [(), ("end",)]
    answer = stand.controller.desk.state(action_id)
    assert answer is not None
    assert (answer.state, answer.reason) == (JobActionState.EXPIRED, "new_attempt")


def test_the_job_controller_signs_how_many_spares_are_left(stand: Stand) -> None:
    url = f"http://127.0.0.1:{stand.server.server_port}"
    checker = AckChecker([public_half(FACTS_KEY)])

    def told() -> list[tuple[int, int | None, bool | None]]:
        facts = HttpJobController(url).facts()
        found = [checker.admit(one.value, one.signature, LATER_NS) for one in facts]
        return [(one.job.attempt, one.spare_count, one.may_shrink) for one in found if isinstance(one, JobFacts)]

    assert told() == [(0, 1, False)]
    stand.post(ActionKind.EVICT)
    stand.attempts.number = -1
    assert told() == [], "nothing runs yet"
    stand.carried_out()
    assert told() == [(1, 0, False)], "n2 is used now, and n1 must not be"


def test_a_forged_action_starts_nothing(stand: Stand) -> None:
    forger = new_signing_key(Role.CONTROLLER, "engine", 2)
    status, answer = stand.post(ActionKind.RESTART, forger)
    assert (status, answer["state"], answer["reason"]) == (403, "refused", "unknown_key")
    assert stand.carried_out() == [(), ("end",)]


def test_what_the_drill_forges_is_refused_for_its_key_alone(stand: Stand) -> None:
    assert answer_to_forgery(stand.server.server_port, "n1") == "unknown_key"
    assert stand.carried_out() == [(), ("end",)]
    right = forged_restart("n1", time.time_ns())
    stand.attempts.number = 0
    assert stand.post(ActionKind.RESTART, action=right)[1]["state"] == "running"


def test_without_an_action_nothing_starts_again_though_the_ranks_are_gone(stand: Stand) -> None:
    ran = threading.Thread(target=stand.controller.run)
    ran.start()
    ran.join(0.3)
    assert ran.is_alive()
    stand.controller.stop()
    ran.join(60)
    assert stand.attempts.begun == [(), ("end",)]


def test_an_old_signed_action_that_is_played_again_starts_nothing(stand: Stand) -> None:
    stand.attempts.number = 1  # the attempt that followed; the job controller was started anew, and knows no ids
    answer = stand.post(ActionKind.RESTART)[1]
    assert (answer["state"], answer["reason"]) == ("expired", "new_attempt")
    assert stand.carried_out() == [(), ("end",)]


def test_an_action_that_nobody_holds_starts_nothing(stand: Stand) -> None:
    assert stand.post(ActionKind.RESTART, state=ActionState.APPROVED)[1]["reason"] == "not_begun"
    assert stand.carried_out() == [(), ("end",)]


RIGHT = ActOutcome("n3", ("n3",), "a1", "restart", (), 40, 56, 12.5)


def test_a_right_outcome_has_nothing_wrong() -> None:
    assert what_is_wrong(RIGHT, "restart") == ""
    assert what_is_wrong(replace(RIGHT, equal_steps=None), "restart") == ""
    assert what_is_wrong(replace(RIGHT, kind="evict", left_out=("n3",)), "evict") == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"named": ("n2",)}, "named: n2"),
        ({"named": ("n2", "n3")}, "named: n2, n3"),
        ({"named": ()}, "nobody"),
        ({"kind": "evict"}, "the action is evict"),
        ({"left_out": ("n3",)}, "left out: n3"),
        ({"seconds": None}, "does not train"),
        ({"equal_steps": 49}, "only 49 later steps"),
    ],
)
def test_each_wrong_outcome_is_named(change: dict[str, Any], words: str) -> None:
    assert words in what_is_wrong(replace(RIGHT, **change), "restart")


def test_the_json_line_has_the_fields_that_are_promised() -> None:
    assert json.loads(json_line(RIGHT)) == {
        "struck": "n3",
        "named": "n3",
        "action_id": "a1",
        "kind": "restart",
        "left_out": [],
        "checkpoint_step": 40,
        "equal_steps": 56,
        "seconds": 12.5,
    }


def test_only_a_checkpoint_of_all_ranks_counts(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path, 2) == 0
    for step, ranks in ((20, 2), (40, 2), (60, 1)):
        for rank in range(ranks):
            path = part_file(tmp_path, step, rank)
            path.parent.mkdir(exist_ok=True)
            path.touch()
    assert last_checkpoint(tmp_path, 2) == 40


def test_losses_are_compared_bit_for_bit_up_to_the_first_that_differs(tmp_path: Path) -> None:
    loss = 0.1 + 0.2
    for rank in range(2):
        losses_file(tmp_path, rank).write_text("".join(f"{step} {loss.hex()}\n" for step in range(40, 45)) + "45 0x1")
    found = losses_of(tmp_path, 2)
    assert equal_steps(found, found, 40) == 6
    other = dict(found) | {43: (found[43][0], (0.3).hex())}
    assert equal_steps(found, other, 40) == 3
    assert equal_steps({}, found, 40) == 0


def test_settings_and_status_are_read_back(tmp_path: Path) -> None:
    settings = ControllerSettings("f", ("e",), "k", "s", 1, 2, ("n0", "n1"), compares=True)
    status = ControllerStatus(1, 2, "f", ("n0",), (3,), (4,), (DoneAction("a", "evict", ("n1",), 20, 1),))
    write_object(tmp_path / "settings", settings)
    write_object(tmp_path / "status", status)
    assert read_settings(tmp_path / "settings") == settings
    assert read_status(tmp_path / "status") == status
    assert read_status(tmp_path / "none") == ControllerStatus()
