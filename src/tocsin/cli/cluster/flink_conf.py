"""Writes the configuration of a Flink cluster on one machine, starting from the one in the wheel."""

from __future__ import annotations

import importlib.util
import logging
import re
import shutil
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import tocsin
from tocsin.cli.cluster.beam_loopback import opt_folder
from tocsin.schemas.errors import ConfigError, EngineError

HOST: Final = "127.0.0.1"
_LOG = logging.getLogger("tocsin.cluster")
_JAVA_OPTIONS: Final = re.compile(r"^\s+all:\s*(--add.*)$", re.MULTILINE)
_PROMETHEUS: Final = "metrics-prometheus"
_PORTS: Final = re.compile(r"\d{1,5}(-\d{1,5})?")
_FIXED: Final = {
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    "execution.checkpointing.num-retained": "1",
    # a failure is tried again for ever: a broker may be away for an hour
    "restart-strategy.type": "exponential-delay",
    "restart-strategy.exponential-delay.initial-backoff": "1 s",
    "restart-strategy.exponential-delay.max-backoff": "30 s",
    "restart-strategy.exponential-delay.reset-backoff-threshold": "2 min",
    # without it a thread that finds no memory dies alone, and the job stands for ever
    "taskmanager.jvm-exit-on-oom": "true",
    # a TaskManager that died is noticed within seconds; one on a busy laptop is not called dead
    "heartbeat.interval": "3 s",
    "heartbeat.timeout": "40 s",
    # jars come from nobody: "flink run" hands over a job, and needs no page that takes programs
    "web.submit.enable": "false",
}
_ROLLING: Final = "rootLogger.appenderRef.rolling"
_SETTING: Final = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class FlinkConfig:
    """Settings of a Flink cluster.

    Attributes:
        folder: folder of its configuration, logs, checkpoints and savepoints.
        rest_port: port of the JobManager's REST interface and web pages; 0: a free one is chosen and kept.
        task_manager_count: number of TaskManager processes.
        slot_count: task slots in each of them; each slot has its own Python process.
        jobmanager_bytes: memory of the JobManager's process.
        taskmanager_bytes: memory of a TaskManager's Java process; its Python workers use memory in addition.
        metrics_ports: port or range of ports of the Prometheus reporter ("9249-9260"), "": no reporter. Flink opens
            them on **all** interfaces; the same metrics are in the REST interface, which is on loopback.
        settings: Flink settings that are added to ``config.yaml``, or replace the ones written by default.
    """

    folder: Path
    rest_port: int = 0
    task_manager_count: int = 1
    slot_count: int = 2
    jobmanager_bytes: int = 1024**3
    taskmanager_bytes: int = 2 * 1024**3
    metrics_ports: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check values that would otherwise fail only inside Java.

        Raises:
            ConfigError: names the setting.
        """
        for name, value in (("task managers", self.task_manager_count), ("slots", self.slot_count)):
            if value < 1:
                raise ConfigError(name, value, "at least 1")
        if self.metrics_ports and not _PORTS.fullmatch(self.metrics_ports):
            raise ConfigError("metrics ports", self.metrics_ports, "one port, or FIRST-LAST")
        for name in self.settings:
            if not _SETTING.fullmatch(name):
                raise ConfigError("Flink setting", name, "a name as in Flink's config.yaml")

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints: one folder per job, with ``chk-N`` in it."""
        return self.folder / "checkpoints"

    @property
    def savepoints(self) -> Path:
        """Default folder of savepoints."""
        return self.folder / "savepoints"


def flink_home() -> Path:
    """Return the home folder of the Flink that the apache-flink wheel contains.

    Raises:
        ModuleNotFoundError: it is not installed (``tocsin`` then names the extra to install).
    """
    found = importlib.util.find_spec("pyflink")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("no pyflink", name="pyflink")
    return Path(found.submodule_search_locations[0])


def python_path() -> str:
    """Return the ``PYTHONPATH`` with which another Python finds this tocsin, "": none is needed."""
    root = Path(tocsin.__file__).absolute().parents[1]
    installed = {Path(sysconfig.get_path(name)).absolute() for name in ("purelib", "platlib")}
    return "" if root in installed else str(root)


def flink_environment(home: Path, conf: Path, logs: Path) -> dict[str, str]:
    """Return the environment variables of Flink's scripts."""
    found = {
        "FLINK_HOME": str(home),
        "FLINK_LIB_DIR": str(home / "lib"),
        "FLINK_OPT_DIR": str(bound_opt_folder(home) or home / "opt"),
        "FLINK_PLUGINS_DIR": str(home / "plugins"),
        "FLINK_CONF_DIR": str(conf),
        "FLINK_LOG_DIR": str(logs),
        "FLINK_PID_DIR": str(logs),
        "FLINK_IDENT_STRING": "tocsin",
    }
    # Java opens files in the machine's own encoding otherwise
    found["LC_ALL"] = "C.UTF-8"
    if path := python_path():
        found["PYTHONPATH"] = path
    return found


def bound_opt_folder(home: Path) -> Path | None:
    """Return the folder whose ``flink-python`` jar keeps Beam's servers on loopback, None: it cannot be made."""
    try:
        return opt_folder(home)
    except EngineError as error:
        _LOG.warning("Beam's ports stay open to the network", extra={"error": str(error)})
        return None


def write_conf(home: Path, conf: Path, settings: Mapping[str, str]) -> None:
    """Write a configuration folder: a copy of the wheel's, with these settings.

    Each process gets its own folder, because Flink's scripts rewrite ``config.yaml`` when they start.

    Raises:
        EngineError: the wheel's folder is not as expected, or the folder cannot be written.
    """
    try:
        shutil.copytree(home / "conf", conf, dirs_exist_ok=True)
        found = _JAVA_OPTIONS.search((home / "conf" / "config.yaml").read_text("utf-8"))
        if found is None:
            raise EngineError(f"{home / 'conf' / 'config.yaml'} holds no env.java.opts.all: is this apache-flink 2.2?")
        lines = {"env.java.opts.all": found[1], **settings}
        (conf / "config.yaml").write_text(
            "".join(f"{name}: {_yaml(value)}\n" for name, value in lines.items()), "utf-8"
        )
    except (OSError, shutil.Error) as error:
        raise EngineError(f"Flink's configuration cannot be written to {conf}: {error}") from error


def _yaml(value: str) -> str:
    """Return the value as a quoted YAML string."""
    return "'" + value.replace("'", "''") + "'"


def settings_of(config: FlinkConfig, rest_port: int, rpc_port: int, home: Path) -> dict[str, str]:
    """Return Flink's settings for the JobManager and the TaskManagers."""
    values = {
        "jobmanager.rpc.address": HOST,
        "jobmanager.bind-host": HOST,
        "jobmanager.rpc.port": str(rpc_port),
        "jobmanager.memory.process.size": f"{config.jobmanager_bytes >> 20}m",
        "rest.address": HOST,
        "rest.bind-address": HOST,
        "rest.port": str(rest_port),
        "taskmanager.host": HOST,
        "taskmanager.bind-host": HOST,
        "taskmanager.numberOfTaskSlots": str(config.slot_count),
        "taskmanager.memory.process.size": f"{config.taskmanager_bytes >> 20}m",
        # the heap holds state and windows; this is only what Python workers must be promised
        "taskmanager.memory.managed.size": f"{64 * config.slot_count}m",
        "io.tmp.dirs": str(config.folder / "tmp"),
        "python.executable": sys.executable,
        "execution.checkpointing.dir": config.checkpoints.as_uri(),
        "execution.checkpointing.savepoint-dir": config.savepoints.as_uri(),
        **_FIXED,
    }
    if config.metrics_ports:
        if not (home / "plugins" / _PROMETHEUS).is_dir():
            raise EngineError(f"{home / 'plugins' / _PROMETHEUS} is missing: this Flink cannot serve Prometheus")
        reporter = "org.apache.flink.metrics.prometheus.PrometheusReporterFactory"
        values |= {
            "metrics.reporters": "prom",
            "metrics.reporter.prom.factory.class": reporter,
            "metrics.reporter.prom.port": config.metrics_ports,
        }
    return values | dict(config.settings)


def parse_settings(texts: Sequence[str]) -> dict[str, str]:
    """Parse texts ``NAME=VALUE`` to a dictionary.

    Raises:
        ConfigError: a text has no name or no ``=``.
    """
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError("Flink setting", text, "NAME=VALUE")
        found[name] = value
    return found
