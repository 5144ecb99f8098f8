"""Record a real API server's refusals for the fake: ``python -m tests.peers_kube.record``."""

from __future__ import annotations

import json
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from tests.peers_kube.server import running_api, trusting
from tests.pipeline.actions.executors.kube_world import ADMIN, NOBODY, KubeWorld
from tocsin.pipeline.actions.executors.kubernetes_api import MERGE

TARGET = Path(__file__).parents[1] / "pipeline/actions/executors/kube_answers"
_HEADERS = ("Retry-After", "Content-Type")


class Recorder:
    """Calls a cluster and keeps what it refuses."""

    def __init__(self, world: KubeWorld) -> None:
        self._world = world

    def keep(self, name: str, method: str, path: str, body: object = None, token: str = ADMIN) -> None:
        """Call, and keep the refusal under a name."""
        content = MERGE if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {token}", "Content-Type": content}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._world.url}{path}", data, headers, method=method)
        context = trusting()
        try:
            with urllib.request.urlopen(request, timeout=10, context=context) as answer:
                raise AssertionError(f"{name}: HTTP {answer.status}")
        except urllib.error.HTTPError as error:
            kept = {key: error.headers[key] for key in _HEADERS if key in error.headers}
            told = {"status": error.code, "headers": kept, "body": json.loads(error.read())}
        (TARGET / f"{name}.json").write_text(json.dumps(told, indent=1) + "\n")


def record(world: KubeWorld) -> None:
    """Bring each refusal about."""
    world.add_node("n1")
    uid = world.add_pod("p1", "n1")
    recorder = Recorder(world)
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "p1", "namespace": "default"},
        "deleteOptions": {"preconditions": {"uid": uid}},
    }
    path = "/api/v1/namespaces/default/pods/p1/eviction"
    recorder.keep("unauthorized", "GET", "/api/v1/nodes/n1", token="expired")
    recorder.keep("forbidden", "GET", "/api/v1/nodes/n1", token=NOBODY)
    recorder.keep("not_found", "GET", "/api/v1/nodes/n2")
    stale = {"metadata": {"resourceVersion": "1", "annotations": {"a": "b"}}}
    recorder.keep("conflict", "PATCH", "/api/v1/nodes/n1", stale)
    world.add_budget("p1", 0)
    recorder.keep("budget", "POST", path, eviction)
    status = f"{world.budgets}/p1/status"
    world.patch(status, {"status": {"observedGeneration": 0}})
    recorder.keep("budget_in_work", "POST", path, eviction)
    world.add_budget("again", 0, app="p1")
    recorder.keep("two_budgets", "POST", path, eviction)


def main() -> None:
    """Start a server, and record."""
    TARGET.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as work, running_api(Path(work)) as world:
        record(world)


if __name__ == "__main__":
    main()
