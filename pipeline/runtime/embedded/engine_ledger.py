"""Whom the engine tells, under its lock, of all that changes its state: in the order in which it does."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from tocsin.pipeline.core.slices import SliceBundle
from tocsin.schemas.records import JobKey, Record


class EngineLedger(Protocol):
    """What keeps the engine's doings, so that one that starts after it can repeat them."""

    def taken(self, record: Record, data: bytes | None) -> None:
        """A record was taken, and is no duplicate; its bytes, where there are any."""
        ...

    def turning(self, tick_ns: int) -> None:
        """A tick is about to be worked off."""
        ...

    def forgot(self, job: JobKey) -> None:
        """A job was forgotten to make room."""
        ...

    def began_anew(self, tick_ns: int, reason: str) -> None:
        """Time began again."""
        ...

    def excused(self, hosts: Collection[str], until_ns: int) -> None:
        """Nobody listened to these hosts until then."""
        ...

    def judging(self, turn: SliceBundle) -> tuple[SliceBundle, bool]:
        """A turn is about to be judged: how it is to be, and whether the job must begin anew before."""
        ...

    def judged(self) -> None:
        """No turn is being judged any more."""
        ...


class NoLedger:
    """Keeps nothing: what a replay or a test drives needs no memory."""

    def taken(self, record: Record, data: bytes | None) -> None:
        """Keep nothing."""

    def turning(self, tick_ns: int) -> None:
        """Keep nothing."""

    def forgot(self, job: JobKey) -> None:
        """Keep nothing."""

    def began_anew(self, tick_ns: int, reason: str) -> None:
        """Keep nothing."""

    def excused(self, hosts: Collection[str], until_ns: int) -> None:
        """Keep nothing."""

    def judging(self, turn: SliceBundle) -> tuple[SliceBundle, bool]:
        """As it is."""
        return turn, False

    def judged(self) -> None:
        """Keep nothing."""
