"""What the drill tells its job controller at its start, and what the job controller shows of itself, as files."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

SETTINGS_FILE: Final = "job-controller.json"
STATUS_FILE: Final = "job-status.json"
JOB_ID: Final = "act"
CHECKPOINT_STEPS: Final = 20
"""Distance of two checkpoints, in steps."""


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Settings of the drill's job controller; whom the drill will strike is not among them.

    Attributes:
        folder: the drill's work folder.
        agent_words: words of an agent's command line that say where it sends; "{host}" stands for its host.
        keys_file: public keys of controllers of actions.
        facts_key_file: key with which it signs what it says of its job.
        seed: seed of weights and data.
        rank_count: number of ranks.
        hosts: hosts that the job may use, spare ones last.
        compares: whether it trains an undisturbed job from the last checkpoint used, at the end.
    """

    folder: str
    agent_words: tuple[str, ...]
    keys_file: str
    facts_key_file: str
    seed: int
    rank_count: int
    hosts: tuple[str, ...]
    compares: bool


@dataclass(frozen=True, slots=True)
class DoneAction:
    """One action that the job controller carried out.

    Attributes:
        action_id: its id.
        kind: its kind.
        left_out: hosts that were left out.
        checkpoint_step: step from which the job went on.
        attempt: the attempt that it began.
    """

    action_id: str
    kind: str
    left_out: tuple[str, ...]
    checkpoint_step: int
    attempt: int


@dataclass(frozen=True, slots=True)
class ControllerStatus:
    """What the job controller shows.

    Attributes:
        port: where it listens.
        attempt: number of the attempt that runs, -1 before the first.
        folder: folder of that attempt.
        hosts: host of each rank.
        rank_pids: process of each rank.
        agent_pids: process of each host's agent.
        actions: what it carried out.
        is_over: whether it ended in order.
    """

    port: int = 0
    attempt: int = -1
    folder: str = ""
    hosts: tuple[str, ...] = ()
    rank_pids: tuple[int, ...] = ()
    agent_pids: tuple[int, ...] = ()
    actions: tuple[DoneAction, ...] = ()
    is_over: bool = False


def write_object(path: Path, one: ControllerSettings | ControllerStatus) -> None:
    """Write an object; a reader sees the old one or the new one."""
    unfinished = Path(f"{path}.new")
    unfinished.write_text(json.dumps(asdict(one)), encoding="utf-8")
    os.replace(unfinished, path)  # noqa: PTH105  # atomic


def read_settings(path: Path) -> ControllerSettings:
    """Read the settings."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return ControllerSettings(**found | {name: tuple(found[name]) for name in ("agent_words", "hosts")})


def read_status(path: Path) -> ControllerStatus:
    """Read the status, the empty one if there is none yet."""
    if not path.exists():
        return ControllerStatus()
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    lists = {name: tuple(found[name]) for name in ("hosts", "rank_pids", "agent_pids")}
    actions = tuple(DoneAction(**one | {"left_out": tuple(one["left_out"])}) for one in found["actions"])
    return ControllerStatus(**found | lists | {"actions": actions})
