"""Starts and stops a Kafka broker of one node (KRaft: no ZooKeeper) on loopback."""

from __future__ import annotations

import base64
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tocsin.cli.cluster.jars import fetch_jars, java
from tocsin.cli.cluster.kept_server import KeptServer
from tocsin.cli.cluster.process import Child, Program, free_port
from tocsin.schemas.errors import EngineError

READY_SECONDS: Final = 120.0
_FORMAT_SECONDS: Final = 120.0
_LOG4J: Final = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = INFO
rootLogger.appenderRef.out.ref = out
"""


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Settings of a broker.

    Attributes:
        folder: folder of its data, configuration and log.
        port: port of the listener without encryption; 0: a free one is chosen once and kept for restarts.
        heap_bytes: size of Java's heap.
        secure: protocols of further listeners, from ``SSL SASL_PLAINTEXT SASL_SSL``; each gets a free port.
        properties: lines of ``server.properties`` that are added, or replace the ones written by default.
        format_arguments: further arguments of the tool that formats the data folder (``--add-scram`` ...).
    """

    folder: Path
    port: int = 0
    heap_bytes: int = 512 * 1024 * 1024
    secure: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    format_arguments: Sequence[str] = ()


class Broker(KeptServer):
    """Keeps its ports and its data over ``stop``, ``crash`` and ``start``; it needs Java and Kafka's jars."""

    def __init__(self, config: BrokerConfig) -> None:
        """Start nothing yet."""
        super().__init__("the broker")
        self._config = config
        self._ports: dict[str, int] = {}
        self._program = self._class_path = ""

    @property
    def address(self) -> str:
        """``HOST:PORT`` of the listener without encryption."""
        return self.address_of("PLAINTEXT")

    def address_of(self, protocol: str) -> str:
        """Return ``HOST:PORT`` of the listener with this protocol."""
        return f"127.0.0.1:{self._ports[protocol]}"

    def start(self) -> None:
        """Start the broker and wait until it accepts records; data of an earlier run is kept.

        Raises:
            EngineError: Java or the jars are missing, or the broker does not become ready.
        """
        self._program = java()
        self._class_path = fetch_jars().kafka_class_path
        super().start()

    def _has_ports(self) -> bool:
        return bool(self._ports)

    def _choose_ports(self) -> bool:
        names = ("CONTROLLER", *self._config.secure)
        self._ports = {"PLAINTEXT": self._config.port or free_port(), **{name: free_port() for name in names}}
        return not self._config.port

    def _run(self) -> None:
        config = self._config
        config.folder.mkdir(parents=True, exist_ok=True)
        properties = config.folder / "server.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in self._properties().items()), "utf-8")
        properties.chmod(0o600)  # it may hold passwords
        log4j = config.folder / "log4j2.properties"
        log4j.write_text(_LOG4J, "utf-8")
        base = [self._program, "-cp", self._class_path, f"-Dlog4j2.configurationFile={log4j}"]
        if not (config.folder / "data" / "meta.properties").exists():
            self._format([*base, "kafka.tools.StorageTool"], properties)
        heap = [f"-Xmx{config.heap_bytes}", "-XX:+ExitOnOutOfMemoryError"]
        command = [*base[:1], *heap, *base[1:], "kafka.Kafka", str(properties)]
        child = self._replace_child(Child(Program("the Kafka broker", command, config.folder / "broker.log")))
        child.start()
        child.wait_ready(lambda: child.said("Kafka Server started"), READY_SECONDS)

    def _format(self, tool: list[str], properties: Path) -> None:
        """Format the data folder with Kafka's tool and a random cluster ID."""
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # an id that begins with "-" would be read as an option
        cluster_id = "t" + cluster_id[1:] if cluster_id.startswith("-") else cluster_id
        command = [*tool, "format", "-t", cluster_id, "-c", str(properties), *self._config.format_arguments]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_FORMAT_SECONDS, check=False)
        if ran.returncode:
            output = " ".join((ran.stdout + ran.stderr).split())[-600:]
            raise EngineError(f"the broker's data folder {self._config.folder / 'data'} cannot be prepared: {output}")

    def _properties(self) -> dict[str, str]:
        """Return the lines of ``server.properties``."""
        names = [name for name in self._ports if name != "CONTROLLER"]
        open_to = [f"{name}://{self.address_of(name)}" for name in names]
        controller = self.address_of("CONTROLLER")
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": ",".join([*open_to, f"CONTROLLER://{controller}"]),
            "advertised.listeners": ",".join(open_to),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": ",".join(["CONTROLLER:PLAINTEXT", *(f"{name}:{name}" for name in names)]),
            "controller.quorum.voters": f"1@{controller}",
            "log.dirs": str(self._config.folder / "data"),
            # topics come from `tocsin topics apply`: one that is missing is an error, not a default
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.num.partitions": "4",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            **self._config.properties,
        }
