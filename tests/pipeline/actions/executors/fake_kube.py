"""A small API server whose refusals are those of a real one, recorded by ``tests/peers_kube/record.py``."""

from __future__ import annotations

import copy
import itertools
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.pipeline.actions.executors.kube_world import ADMIN, EXECUTOR, NOBODY, KubeWorld
from tocsin.pipeline.actions.executors.kubernetes_text import time_of
from tocsin.schemas.records import NS_PER_SECOND

_ANSWERS = Path(__file__).parent / "kube_answers"
_EVICTION = re.compile(r"(/api/v1/namespaces/[^/]+/pods/[^/]+)/eviction")
_IN_NAMESPACE = re.compile(r"/namespaces/[^/]+")
_MERGED_BY = {"conditions": "type"}
_LISTS = ("/nodes", "/pods", "/v1beta2/devicetaintrules", "/v1/resourceslices")
_MADE = "2026-11-27T02:00:00Z"
_GRACE_NS = 30 * NS_PER_SECOND


def answer(name: str) -> dict[str, Any]:
    """One recorded answer: ``status``, ``headers``, ``body``."""
    found: dict[str, Any] = json.loads((_ANSWERS / f"{name}.json").read_text())
    return found


class RefusedError(Exception):
    """The API server refuses, in recorded words."""


class FakeKube:
    """Objects by path.

    Attributes:
        objects: path -> object.
        effects: each change that the executor made, in order.
        lost: number of its change whose answer is lost, from 1; 0 for none.
        is_away_after_it: whether it gets no answer from then on.
        is_away: it gets no answer.
        forbidden: begins of paths that it may not call.
        expired: tokens that are not known any more.
    """

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.effects: list[str] = []
        self.lost = 0
        self.is_away_after_it = False
        self.is_away = False
        self.forbidden: tuple[str, ...] = ()
        self.expired: set[str] = set()
        self._numbers = itertools.count(1)

    def call(self, method: str, target: str, body: dict[str, Any], token: str) -> tuple[int, dict[str, Any]]:
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if token not in (ADMIN, EXECUTOR, NOBODY) or token in self.expired:
            raise RefusedError("unauthorized")
        if token == NOBODY or (token == EXECUTOR and parts.path.startswith(self.forbidden)):
            raise RefusedError("forbidden")
        if token == EXECUTOR and method != "GET" and "dryRun" not in query:
            self.effects.append(f"{method} {parts.path}")
        return getattr(self, f"_{method.lower()}")(parts.path, query, body)  # type: ignore[no-any-return]

    def _get(self, path: str, query: Mapping[str, str], _body: object) -> tuple[int, dict[str, Any]]:
        if path in self.objects:
            return 200, self.objects[path]
        if path.endswith(_LISTS):
            items = [one for key, one in self.objects.items() if _IN_NAMESPACE.sub("", key).rpartition("/")[0] == path]
            items = [one for one in items if _is_wanted(one, query)]
            begin, count = int(query.get("continue", 0)), int(query.get("limit", len(items)))
            after = {"continue": str(begin + count)} if begin + count < len(items) else {}
            return 200, {"kind": "List", "metadata": after, "items": items[begin : begin + count]}
        raise RefusedError("not_found")

    def _post(self, path: str, query: Mapping[str, str], body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if found := _EVICTION.fullmatch(path):
            return self._evict(found[1], body, is_dry="dryRun" in query)
        made = copy.deepcopy(body)
        if f"{path}/{made['metadata']['name']}" in self.objects:
            raise RefusedError("conflict")
        number = next(self._numbers)
        namespace = re.search(r"/namespaces/([^/]+)", path)
        made["metadata"] |= {"uid": f"uid-{number}", "resourceVersion": str(number), "creationTimestamp": _MADE}
        made["metadata"] |= {"namespace": namespace[1]} if namespace else {}
        self.objects[f"{path}/{made['metadata']['name']}"] = made
        return 201, made

    def _patch(self, path: str, query: Mapping[str, str], body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        found = self._known(path.removesuffix("/status"))
        told = body.get("metadata", {})
        if any(
            told.get(name, found["metadata"][name]) != found["metadata"][name] for name in ("resourceVersion", "uid")
        ):
            raise RefusedError("conflict")
        part = {"status": body["status"]} if path.endswith("/status") else body
        _merge(found, copy.deepcopy(part))
        found["metadata"]["resourceVersion"] = str(next(self._numbers))
        if "unschedulable" in body.get("spec", {}):
            fields: dict[str, object] = {"f:spec": {"f:unschedulable": {}}}
            others = (
                found["metadata"].get("managedFields", []) if "force" in query else []
            )  # declared: they own it, too
            found["metadata"]["managedFields"] = [*others, {"manager": query["fieldManager"], "fieldsV1": fields}]
        return 200, found

    def _put(self, path: str, _query: object, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if self._known(path)["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise RefusedError("conflict")
        self.objects[path] = copy.deepcopy(body)
        self.objects[path]["metadata"]["resourceVersion"] = str(next(self._numbers))
        return 200, self.objects[path]

    def _delete(self, path: str, _query: object, _body: object) -> tuple[int, dict[str, Any]]:
        self._known(path)
        return 200, self.objects.pop(path)

    def _evict(self, path: str, body: Mapping[str, Any], *, is_dry: bool) -> tuple[int, dict[str, Any]]:
        pod = self._known(path)["metadata"]
        if body["deleteOptions"]["preconditions"]["uid"] != pod["uid"]:
            raise RefusedError("conflict")
        budgets = [
            one
            for one in self.objects.values()
            if one["kind"] == "PodDisruptionBudget"
            and one["spec"]["selector"]["matchLabels"]["app"] == pod["labels"]["app"]
        ]
        if len(budgets) > 1:
            raise RefusedError("two_budgets")
        for one in budgets:
            if one["status"]["observedGeneration"] < 1:
                raise RefusedError("budget_in_work")
            if not one["status"]["disruptionsAllowed"]:
                raise RefusedError("budget")
        if not is_dry:
            pod["deletionTimestamp"] = time_of(time.time_ns() + _GRACE_NS)
        return 201, {"kind": "Status", "status": "Success"}

    def _known(self, path: str) -> dict[str, Any]:
        if path not in self.objects:
            raise RefusedError("not_found")
        return self.objects[path]


def _is_wanted(one: Mapping[str, Any], query: Mapping[str, str]) -> bool:
    """Whether an object fits the selectors."""
    node = query.get("fieldSelector", "").removeprefix("spec.nodeName=")
    name, is_equal, value = query.get("labelSelector", "").partition("=")
    is_there = not node or one.get("spec", {}).get("nodeName") == node
    labels = one["metadata"].get("labels", {})
    return is_there and (not name or (labels.get(name) == value if is_equal else name in labels))


def _merge(into: dict[str, Any], patch: Mapping[str, Any]) -> None:
    """Change an object as a strategic merge patch does: conditions by type, other lists whole, null takes away."""
    for name, value in patch.items():
        if value is None:
            into.pop(name, None)
        elif isinstance(value, dict):
            _merge(into.setdefault(name, {}), value)
        elif name in _MERGED_BY:
            told = {one[_MERGED_BY[name]]: one for one in value}
            kept = [one for one in into.get(name, []) if one[_MERGED_BY[name]] not in told]
            into[name] = kept + [one for one in told.values() if one.get("$patch") != "delete"]
        else:
            into[name] = value


@contextmanager
def serving_kube() -> Iterator[tuple[FakeKube, KubeWorld]]:
    """A fake API server that listens, until the block ends."""
    kube, lock = FakeKube(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # headers and body in one packet

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            headers: Mapping[str, str] = {}
            with lock:
                if kube.is_away and token == EXECUTOR:
                    self.close_connection = True
                    return
                try:
                    status, found = kube.call(self.command, self.path, json.loads(body or b"{}"), token)
                except RefusedError as refused:
                    told = answer(str(refused))
                    status, found, headers = told["status"], told["body"], told["headers"]
                text = json.dumps(found).encode()
                is_change = token == EXECUTOR and self.command != "GET" and "dryRun" not in self.path
                if is_change and len(kube.effects) == kube.lost:
                    kube.is_away = kube.is_away_after_it
                    self.close_connection = True
                    return
            self.send_response(status)
            for name, value in {**headers, "Content-Type": "application/json", "Content-Length": len(text)}.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = _serve  # noqa: N815  # the server calls them so

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield kube, KubeWorld(f"http://127.0.0.1:{server.server_port}", is_real=False)
    finally:
        server.shutdown()
        server.server_close()
