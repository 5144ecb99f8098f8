"""The interface through which the engine reports its state changes, in order and while holding its lock."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from tocsin.pipeline.core.slices import SliceBundle
from tocsin.schemas.records import JobKey, Record


class EngineLedger(Protocol):
    """Receives the engine's state changes, so that a restarted engine can repeat them."""

    def taken(self, record: Record, data: bytes | None) -> None:
        """Note that a record was accepted (duplicates are not reported); ``data`` is its bytes, if at hand."""
        ...

    def turning(self, tick_ns: int) -> None:
        """Note that a tick is about to be processed."""
        ...

    def forgot(self, job: JobKey) -> None:
        """Note that a job was forgotten because memory was full."""
        ...

    def began_anew(self, tick_ns: int, reason: str) -> None:
        """Note that time was restarted at a tick, and why."""
        ...

    def excused(self, hosts: Collection[str], until_ns: int) -> None:
        """Note that the engine did not listen to these hosts until then."""
        ...

    def judging(self, bundle: SliceBundle) -> tuple[SliceBundle, bool]:
        """Note that a slice bundle is about to be processed.

        Returns:
            The bundle to process, and whether the job's state must be reset before.
        """
        ...

    def judged(self) -> None:
        """Note that no slice bundle is being processed any more."""
        ...


class NoLedger:
    """An ``EngineLedger`` that stores nothing, for replays and tests."""

    def taken(self, record: Record, data: bytes | None) -> None:
        """Do nothing."""

    def turning(self, tick_ns: int) -> None:
        """Do nothing."""

    def forgot(self, job: JobKey) -> None:
        """Do nothing."""

    def began_anew(self, tick_ns: int, reason: str) -> None:
        """Do nothing."""

    def excused(self, hosts: Collection[str], until_ns: int) -> None:
        """Do nothing."""

    def judging(self, bundle: SliceBundle) -> tuple[SliceBundle, bool]:
        """Return the bundle unchanged, and False: the job's state need not be reset."""
        return bundle, False

    def judged(self) -> None:
        """Do nothing."""
