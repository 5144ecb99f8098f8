"""Members of a group as Kubernetes Jobs, one a node, through ``kubectl``."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Final

from tocsin.schemas.errors import ConfigError, EngineError

LABEL: Final = "tocsin.dev/preflight"
_POLL_SECONDS: Final = 2.0
_CALL_SECONDS: Final = 60.0
_KEPT_SECONDS: Final = 600


def manifests(
    hosts: Sequence[str], member: Sequence[str], port: int, seconds: float, settings: Mapping[str, str]
) -> dict[str, object]:
    """Return the list of Jobs, one a node.

    A Job names its node, so that the scheduler is not asked and a cordoned node is checked, too. It tolerates all
    taints, uses the host's network to meet the others, and ends by itself.

    Args:
        hosts: names of the nodes.
        member: the command of a member, without its place.
        port: where they meet on the first node.
        seconds: time after which Kubernetes ends a Job.
        settings: ``run``, ``image``, ``namespace``, and ``gpus`` for each node ("" or "0": none).
    """
    jobs = [
        _job(rank, host, [*member, "--member", f"{rank}/{len(hosts)}@{hosts[0]}:{port}"], seconds, settings)
        for rank, host in enumerate(hosts)
    ]
    return {"apiVersion": "v1", "kind": "List", "items": jobs}


def _job(
    rank: int, host: str, command: Sequence[str], seconds: float, settings: Mapping[str, str]
) -> dict[str, object]:
    """Return the Job of one node."""
    labels = {LABEL: settings["run"]}
    container: dict[str, object] = {
        "name": "preflight",
        "image": settings["image"],
        "command": list(command),
        "volumeMounts": [{"name": "disk", "mountPath": "/var/tmp"}],  # noqa: S108  # the path in the container
    }
    if settings.get("gpus", "0") not in {"", "0"}:
        container["resources"] = {"limits": {"nvidia.com/gpu": settings["gpus"]}}
    pod = {
        "nodeName": host,
        "restartPolicy": "Never",
        "hostNetwork": True,
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "volumes": [{"name": "disk", "emptyDir": {}}],
    }
    spec = {
        "backoffLimit": 0,
        "activeDeadlineSeconds": int(seconds),
        "ttlSecondsAfterFinished": _KEPT_SECONDS,
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    name = f"tocsin-preflight-{settings['run']}-{rank}"
    metadata = {"name": name, "namespace": settings["namespace"], "labels": labels}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def new_run() -> str:
    """Return a name for one run's Jobs."""
    return uuid.uuid4().hex[:8]


def run_jobs(listed: Mapping[str, object], run: str, namespace: str, seconds: float) -> tuple[str, str]:
    """Create the Jobs, wait until all have ended, and return all that they printed, and why some may be missing.

    The Jobs are deleted in any case.

    Raises:
        ConfigError: there is no kubectl here.
        EngineError: Kubernetes refuses the Jobs.
    """
    if shutil.which("kubectl") is None:
        raise ConfigError("--via", "kubectl", "something else: there is no kubectl on the PATH")
    which = ["--namespace", namespace, "--selector", f"{LABEL}={run}"]
    try:
        _kubectl(["create", "--filename", "-"], json.dumps(listed))
        states = _waited(which, seconds)
        logs = [_logs(name, namespace) for name in states]
        unfinished = sorted(name for name, is_done in states.items() if not is_done)
        return "\n".join(logs), f"Jobs that did not end: {', '.join(unfinished)}" if unfinished else "no answer"
    finally:
        _call(["delete", "jobs", "--wait=false", *which], "")


def _waited(which: Sequence[str], seconds: float) -> dict[str, bool]:
    """Return each Job's name, and whether it ended, when all have or the time is over."""
    until = time.monotonic() + seconds
    while True:
        states = {}
        for job in json.loads(_kubectl(["get", "jobs", "--output", "json", *which], ""))["items"]:
            conditions = job.get("status", {}).get("conditions", ())
            kinds = {str(one.get("type")) for one in conditions if one.get("status") == "True"}
            states[str(job["metadata"]["name"])] = bool(kinds & {"Complete", "Failed"})
        if all(states.values()) or time.monotonic() >= until:
            return states
        time.sleep(min(_POLL_SECONDS, max(0.0, until - time.monotonic())))


def _logs(name: str, namespace: str) -> str:
    """Return what a Job's pod printed, "" where there is none yet."""
    return _call(["logs", f"job/{name}", "--namespace", namespace], "").stdout


def _kubectl(arguments: Sequence[str], text: str) -> str:
    """Call kubectl and return what it printed.

    Raises:
        EngineError: it failed.
    """
    done = _call(arguments, text)
    if done.returncode:
        said = re.sub(r"\s+", " ", done.stderr).strip()[:300]
        raise EngineError(f"kubectl {arguments[0]}: {said}")
    return done.stdout


def _call(arguments: Sequence[str], text: str) -> subprocess.CompletedProcess[str]:
    """Call kubectl."""
    try:
        return subprocess.run(
            ["kubectl", *arguments], input=text, capture_output=True, text=True, timeout=_CALL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(list(arguments), 1, "", f"no answer in {_CALL_SECONDS:g} s")
