"""``make test-wheel``: what a training host installs, tested as it is installed.

The wheel is built, installed with the locked packages into an environment of its own for each Python, and tested from
a folder that holds ``tests/``, the ``docs/`` that tests compare with the code, and no source.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTED = (
    "tests/schemas",
    "tests/collectors/hook",
    "tests/pipeline/core",
    "tests/pipeline/job",
    "tests/pipeline/incidents",
)
"""What needs no server, no torch and no other Python's command line."""
_PACKAGES = ("hypothesis", "pytest", "pytest-randomly", "pytest-timeout", "pytest-xdist")
_ROOMS = ("collectors", "models", "pipeline", "schemas")


def main(versions: Sequence[str]) -> int:
    """Test the wheel with each of these Pythons; return 0 where all pass, and at least one is on this machine."""
    own = ROOT / ".uv/bin/uv"  # made by the Makefile where the PATH has none that works
    uv = str(own) if own.exists() else "uv"
    status, tested_count = 0, 0
    with tempfile.TemporaryDirectory(prefix="tocsin-wheel-") as name:
        folder = Path(name)
        wheel = build(folder)
        for version in versions:
            begin = time.monotonic()
            environment = folder / version
            python = interpreter(version)
            if python is None:
                print(f"wheel: no Python {version} here: left out")
                continue
            subprocess.run([uv, "venv", "--quiet", "--python", python, environment], check=True)
            tested_count += 1
            status = test(uv, environment, wheel, folder / f"tests-{version}") or status
            print(f"wheel: Python {version}: status {status} after {time.monotonic() - begin:.0f} s", flush=True)
    if not tested_count:
        print(f"wheel: none of Python {', '.join(versions)} is here: nothing was tested")
    return status or int(not tested_count)


def interpreter(version: str) -> Path | None:
    """Return a Python of this version that runs: on the PATH, or one of pyenv's; None: there is none."""
    roots = (Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions").glob(f"{version}.*/bin/python")
    found = shutil.which(f"python{version}")
    for candidate in ([Path(found)] if found else []) + sorted(roots):
        asked = [
            str(candidate),
            "-c",
            f"import sys; sys.exit(sys.version_info[:2] != {tuple(map(int, version.split('.')))})",
        ]
        if subprocess.run(asked, capture_output=True, check=False).returncode == 0:
            return candidate
    return None


def build(folder: Path) -> Path:
    """Build the wheel from a copy of the tree, so that no build folder is left in it."""
    tree, out = folder / "tree", folder / "dist"
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("src", "deploy", *_ROOMS):
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=ignore)
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, tree)
    out.mkdir()
    code = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, out], cwd=tree, stdout=subprocess.DEVNULL, check=True)
    (path,) = out.glob("*.whl")
    return path


def test(uv: str, environment: Path, wheel: Path, place: Path) -> int:
    """Install the wheel and run its tests; returns pytest's status."""
    python = environment / "bin/python"
    install = [uv, "pip", "install", "--quiet", "--python", str(python), "-c", str(ROOT / "constraints.txt")]
    subprocess.run([*install, f"tocsin[engine] @ {wheel.as_uri()}", *_PACKAGES], check=True)
    for name in ("tests", "docs"):
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", place)
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    flags = ("-q", "-p", "no:cacheprovider", "-m", "not slow and not gate", "-n0")
    command = [str(python), "-m", "pytest", *flags, "--override-ini=testpaths=tests", *TESTED]
    return subprocess.run(command, cwd=place, env=kept, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["3.11", "3.12"]))
