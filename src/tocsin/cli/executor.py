"""``tocsin executor NAME``: carries out what the controller decided, on one system."""

from __future__ import annotations

import argparse
import getpass
import logging
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from tocsin.cli.action_settings import PUBLIC_FILE
from tocsin.cli.engine_reader import add_engine_arguments, reader_of
from tocsin.cli.executor_preflight import add_own_host_arguments, add_preflight_arguments, preflight_target
from tocsin.cli.identity import signer_of
from tocsin.cli.kafka import add_kafka_arguments
from tocsin.cli.kafka import settings_of as kafka_settings_of
from tocsin.cli.logs import add_log_arguments, set_up_logs
from tocsin.cli.operator_channel import is_over_kafka
from tocsin.cli.paths import data_folder
from tocsin.schemas.credentials import ANY_NAME, Role
from tocsin.schemas.errors import ConfigError

if TYPE_CHECKING:
    from tocsin.collectors.metrics_page import MetricsPage
    from tocsin.pipeline.actions.executors.client import EngineChannel, ExecutorClient
    from tocsin.pipeline.actions.executors.signed_actions import SignedActions
    from tocsin.pipeline.actions.executors.target import TargetSystem
    from tocsin.pipeline.actions.executors.turns import Turn
    from tocsin.pipeline.identity.key_file import ActionKeys
    from tocsin.schemas.formats.prometheus_text import Family

_LOG = logging.getLogger("tocsin.executor")
_STEP_SECONDS: Final = 1.0
_OWN_STEP_SECONDS: Final = 5.0
"""Time between two steps of who acts on its own host alone: each host has such a process."""
_COMMAND_SECONDS: Final = 15.0
"""Most time of one command or call on a target; less than the part of a lease that an effect may take."""
_STRATEGIES: Final = ("store-only", "execute")


@dataclass(frozen=True, slots=True)
class TargetEntry:
    """A system on which actions can be done.

    Attributes:
        text: one line of help.
        add_arguments: adds its own flags.
        make: returns the target for the flags; raises ConfigError for a flag that cannot be used.
        make_turn: returns what says which of several replicas acts; None: there is one process of each name.
        role: role of its credential; a ``checker`` acts on the host alone whose name its credential has.
    """

    text: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    make: Callable[[argparse.Namespace, SignedActions], TargetSystem]
    make_turn: Callable[[argparse.Namespace], Turn | None] = lambda _args: None
    role: Role = Role.EXECUTOR


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    names = parser.add_subparsers(dest="target", metavar="NAME", required=True)
    for name, entry in TARGETS.items():
        one = names.add_parser(name, help=entry.text, description=entry.text)
        one.add_argument("--cluster", action="append", metavar="NAME", help="acts in this cluster (default: default)")
        text = f"public keys of controllers [env: TOCSIN_CONTROLLER_KEYS; default: {PUBLIC_FILE} in the data folder]"
        default = os.environ.get("TOCSIN_CONTROLLER_KEYS", "")
        one.add_argument("--controller-keys", metavar="FILE", default=default, help=text)
        text = "serve /metrics, /healthz and /readyz there, '': nowhere [env: TOCSIN_METRICS_LISTEN; default: nowhere]"
        default = os.environ.get("TOCSIN_METRICS_LISTEN", "")
        one.add_argument("--metrics-listen", metavar="HOST:PORT", default=default, help=text)
        entry.add_arguments(one)
        add_engine_arguments(one, (entry.role,))
        add_kafka_arguments(one, text="exchange over the topics of these brokers, not with an engine (docs/actions.md)")
        add_log_arguments(one)


def run(args: argparse.Namespace) -> int:
    """Carry out actions until SIGTERM or Ctrl-C, say what is still to be said, and return the exit status 0.

    Raises:
        ConfigError: a flag is missing or cannot be used.
        CredentialError: a file of credentials cannot be used.
    """
    set_up_logs(args)
    turn = TARGETS[args.target].make_turn(args)
    client = client_of(args, turn)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    pages = _pages(args.metrics_listen, client)
    try:
        work(client, stop, turn, _OWN_STEP_SECONDS if TARGETS[args.target].role is Role.CHECKER else _STEP_SECONDS)
    finally:
        if pages is not None:
            pages.close()
    return 0


def work(
    client: ExecutorClient, stop: threading.Event, turn: Turn | None = None, step_seconds: float = _STEP_SECONDS
) -> None:
    """Make steps until ``stop``, in this replica's turn; then say what is still to be said, once."""
    _LOG.info("the executor is ready", extra={"executor": client.name})
    while not stop.is_set():
        if turn is None or turn.may_speak():
            client.step()
        stop.wait(step_seconds)
    if turn is None or turn.may_speak():
        client.exchange()
    if turn is not None:
        turn.give_up()
    _LOG.info("the executor ended in order", extra={"executor": client.name})


def client_of(args: argparse.Namespace, turn: Turn | None = None) -> ExecutorClient:
    """Return the executor that the flags describe; its effects are made in this replica's turn only.

    Raises:
        ConfigError: a flag is missing or cannot be used.
        CredentialError: a file of credentials cannot be used.
    """
    from tocsin.pipeline.actions.executors.client import ExecutorClient, ExecutorKeys
    from tocsin.pipeline.actions.executors.core import ExecutorConfig
    from tocsin.pipeline.actions.executors.signed_actions import SignedActions
    from tocsin.pipeline.actions.executors.turns import TurnTarget
    from tocsin.pipeline.identity.action_signatures import AckSigner, executor_name
    from tocsin.pipeline.identity.message_signatures import SigningKeyFile

    role = TARGETS[args.target].role
    credential, channel = signer_of(args, role), _channel(args, role)
    if credential is None or channel is None:
        must = f"the engine's address, or --kafka, with --token-file (tocsin token issue NAME --role {role.value})"
        raise ConfigError("--engine", args.engine, must)
    clusters = list(dict.fromkeys(args.cluster or ["default"]))
    if "" in clusters:
        raise ConfigError("--cluster", "", "the name of a cluster")
    if credential.name == ANY_NAME:
        raise ConfigError("--token-file", args.token_file, "a credential with a name: acks are said in it")
    own = SigningKeyFile(args.token_file, role) if args.token_file else None
    keys = ExecutorKeys(AckSigner(credential).follow(own), controller_keys(args.controller_keys))
    signed = SignedActions()
    target = TARGETS[args.target].make(args, signed)
    if turn is not None:
        target = TurnTarget(target, turn)
    hosts = frozenset({credential.name} if role is Role.CHECKER else ())
    configs = [ExecutorConfig(cluster, executor_name(credential), target.kinds, hosts) for cluster in clusters]
    return ExecutorClient(configs, channel, keys, target, time.time_ns, signed)


def _channel(args: argparse.Namespace, role: Role) -> EngineChannel | None:
    """Return what exchanges actions: the topics, or an engine; None: neither is named."""
    if not is_over_kafka(args):
        return reader_of(args, (role,))
    from tocsin.pipeline.kafka.action_exchange import KafkaExchange

    return KafkaExchange(kafka_settings_of(args), args.topic_prefix)


def controller_keys(named: str) -> ActionKeys:
    """Return what checks actions against a file of controllers' public keys, by default that of the data folder.

    The file is read again when it changes.

    Raises:
        ConfigError: the file holds none.
        CredentialError: the file cannot be read.
    """
    from tocsin.pipeline.identity.key_file import ActionKeys

    path = Path(named) if named else data_folder() / PUBLIC_FILE
    found = ActionKeys(path)
    if not found.now().key_ids:
        raise ConfigError("--controller-keys", str(path), f"a file with a public key of role {Role.CONTROLLER.value}")
    return found


def _pages(address: str, client: ExecutorClient) -> MetricsPage | None:
    """Serve the metrics, None: nowhere."""
    if not address:
        return None
    from tocsin.collectors.metrics_page import MetricsPage
    from tocsin.pipeline.identity.key_file import ActionKeys
    from tocsin.pipeline.identity.key_trouble import AnyKeyFile, key_file_families

    def families() -> list[Family]:
        believed, own = client.keys.checker, client.keys.signer.key_file
        files: list[AnyKeyFile] = [believed] if isinstance(believed, ActionKeys) else []
        return [*client.families(), *key_file_families([*files, *([] if own is None else [own])])]

    def health() -> tuple[bool, str]:
        return True, "runs"

    def ready() -> tuple[bool, str]:
        return bool(client.is_connected), "the engine answers" if client.is_connected else "the engine does not answer"

    page = MetricsPage(address, families, health, ready)
    page.start()
    return page


def _slurm_arguments(parser: argparse.ArgumentParser) -> None:
    text = "user as whom scontrol runs, as Slurm shows it in reasons (default: this user)"
    parser.add_argument("--slurm-user", metavar="NAME", default="", help=text)
    text = "a host and its node in each line, where Slurm's names do not say so [env: TOCSIN_NODE_MAP]"
    parser.add_argument("--node-map", metavar="FILE", default=os.environ.get("TOCSIN_NODE_MAP", ""), help=text)
    text = "folder of scontrol, squeue and sinfo (default: on the PATH)"
    parser.add_argument("--slurm-bin", metavar="DIR", default="", help=text)


def _slurm(args: argparse.Namespace, _signed: SignedActions) -> TargetSystem:
    from tocsin.pipeline.actions.executors.commands import Programs
    from tocsin.pipeline.actions.executors.slurm import SlurmTarget, SlurmTargetConfig
    from tocsin.pipeline.actions.executors.slurm_cluster import ENVIRONMENT, SlurmCluster
    from tocsin.pipeline.actions.executors.slurm_nodes import read_node_map

    nodes = read_node_map(args.node_map) if args.node_map else {}
    cluster = SlurmCluster(Programs(_COMMAND_SECONDS, ENVIRONMENT, args.slurm_bin))
    return SlurmTarget(SlurmTargetConfig(args.slurm_user or getpass.getuser(), node_of_host=nodes), cluster)


def _kubernetes_arguments(parser: argparse.ArgumentParser) -> None:
    text = "file with address and credentials of the API server (default: the pod's account, else as kubectl finds it)"
    parser.add_argument("--kubeconfig", metavar="FILE", default="", help=text)
    parser.add_argument("--context", metavar="NAME", default="", help="context in that file (default: its current one)")
    text = "a host and its node in each line, where the label kubernetes.io/hostname does not say so"
    text += " [env: TOCSIN_NODE_MAP]"
    parser.add_argument("--node-map", metavar="FILE", default=os.environ.get("TOCSIN_NODE_MAP", ""), help=text)
    text = "Lease by which one of several replicas acts, '': there is one process only (default: %(default)s)"
    parser.add_argument("--lease", metavar="NAMESPACE/NAME", default="tocsin/tocsin-executor-kubernetes", help=text)


def _kubernetes_lease(args: argparse.Namespace) -> Turn | None:
    from tocsin.pipeline.actions.executors.kubernetes_api import KubernetesApi, settings_of
    from tocsin.pipeline.actions.executors.kubernetes_lease import KubernetesLease, LeaseSettings

    namespace, _, name = args.lease.partition("/")
    if not args.lease:
        return None
    if not namespace or not name or "/" in name:
        raise ConfigError("--lease", args.lease, "NAMESPACE/NAME")
    api = KubernetesApi(settings_of(args.kubeconfig, args.context), _COMMAND_SECONDS / 3)
    holder = f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"
    return KubernetesLease(LeaseSettings(namespace, name, holder), api, time.monotonic_ns)


def _kubernetes(args: argparse.Namespace, _signed: SignedActions) -> TargetSystem:
    from tocsin.pipeline.actions.executors.kubernetes import KubernetesTarget, KubernetesTargetConfig
    from tocsin.pipeline.actions.executors.kubernetes_api import KubernetesApi, settings_of
    from tocsin.pipeline.actions.executors.kubernetes_cluster import KubernetesCluster
    from tocsin.pipeline.actions.executors.kubernetes_devices import DeviceRules
    from tocsin.pipeline.actions.executors.slurm_nodes import read_node_map

    nodes = read_node_map(args.node_map) if args.node_map else {}
    api = KubernetesApi(settings_of(args.kubeconfig, args.context), _COMMAND_SECONDS / 3)
    settings = KubernetesTargetConfig(node_of_host=nodes)
    return KubernetesTarget(settings, KubernetesCluster(api, time.time_ns), DeviceRules(api))


def _nvsentinel_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--connector",
        metavar="ADDRESS",
        default="unix:///var/run/nvsentinel/nvsentinel.sock",
        help="gRPC address of NVSentinel's platform connector (default: %(default)s)",
    )
    text = "health_event.proto of the release that runs here; one without STORE_ONLY is refused"
    parser.add_argument("--proto", metavar="FILE", default="", help=text)
    text = "add each event that was taken to this file, too, a CloudEvents envelope a line (default: no file)"
    parser.add_argument("--envelope-to", metavar="FILE", default="", help=text)
    text = "what NVSentinel may do with the events (default: store-only: keep and export them)"
    parser.add_argument("--strategy", choices=_STRATEGIES, default="store-only", help=text)


def _nvsentinel(args: argparse.Namespace, _signed: SignedActions) -> TargetSystem:
    from tocsin.pipeline.actions.executors.nvsentinel import EnvelopeFile, NvSentinelConfig, NvSentinelTarget
    from tocsin.pipeline.actions.executors.nvsentinel_events import EventSettings
    from tocsin.pipeline.actions.executors.nvsentinel_peer import GrpcConnector, check_release
    from tocsin.schemas.formats.nvsentinel import ProcessingStrategy

    if not args.proto:
        raise ConfigError("--proto", "", "health_event.proto of the NVSentinel that runs here")
    try:
        check_release(Path(args.proto).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("--proto", args.proto, f"a file that can be read ({error})") from error
    may_act = args.strategy == "execute"
    strategy = ProcessingStrategy.EXECUTE_REMEDIATION if may_act else ProcessingStrategy.STORE_ONLY
    connector = GrpcConnector(args.connector, _COMMAND_SECONDS)
    envelopes = EnvelopeFile(Path(args.envelope_to)) if args.envelope_to else None
    return NvSentinelTarget(NvSentinelConfig(EventSettings(strategy)), connector, envelopes)


def _job_arguments(parser: argparse.ArgumentParser) -> None:
    text = "where the job controller listens: http://HOST:PORT or https://HOST:PORT (docs/job-controller.md)"
    parser.add_argument("--url", metavar="URL", default="", help=text)
    text = "PEM: authorities of the job controller's certificate (default: the system's)"
    parser.add_argument("--job-ca", metavar="FILE", default="", help=text)


def _job(args: argparse.Namespace, signed: SignedActions) -> TargetSystem:
    from tocsin.pipeline.actions.executors.job_controller import HttpJobController, JobControllerTarget

    if not args.url.startswith(("http://", "https://")):
        raise ConfigError("--url", args.url, "the job controller's address, http://HOST:PORT or https://HOST:PORT")
    controller = HttpJobController(args.url, ca_file=args.job_ca, limit_seconds=_COMMAND_SECONDS / 3)
    return JobControllerTarget(controller, signed)


TARGETS: Final[Mapping[str, TargetEntry]] = MappingProxyType(
    {
        "slurm": TargetEntry("drain, evict, restart and reboot on a Slurm cluster", _slurm_arguments, _slurm),
        "kubernetes": TargetEntry(
            "drain and evict on a Kubernetes cluster", _kubernetes_arguments, _kubernetes, _kubernetes_lease
        ),
        "nvsentinel": TargetEntry("hand actions on nodes to NVSentinel", _nvsentinel_arguments, _nvsentinel),
        "preflight": TargetEntry("check machines under load", add_preflight_arguments, preflight_target),
        "own-host": TargetEntry(
            "check this host alone under load", add_own_host_arguments, preflight_target, role=Role.CHECKER
        ),
        "job": TargetEntry("restart, evict and rollback by the site's own job controller", _job_arguments, _job),
    }
)
"""Name on the command line -> the system."""
