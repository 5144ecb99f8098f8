"""``tocsin`` with one thing left out that a round of deaths must miss.

``python -m tests.chaos.broken WHAT [arguments of tocsin]``; ``make chaos ARGS="--only actions --without WHAT"`` runs
the killed site so.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import pytest

from tocsin.cli.main import main
from tocsin.pipeline.actions.executors.core import _MAY_CHANGE
from tocsin.schemas.action_states import ActionState

_SLURM: Final = "tocsin.pipeline.actions.executors.slurm"
BROKEN: Final[Mapping[str, Mapping[str, object]]] = MappingProxyType(
    {
        "state": {"tocsin.pipeline.kafka.action_work.ActionWork.changes": lambda _self: {}},
        "mark": {
            f"{_SLURM}.node_reason": lambda cause, _ids: f"[HC] tocsin {cause}",
            f"{_SLURM}.job_comment": lambda job, _id: f"{job.admin_comment}; [HC] tocsin",
        },
        "start": {"tocsin.pipeline.actions.executors.core._MAY_CHANGE": _MAY_CHANGE | {ActionState.CLAIMED}},
    }
)
"""What can be left out -> what stands in the places instead.

``state``: the controller commits actions and the places up to which it read, and not its state. ``mark``: what an
executor changes in Slurm does not bear the action's id. ``start``: an executor begins what it holds, before the
controller said that it has begun.
"""


if __name__ == "__main__":
    for place, instead in BROKEN[sys.argv[1]].items():
        pytest.MonkeyPatch().setattr(place, instead)
    sys.exit(main(sys.argv[2:]))
