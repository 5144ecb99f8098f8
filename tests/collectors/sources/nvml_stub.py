"""Builds the stub of the driver's library, so that nvidia-ml-py itself runs where there is no GPU."""

import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("stub_nvml.c")


def build(folder: Path) -> Path | None:
    """Compile ``libnvidia-ml.so.1`` into a folder and return it, None where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", folder / "libnvidia-ml.so.1", SOURCE], check=True)
    return folder
