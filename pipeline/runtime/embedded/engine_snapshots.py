"""The state of an engine as named parts, for snapshots and restarts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from tocsin.pipeline.core.slices import SliceBuffer, SliceConfig
from tocsin.pipeline.runtime.embedded.engine_parts import finished_of, snapshot_of
from tocsin.pipeline.runtime.embedded.engine_queries import EngineQueries


class EngineSnapshots(EngineQueries):
    """Writes the state of an engine and takes it back; the subclass has the state."""

    _slice_config: SliceConfig
    _has_own_models: bool

    def finished_parts(self, known: Collection[str]) -> dict[str, bytes]:
        """Return the parts of the next snapshot that do not change any more.

        A caller that keeps them ahead writes less at the snapshot. Until a snapshot names them they mean nothing.

        Args:
            known: names of parts to leave out.
        """
        with self._lock:
            return finished_of(self._jobs.pipelines, known)

    def snapshot(self, known: Collection[str] = ()) -> dict[str, bytes]:
        """Return the state of the runtime and of all jobs, as named parts.

        Args:
            known: names of parts that the caller has; of these, parts that never change are ``UNCHANGED``.
        """
        with self._lock:
            return self._snapshot(known)

    def cut(self, known: Collection[str], on_cut: Callable[[], int]) -> tuple[dict[str, bytes], int]:
        """Return a snapshot and the position of a journal at the same moment.

        Args:
            known: as in ``snapshot``.
            on_cut: returns the journal's position; called while no record is taken.
        """
        with self._lock:
            return self._snapshot(known), on_cut()

    def _snapshot(self, known: Collection[str]) -> dict[str, bytes]:
        """Return a snapshot; the caller holds the lock."""
        parts = {f"slices/{name}": data for name, data in self._buffer.snapshot().items()}
        parts.update(snapshot_of(self._jobs.pipelines, known))
        if self._has_own_models:
            parts.update(self.models.snapshot())
        return parts

    def clear(self) -> None:
        """Drop the time, all jobs and all records."""
        with self._lock:
            self._buffer = SliceBuffer(self._slice_config)
            self._now_ns = None
            self._jobs.clear()
            self._observers.forget(())
            self.late_by_host.clear()
            if self._has_own_models:
                self.models.load(())

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Restore the state that ``snapshot`` returned; the series behind verdicts start empty."""
        with self._lock:
            self._buffer.restore(
                {name.removeprefix("slices/"): data for name, data in parts.items() if name.startswith("slices/")}
            )
            self._now_ns = (
                None
                if self._buffer.watermark_ns is None
                else (self._buffer.watermark_ns + self._slice_config.lateness_ns)
            )
            if self._has_own_models:
                self.models.restore(parts)
            self._jobs.restore(parts)
            for job in self._jobs.pipelines:
                self._observers.begin(job)
