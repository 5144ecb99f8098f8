"""M6: recordings from outsiders that state far more than they weigh."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.attacks.registry import Outcome, attack
from tests.pipeline.recording.hostile import HOSTILE, many_rows
from tocsin.cli.replay import ReplayJob, replay_one


@attack("M6", "folders that state too much")
def folders() -> Outcome:
    taken = []
    with tempfile.TemporaryDirectory() as name:
        for kind, (write, file) in HOSTILE.items():
            folder = write(Path(name) / kind)
            if file not in replay_one(ReplayJob(folder, Path(name) / "verdicts.jsonl", None, 0.0)).error:
                taken.append(kind)
    effect = f"read: {', '.join(taken)}" if taken else "each refused before it was read, by the file's name"
    return Outcome(len(HOSTILE), effect, not taken)


_MEASURED = (
    "import resource, subprocess, sys; status = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL);"
    " print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(status)"
)
"""A small process between: the kernel counts a parent's memory as its child's until that runs its own program."""


@attack("M6", "205 million rows in some hundred kilobytes", slow=True)
def rows() -> Outcome:
    with tempfile.TemporaryDirectory() as name:
        folder = many_rows(Path(name))
        size_bytes = (folder / "topology.parquet").stat().st_size
        command = [str(Path(sys.executable).with_name("tocsin")), "replay", str(folder)]
        begin = time.monotonic()
        with (Path(name) / "stderr").open("w+") as words:
            measured = [sys.executable, "-S", "-E", "-c", _MEASURED, *command]
            child = subprocess.Popen(measured, stdout=subprocess.PIPE, stderr=words, text=True)
            ender = threading.Timer(120.0, child.kill)
            ender.start()
            peak_kilobytes = child.communicate()[0]
            ender.cancel()
            words.seek(0)
            reported = words.read()
        took_seconds = time.monotonic() - begin
        peak_megabytes = int(peak_kilobytes or 1 << 30) / 1024
    refused = child.returncode == 2 and "topology.parquet" in reported and "Traceback" not in reported
    effect = f"{size_bytes} bytes: status {child.returncode}, {took_seconds:.1f} s, {peak_megabytes:.0f} MB at most"
    return Outcome(1, effect, refused and peak_megabytes < 1_000)
