"""Recordings that a running engine makes: the commands ``record`` and ``record_stop`` of the control socket."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tocsin.pipeline.recording.recorder import JobRecorder
from tocsin.pipeline.runtime.embedded.control_socket import EngineRefusedError, Message
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine
from tocsin.schemas.errors import TocsinError

_LOG = logging.getLogger("tocsin.recorder")
_PROGRESS_SECONDS = 0.25


@dataclass(slots=True)
class _Running:
    """A recording in progress.

    Attributes:
        recorder: writes the recording.
        done: set when its files are complete, or will never be.
    """

    recorder: JobRecorder
    done: threading.Event = field(default_factory=threading.Event)


class RecordingManager:
    """Starts and stops recordings of one engine; thread-safe."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        """Record jobs of this engine."""
        self._engine = engine
        self._running: dict[str, _Running] = {}
        self._lock = threading.Lock()

    def record(self, request: Message) -> Message | Iterator[Message]:
        """Start recording a job: ``{"folder", "job_id", "follow"}``, where job_id "" means the first job with records.

        With ``follow`` the answer is a stream of progress messages. The recording ends with the stream, so that it does
        not continue after its client is killed.

        Raises:
            EngineRefusedError: the request is invalid, the folder is in use, or several jobs run and none is named.
            RecordingError: the folder cannot be used.
        """
        folder, job_id = request.get("folder"), request.get("job_id", "")
        if not isinstance(folder, str) or not isinstance(job_id, str) or not Path(folder).is_absolute():
            raise EngineRefusedError('record needs "folder" (an absolute path) and "job_id" as text', "bad_request")
        jobs = self._engine.running_jobs()
        ended = frozenset(self._engine.jobs()) - set(jobs)
        names = sorted({job.job_id for job in jobs})
        if not job_id and len(names) > 1:
            raise EngineRefusedError(f"several jobs run ({', '.join(names[:10])}): name one", "ambiguous")
        with self._lock:
            if folder in self._running:
                raise EngineRefusedError(f"{folder} is being recorded into already", "busy")
            recorder = JobRecorder(Path(folder), job_id or next(iter(names), ""), ended=ended)
            running = self._running[folder] = _Running(recorder)
            self._engine.taps.append(recorder.on_bundle)
        if request.get("follow"):
            return self._follow(folder, running)
        return {"folder": folder, "job_id": recorder.job_id}

    def _follow(self, folder: str, running: _Running) -> Iterator[Message]:
        """Yield progress messages until the recording is done; stop the recording if the client leaves."""
        try:
            yield _progress(running.recorder)
            while not running.done.wait(_PROGRESS_SECONDS):
                yield _progress(running.recorder)
        finally:
            if self._running.get(folder) is running:
                _LOG.warning("who asked for the recording left", extra={"folder": folder})
                self._end_quietly(folder)

    def record_stop(self, request: Message) -> Message:
        """Stop the recording in ``{"folder"}``; its files are complete when this returns.

        Raises:
            EngineRefusedError: nothing is being recorded into this folder.
            RecordingError: the recording failed earlier, or cannot be completed.
        """
        running = self._running.pop(str(request.get("folder")), None)
        if running is None:
            raise EngineRefusedError(f"{request.get('folder')} is not being recorded into", "unknown_recording")
        self._engine.untap(running.recorder.on_bundle)
        try:
            running.recorder.close()
        finally:
            running.done.set()
        return _progress(running.recorder)

    def close(self) -> None:
        """Stop all recordings."""
        for folder in list(self._running):
            self._end_quietly(folder)

    def _end_quietly(self, folder: str) -> None:
        """Stop a recording; errors are only logged."""
        try:
            self.record_stop({"folder": folder})
        except EngineRefusedError:  # somebody else ended it in this moment
            return
        except (OSError, TocsinError) as error:
            _LOG.error("recording is not complete", extra={"folder": folder, "error": str(error)})


def _progress(recorder: JobRecorder) -> Message:
    """Return a recorder's progress as a message."""
    return {
        "folder": str(recorder.folder),
        "job_id": recorder.job_id,
        "turn_count": recorder.turn_count,
        "error": recorder.error,
    }
