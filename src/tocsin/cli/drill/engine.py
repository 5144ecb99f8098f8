"""The drill's engine: its process, its control socket and its stream of verdicts."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tocsin.cli.drill.judge import Heard
from tocsin.cli.drill.tokens import DrillTokens
from tocsin.cli.paths import control_socket
from tocsin.cli.processes import ProcessGroup
from tocsin.pipeline.runtime.embedded.control_socket import ControlClient, EngineAbsentError
from tocsin.schemas.errors import EngineError, TocsinError

_START_SECONDS = 90.0
_LONGEST_SILENCE_SECONDS = 86_400.0
"""Time-out of the verdict stream; a healthy job gives no verdict for as long as it trains."""


class DrillError(TocsinError):
    """Raised when the drill itself could not be carried out (a wrong verdict is not an error)."""


class DrillEngine:
    """A running ``tocsin serve`` process."""

    def __init__(self, processes: ProcessGroup, data_folder: Path, more: Sequence[str] = ()) -> None:
        """Start the engine.

        Args:
            processes: process group of the drill.
            data_folder: folder that incidents are written to.
            more: further arguments of ``tocsin serve``.
        """
        self.data_folder = data_folder
        self.listen = processes.folder / "e.sock"
        self.control = control_socket(data_folder)
        self.client = ControlClient(self.control, timeout_seconds=10.0)
        self.tokens = DrillTokens(processes.folder)
        self._log = processes.folder / "engine.log"
        self._process: subprocess.Popen[bytes] = processes.start(
            [
                *(sys.executable, "-m", "tocsin", "serve"),
                *("--data", str(data_folder)),
                *("--listen", f"unix:{self.listen}"),
                *("--control", str(self.control)),
                *("--credentials", str(self.tokens.engine_file)),
                *("--metrics-listen", "127.0.0.1:0"),
                *more,
            ],
            self._log,
        )

    def wait_until_ready(self) -> None:
        """Wait until the engine answers a ping.

        Raises:
            DrillError: it ended, or does not answer in time.
        """
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise DrillError(f"the engine ended with status {self._process.returncode}: {self.last_words()}")
            try:
                self.client.call("ping")
            except EngineAbsentError:
                time.sleep(0.05)
            else:
                return
        raise DrillError(f"the engine did not answer within {_START_SECONDS:.0f} s: {self.last_words()}")

    def agent_words(self, host: str) -> Sequence[str]:
        """Return the words of an agent's command line that say where it sends, and with which credential."""
        return ("--engine", f"unix:{self.listen}", "--token-file", str(self.tokens.file_of(host)))

    def last_words(self) -> str:
        """Return the end of the engine's log."""
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        return text[-800:].strip() or "it said nothing"


def rank_status(client: ControlClient, job_id: str) -> dict[int, Mapping[str, Any]]:
    """Return an engine's state of each rank: host, step, steps_per_second, last_seen_seconds.

    Raises:
        EngineError: the engine does not answer.
    """
    ranks: Mapping[str, Mapping[str, Any]] = client.call("status", job_id=job_id).get("ranks", {})
    return {int(rank): facts for rank, facts in ranks.items()}


class VerdictEar:
    """Receives every verdict line of the engine and stores it with its arrival time."""

    def __init__(self, control: Path, on_line: Callable[[Heard], None]) -> None:
        """Begin to receive in a thread, which ends with the engine.

        Args:
            control: the engine's control socket.
            on_line: called for each line, in that thread.
        """
        self._heard: list[Heard] = []
        self._on_line = on_line
        self._client = ControlClient(control, timeout_seconds=_LONGEST_SILENCE_SECONDS)
        threading.Thread(target=self._listen, name="verdicts", daemon=True).start()

    def of_job(self, job_id: str) -> list[Heard]:
        """Return all lines of a job so far, in order of arrival."""
        return [item for item in list(self._heard) if item.line["job_id"] == job_id]

    def _listen(self) -> None:
        """Receive verdict lines until the engine ends."""
        with contextlib.suppress(EngineError):  # it was ended while we listened
            for message in self._client.stream("verdicts", after=0):
                if "verdict" in message:
                    item = Heard(time.time_ns(), message["verdict"], str(message.get("summary", "")))
                    self._heard.append(item)
                    self._on_line(item)
