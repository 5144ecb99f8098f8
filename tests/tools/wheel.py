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
from concurrent.futures import ThreadPoolExecutor
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
    """Test the wheel with each of these Pythons.

    Returns:
        0: all pass, and at least one of them is on this machine; with ``CI`` in the environment, all of them are.
    """
    own = ROOT / ".uv/bin/uv"  # made by the Makefile where the PATH has none that works
    uv = str(own) if own.exists() else "uv"
    pythons = {version: interpreter(version) for version in versions}
    found = {version: python for version, python in pythons.items() if python is not None}
    status = 0
    for version in pythons.keys() - found.keys():
        print(missing(version), flush=True)
        status = int(is_ci())
    if not found:
        print(f"wheel: none of Python {', '.join(versions)} is here: nothing was tested")
        return status or 1
    with tempfile.TemporaryDirectory(prefix="tocsin-wheel-") as name, ThreadPoolExecutor() as side_by_side:
        folder = Path(name)
        wheel = build(folder)
        tested = {
            version: side_by_side.submit(test_with, version, python, (uv, wheel, folder))
            for version, python in found.items()
        }
        for version, run in tested.items():
            failed, seconds, said = run.result()
            print(said, f"wheel: Python {version}: status {failed} after {seconds:.0f} s", sep="\n", flush=True)
            status = failed or status
    return status


def test_with(version: str, python: Path, built: tuple[str, Path, Path]) -> tuple[int, float, str]:
    """Test the wheel with one Python.

    Args:
        version: ``3.11``.
        python: the interpreter.
        built: uv, the wheel, and a folder for environments.

    Returns:
        The status, the seconds it took, and what pytest said.
    """
    uv, wheel, folder = built
    begin = time.monotonic()
    subprocess.run([uv, "venv", "--quiet", "--python", python, folder / version], check=True)
    status, said = test(uv, folder / version, wheel, folder / f"tests-{version}")
    return status, time.monotonic() - begin, said


def is_ci() -> bool:
    """Return whether this is a run of CI, where every Python must be there (``.ci/run`` sets ``CI=1``)."""
    return os.environ.get("CI", "") not in {"", "0", "false"}


def missing(version: str) -> str:
    """Return the line that says that a Python is not on this machine, and what follows from that."""
    wanted = f"wheel: no Python {version} on the PATH or in pyenv"
    return f"{wanted}: a failure in CI" if is_ci() else f"{wanted}: NOT tested with it (with CI=1 this is a failure)"


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


def test(uv: str, environment: Path, wheel: Path, place: Path) -> tuple[int, str]:
    """Install the wheel and run its tests; returns pytest's status and what it said."""
    python = environment / "bin/python"
    install = [uv, "pip", "install", "--quiet", "--python", str(python), "-c", str(ROOT / "constraints.txt")]
    subprocess.run([*install, f"tocsin[engine] @ {wheel.as_uri()}", *_PACKAGES], check=True)
    for name in ("tests", "docs"):
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", place)
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    flags = ("-q", "-p", "no:cacheprovider", "-m", "not slow and not gate", "-n0")
    command = [str(python), "-m", "pytest", *flags, "--override-ini=testpaths=tests", *TESTED]
    done = subprocess.run(
        command, cwd=place, env=kept, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return done.returncode, done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["3.11", "3.12"]))
