"""Answers of a real Slurm 22.05, written by ``tests/peers/record_slurm.py``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tocsin.pipeline.actions.executors.commands import CommandResult

REASON = "[HC] tocsin ecc_error 0123456789abcdef0123456789abcdef"
"""The reason in the answers."""


def recorded(name: str) -> str:
    """One answer."""
    return (Path(__file__).parent / "slurm_answers" / name).read_text()


class FakeCommands:
    """Gives the answers that a function has for the arguments, and keeps what was asked."""

    def __init__(self, answer_to: Callable[[Sequence[str]], CommandResult]) -> None:
        self._answer_to = answer_to
        self.asked: list[tuple[str, ...]] = []

    def run(self, arguments: Sequence[str]) -> CommandResult:
        self.asked.append(tuple(arguments))
        return self._answer_to(arguments)
