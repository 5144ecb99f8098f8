"""Fetch Debian's Alertmanager, Prometheus and Slurm into a folder: ``python -m tests.tools.peers``.

The packages are unpacked, not installed; Slurm's with the libraries that a small Debian lacks. The folder is
``build/peers``, or ``TOCSIN_PEERS``. Debian's Alertmanager reads its templates from one folder of the system, so they
are put there, which takes root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
SLURM_PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins")
SLURM_LIBRARIES = ("libhwloc15", "libjson-c5", "liblua5.1-0", "libmunge2", "libnuma1", "libyaml-0-2")
PACKAGES = ("prometheus", "prometheus-alertmanager", *SLURM_PACKAGES, *SLURM_LIBRARIES)
SLURM_DAEMONS = ("slurmctld-wlm", "slurmd-wlm", "slurmstepd-wlm")
SLURM_CLIENTS = ("scontrol", "squeue", "sinfo", "sbatch", "scancel")
PROGRAMS = ("prometheus", "promtool", "prometheus-alertmanager", *SLURM_DAEMONS, *SLURM_CLIENTS)
TEMPLATES = Path("/usr/share/prometheus/alertmanager")
_SECONDS = 300


def folder() -> Path:
    """The folder of the unpacked packages."""
    return Path(os.environ.get("TOCSIN_PEERS", ROOT / "build" / "peers"))


def program(name: str) -> Path:
    """The path of one of ``PROGRAMS``."""
    return folder() / "usr" / ("sbin" if name in SLURM_DAEMONS else "bin") / name


def libraries() -> Path:
    """The folder of the unpacked libraries; Slurm's own are in ``slurm-wlm`` there."""
    return folder() / "usr" / "lib" / f"{os.uname().machine}-linux-gnu"


def missing() -> list[str]:
    """Those of ``PROGRAMS`` that are not there."""
    return [name for name in PROGRAMS if not os.access(program(name), os.X_OK)]


def place_templates() -> None:
    """Copy the templates that Alertmanager reads to their place in the system, where one is missing."""
    for template in sorted((folder() / TEMPLATES.relative_to("/")).glob("*.tmpl")):
        if not (TEMPLATES / template.name).exists():
            TEMPLATES.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(template, TEMPLATES / template.name)
            print(f"peers: {TEMPLATES / template.name} copied")


def fetch() -> None:
    """Download and unpack the packages; what is there already stays."""
    target = folder()
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as download:
        os.chmod(download, 0o755)  # noqa: PTH101  # apt drops its rights, and must write here
        subprocess.run(["apt-get", "download", "-q", *PACKAGES], cwd=download, check=True, timeout=_SECONDS)
        for package in sorted(Path(download).glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", package, target], check=True, timeout=_SECONDS)


def main() -> int:
    """Fetch what is missing; 1 where that is impossible."""
    if missing():
        if shutil.which("apt-get") is None:
            print("peers: no apt-get here: unpack", *PACKAGES, "into", folder())
            return 1
        try:
            fetch()
        except (OSError, subprocess.SubprocessError) as error:
            print(f"peers: the packages {', '.join(PACKAGES)} cannot be fetched: {error}", file=sys.stderr)
            return 1
    if left := missing():
        print(f"peers: the packages hold no {', '.join(left)}", file=sys.stderr)
        return 1
    try:
        place_templates()
    except OSError as error:
        print(f"peers: Alertmanager needs {TEMPLATES}: {error}; as root: make peers", file=sys.stderr)
        return 1
    print(f"peers: {', '.join(PROGRAMS)} in {folder()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
