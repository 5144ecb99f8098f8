"""The state file of a cluster's folder, with which ``status``, ``logs`` and ``down`` find a running cluster."""

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
    """A cluster that is starting or running.

    Attributes:
        pid: process ID of ``tocsin cluster up``.
        phase: ``starting``, ``running``, ``ending`` or ``ended``.
        addresses: address by name: ``kafka``, ``flink``, ``clickhouse``.
        logs: log file by name.
        processes: process ID by name.
    """

    pid: int
    phase: str
    addresses: dict[str, str] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)
    processes: dict[str, int] = field(default_factory=dict)


def default_folder() -> Path:
    """Return the cluster's default folder: from the environment, else ``cluster`` in the data folder."""
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named).expanduser().absolute() if named else data_folder() / "cluster"


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Context manager that holds the folder's lock, so that only one cluster uses the folder.

    The kernel releases the lock when this process ends, however it ends.

    Raises:
        ConfigError: the folder cannot be created.
        EngineError: another cluster holds the lock.
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
    """Return whether a cluster holds the folder's lock."""
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
    """Write the state file atomically."""
    number, name = tempfile.mkstemp(prefix=f".{_FILE}-", dir=folder)
    with os.fdopen(number, "w", encoding="utf-8") as file:
        json.dump(asdict(state), file, indent=2)
    Path(name).rename(folder / _FILE)


def read_state(folder: Path) -> ClusterState | None:
    """Return the state of the running cluster, None: none runs."""
    return _read(folder) if is_held(folder) else None


def last_state(folder: Path) -> ClusterState | None:
    """Return the state of the cluster that runs or ran last in the folder, None: there never was one."""
    return _read(folder)


def _read(folder: Path) -> ClusterState | None:
    """Return the contents of the state file, None: it is missing or not valid."""
    try:
        return ClusterState(**json.loads((folder / _FILE).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None  # not there, or of another version: as if it never ran
