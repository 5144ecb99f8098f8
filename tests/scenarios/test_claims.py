"""Timelines of executors that claim an action after something has changed."""

from __future__ import annotations

from tests.action_timelines import ActingFleet
from tocsin.schemas.action_states import ActionState

S = ActionState


def test_an_executor_that_comes_back_while_the_engine_is_silent_is_given_nothing() -> None:
    fleet = ActingFleet()
    fleet.stop("e1")
    fleet.accuse("ecc_error", "n003")
    assert fleet.on("n003").state is S.APPROVED
    fleet.is_engine_alive = False
    fleet.seconds += 6  # the controller saw no time pass before the claim comes
    fleet.start("e1")
    fleet.claim("e1")

    assert (fleet.on("n003").state, fleet.on("n003").reason) == (S.WAITING, "engine_silent")
    assert S.CLAIMED not in {one.state for one in fleet.published}
    fleet.run(30)
    assert fleet.slurm.effects == []
    fleet.is_engine_alive = True
    fleet.run(30)
    assert (fleet.on("n003").state, fleet.out()) == (S.DONE, ["n003"])
