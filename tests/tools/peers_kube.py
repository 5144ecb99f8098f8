"""Build a kube-apiserver and fetch an etcd for it: ``python -m tests.tools.peers_kube``.

The API server is built from the sources of ``tests/peers_kube/apiserver`` with the Go that is here, which takes six
minutes and 1.7 GB of Go's cache on two cores; etcd is Debian's. Both go to ``build/peers_kube``, or
``TOCSIN_PEERS_KUBE``, where a binary of the same sources stays.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "tests" / "peers_kube" / "apiserver"
VERSION = "v1.36.3"
_FLAGS = (
    "-trimpath",
    "-gcflags=all=-N -l -dwarf=false",  # half the time of a build that optimizes
    f"-ldflags=-s -w -X k8s.io/component-base/version.gitVersion={VERSION}",
)
_BUILD_SECONDS = 3600
_FETCH_SECONDS = 300


def folder() -> Path:
    """The folder of the binaries."""
    return Path(os.environ.get("TOCSIN_PEERS_KUBE", ROOT / "build" / "peers_kube"))


def apiserver() -> Path:
    """The API server of the present sources."""
    text = b"".join((SOURCES / name).read_bytes() for name in ("main.go", "go.mod", "go.sum"))
    return folder() / f"kube-apiserver-{hashlib.sha256(text).hexdigest()[:12]}"


def etcd() -> Path:
    """The etcd."""
    return folder() / "etcd" / "usr" / "bin" / "etcd"


def missing() -> list[Path]:
    """Those of the two that are not there."""
    return [path for path in (apiserver(), etcd()) if not os.access(path, os.X_OK)]


def build() -> None:
    """Build the API server; a stopped build leaves nothing that looks like one."""
    environment = {**os.environ, "CGO_ENABLED": "0", "GOGC": "400", "GOFLAGS": "-buildvcs=false"}
    part = apiserver().with_suffix(".part")
    command = ["go", "build", *_FLAGS, "-o", str(part), "."]
    subprocess.run(command, cwd=SOURCES, env=environment, check=True, timeout=_BUILD_SECONDS)
    part.replace(apiserver())


def fetch_etcd() -> None:
    """Download and unpack Debian's etcd."""
    with tempfile.TemporaryDirectory() as download:
        os.chmod(download, 0o755)  # noqa: PTH101  # apt drops its rights, and must write here
        subprocess.run(["apt-get", "download", "-q", "etcd-server"], cwd=download, check=True, timeout=_FETCH_SECONDS)
        for package in Path(download).glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, folder() / "etcd"], check=True, timeout=_FETCH_SECONDS)


def main() -> int:
    """Make what is missing; 1 where that is impossible."""
    for path, make, tool in ((etcd(), fetch_etcd, "apt-get"), (apiserver(), build, "go")):
        if path not in missing():
            continue
        if shutil.which(tool) is None:
            print(f"peers-kube: no {tool} here, which {path.name} needs", file=sys.stderr)
            return 1
        folder().mkdir(parents=True, exist_ok=True)
        try:
            make()
        except (OSError, subprocess.SubprocessError) as error:
            print(f"peers-kube: no {path.name}: {error}", file=sys.stderr)
            return 1
    print(f"peers-kube: {apiserver().name} ({VERSION}), etcd in {folder()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
