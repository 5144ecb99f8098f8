"""A drill as a recording: what the engine took, what is true, what it said live."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tocsin.cli.drill.faults import ExpectedVerdict
from tocsin.cli.drill.judge import host_name
from tocsin.cli.drill.result import DrillResult
from tocsin.pipeline.runtime.embedded.control_socket import ControlClient

LIVE_FILE = "verdicts.live.jsonl"


class DrillRecording:
    """One recording of one drill."""

    def __init__(self, client: ControlClient, folder: Path, job_id: str) -> None:
        """Begin, before the job has said anything.

        Raises:
            EngineRefusedError: the folder holds something already.
        """
        self._client = client
        self._folder = folder.resolve()
        client.call("record", folder=str(self._folder), job_id=job_id)

    def end(self) -> int:
        """Finish the files; the time in Unix nanoseconds at which the recording ends."""
        self._client.call("record_stop", folder=str(self._folder))
        manifest: dict[str, Any] = json.loads((self._folder / "manifest.json").read_text("utf-8"))
        return int(manifest["end_ns"])

    def tell(self, result: DrillResult, end_ns: int) -> None:
        """Write the truth, and what the engine said while it ran."""
        text = json.dumps(truth_of(result, end_ns), indent=1)
        (self._folder / "truth.json").write_text(text + "\n", "utf-8")
        lines = [json.dumps(item.line) for item in result.heard if item.line["detected_ns"] <= end_ns]
        (self._folder / LIVE_FILE).write_text("".join(line + "\n" for line in lines), "utf-8")


def truth_of(result: DrillResult, end_ns: int) -> dict[str, Any]:
    """The object of ``truth.json``: the struck rank's host, or nobody."""
    kind = result.plan.kind
    if kind.wanted is not ExpectedVerdict.ACCUSE:
        return {"faults": []}
    fault = {
        "kind": min(kind.faults),
        "cause": min(kind.causes),
        "suspects": [{"kind": "host", "name": host_name(result.plan.rank)}],
        "onset_ns": result.onset_ns,
        "end_ns": end_ns,
    }
    return {"faults": [fault]}
