"""What runs in a cluster's folder: for ``status``, ``logs`` and ``down`` in another terminal."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from tocsin.cli.paths import data_folder
from tocsin.schemas.errors import ConfigError, EngineError

FOLDER_VARIABLE: Final = "TOCSIN_CLUSTER_DIR"
_FILE: Final = "cluster.json"
_LOCK: Final = "cluster.lock"


@dataclass(frozen=True, slots=True)
class ClusterState:
    """A cluster that starts, or runs.

    Attributes:
        pid: of ``tocsin cluster up``.
        phase: ``starting``, ``running`` or ``ending``.
        addresses: by name: ``kafka``, ``flink``, ``clickhouse``.
        logs: files by name.
        processes: process numbers by name.
    """

    pid: int
    phase: str
    addresses: dict[str, str] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)
    processes: dict[str, int] = field(default_factory=dict)


def default_folder() -> Path:
    """Return where a cluster lives, if no flag names another folder."""
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named).expanduser().absolute() if named else data_folder() / "cluster"


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Be the only cluster of a folder; the kernel lets go when this process ends, however it does.

    Raises:
        ConfigError: the folder cannot be made.
        EngineError: another cluster lives there.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise ConfigError("--folder", str(folder), f"a folder that can be made ({error.strerror or error})") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            state = _read(folder)
            who = f" (process {state.pid})" if state is not None else ""
            raise EngineError(f"a cluster runs in {folder}{who}: 'tocsin cluster down' ends it") from error
        yield
    finally:
        os.close(descriptor)


def is_held(folder: Path) -> bool:
    """Return whether a cluster lives there."""
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def write_state(folder: Path, state: ClusterState) -> None:
    """Tell the others; they see the old state or the new one."""
    number, name = tempfile.mkstemp(prefix=f".{_FILE}-", dir=folder)
    with os.fdopen(number, "w", encoding="utf-8") as file:
        json.dump(asdict(state), file, indent=2)
    Path(name).rename(folder / _FILE)


def read_state(folder: Path) -> ClusterState | None:
    """Return what runs there, None: nothing does."""
    return _read(folder) if is_held(folder) else None


def last_state(folder: Path) -> ClusterState | None:
    """Return what ran there last, None: nothing ever did."""
    return _read(folder)


def _read(folder: Path) -> ClusterState | None:
    try:
        return ClusterState(**json.loads((folder / _FILE).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None  # not there, or of another version: as if it never ran
