"""A real API server with its etcd for the tests, and who may call it."""

from __future__ import annotations

import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from tests.pipeline.actions.executors.kube_world import ADMIN, EXECUTOR, NOBODY, KubeWorld
from tests.pipeline.alerts.adapters.receiver import refused_port
from tests.pipeline.waiting import until
from tests.tools import peers_kube

ACCOUNT = "system:serviceaccount:tocsin:tocsin-executor-kubernetes"
RBAC = Path(__file__).parents[2] / "deploy" / "kubernetes-executor" / "rbac.yaml"
_READY_SECONDS = 90


@contextmanager
def running_api(work: Path) -> Iterator[KubeWorld]:
    """Run both until the block ends."""
    assert not peers_kube.missing(), "make peers-kube makes them"
    etcd_port, peer_port, port = refused_port(), refused_port(), refused_port()
    tokens = work / "tokens.csv"
    tokens.write_text(f'{ADMIN},admin,1,"system:masters"\n{EXECUTOR},{ACCOUNT},2,""\n{NOBODY},nobody,3,""\n')
    key = work / "sa.key"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True, timeout=60)
    with (
        _process("etcd", work, _etcd(work, etcd_port, peer_port)),
        _process("apiserver", work, _apiserver(work, etcd_port, port)) as server,
    ):
        url = f"https://127.0.0.1:{port}"
        until(lambda: _is_ready(url) or server.poll() is not None, _READY_SECONDS)
        assert server.poll() is None, (work / "apiserver.log").read_text()[-3000:]
        world = KubeWorld(url)
        grant(world)
        yield world


def grant(world: KubeWorld) -> None:
    """Apply the rights of ``deploy/``, as an administrator does."""
    world.api().call("POST", "/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": "tocsin"}})
    for one in yaml.safe_load_all(RBAC.read_text()):
        group = one["apiVersion"] if "/" in one["apiVersion"] else ""
        space = one["metadata"].get("namespace", "")
        path = (f"/apis/{group}" if group else "/api/v1") + (f"/namespaces/{space}" if space else "")
        world.api().call("POST", f"{path}/{one['kind'].lower()}s", one)


@contextmanager
def _process(name: str, work: Path, command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    with (work / f"{name}.log").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            yield process
        finally:
            process.kill()
            process.wait(60)


def _etcd(work: Path, port: int, peer_port: int) -> list[str]:
    url, peer_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
    return [
        str(peers_kube.etcd()),
        "--unsafe-no-fsync",
        f"--data-dir={work / 'etcd'}",
        f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}",
        f"--listen-peer-urls={peer_url}",
        f"--initial-advertise-peer-urls={peer_url}",
        f"--initial-cluster=default={peer_url}",
    ]


def _apiserver(work: Path, etcd_port: int, port: int) -> list[str]:
    return [
        str(peers_kube.apiserver()),
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        "--advertise-address=127.0.0.1",
        "--endpoint-reconciler-type=none",
        f"--cert-dir={work / 'certs'}",
        "--service-account-issuer=https://localhost",
        f"--service-account-key-file={work / 'sa.key'}",
        f"--service-account-signing-key-file={work / 'sa.key'}",
        "--service-cluster-ip-range=10.0.0.0/24",
        f"--token-auth-file={work / 'tokens.csv'}",
        "--authorization-mode=RBAC",
        "--disable-admission-plugins=ServiceAccount",
        "--feature-gates=DRADeviceTaintRules=true",
        "--runtime-config=resource.k8s.io/v1beta2=true",
    ]


def trusting() -> ssl.SSLContext:
    """Believes every server: the API server's certificate is made at its start."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _is_ready(url: str) -> bool:
    context = trusting()
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=2, context=context) as answer:
            return int(answer.status) == 200
    except (urllib.error.URLError, OSError):
        return False
