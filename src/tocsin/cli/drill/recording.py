"""Writes a drill as a recording: the records the engine received, the truth, and the live verdicts."""

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
    """The recording of one drill."""

    def __init__(self, client: ControlClient, folder: Path, job_id: str) -> None:
        """Let the engine begin to record the job, before the job has sent anything.

        Raises:
            EngineRefusedError: the folder is not empty.
        """
        self._client = client
        self._folder = folder.resolve()
        client.call("record", folder=str(self._folder), job_id=job_id)

    def end(self) -> int:
        """Let the engine finish the files; return the recording's end in Unix nanoseconds."""
        self._client.call("record_stop", folder=str(self._folder))
        manifest: dict[str, Any] = json.loads((self._folder / "manifest.json").read_text("utf-8"))
        return int(manifest["end_ns"])

    def tell(self, result: DrillResult, end_ns: int) -> None:
        """Write the truth and the verdicts that the engine gave before the recording's end."""
        text = json.dumps(truth_of(result, end_ns), indent=1)
        (self._folder / "truth.json").write_text(text + "\n", "utf-8")
        lines = [json.dumps(item.line) for item in result.heard if item.line["detected_ns"] <= end_ns]
        (self._folder / LIVE_FILE).write_text("".join(line + "\n" for line in lines), "utf-8")


def truth_of(result: DrillResult, end_ns: int) -> dict[str, Any]:
    """Return the object of ``truth.json``: a fault of the affected rank's host, or none."""
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
