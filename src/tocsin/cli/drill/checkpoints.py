"""Checkpoints and losses of a drill's job that a later attempt goes on with."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch

from tocsin.cli.drill.checkpoint_files import TimeKind, losses_file, part_file, times_file
from tocsin.cli.drill.model import TokenLoader
from tocsin.cli.drill.rank_config import CheckpointPlan


class Keeper:
    """Writes one rank's part of each checkpoint, its losses as exact numbers, and what it does when."""

    def __init__(self, rank: int, plan: CheckpointPlan) -> None:
        """Open the files of the losses and times; the rank begins now.

        Args:
            rank: number of the rank.
            plan: where and how often.
        """
        self._rank, self._plan = rank, plan
        self._losses = losses_file(plan.losses_folder, rank).open("a", buffering=1, encoding="ascii")
        self._times = times_file(plan.losses_folder, rank).open("a", buffering=1, encoding="ascii")
        self._note_time(TimeKind.BEGUN, time.time_ns())

    def resume(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, loader: TokenLoader) -> int:
        """Load the rank's part of the checkpoint with which this attempt begins; return its first step."""
        step = self._plan.resume_step
        if step > 0:
            part = torch.load(part_file(self._plan.folder, step, self._rank), weights_only=True)
            model.load_state_dict(part["model"])
            optimizer.load_state_dict(part["optimizer"])
            loader.go_to(part["place"])
        return step

    def is_due(self, step: int) -> bool:
        """Return whether a checkpoint is to be written after a step."""
        return (step + 1) % self._plan.every_steps == 0

    def save(
        self, next_step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer, loader: TokenLoader
    ) -> None:
        """Write the rank's part of the checkpoint that ``next_step`` goes on from; it is there whole, or not."""
        begin_ns = time.time_ns()
        path = part_file(self._plan.folder, next_step, self._rank)
        path.parent.mkdir(exist_ok=True)
        unfinished = Path(f"{path}.new")
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "place": loader.place()}, unfinished
        )
        os.replace(unfinished, path)  # noqa: PTH105  # atomic
        self._note_time(TimeKind.SAVED, begin_ns)

    def note(self, step: int, loss: float, begin_ns: int) -> None:
        """Write the loss of a step that ends now, with all its bits, and its times."""
        self._note_time(TimeKind.STEP, begin_ns, step)
        self._losses.write(f"{step} {loss.hex()}\n")

    def leave(self) -> None:
        """Note that the rank made its last step."""
        self._note_time(TimeKind.LEFT, time.time_ns())

    def _note_time(self, kind: TimeKind, begin_ns: int, step: int = -1) -> None:
        """Write what ends now."""
        self._times.write(f"{kind.value} {begin_ns} {time.time_ns()} {step}\n")
