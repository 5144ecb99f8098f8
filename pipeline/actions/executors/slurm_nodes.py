"""On which node of Slurm a host is: the agent's name of a machine and Slurm's may differ.

An agent calls its machine as the machine calls itself (``tocsin agent --host``), often with its domain. Slurm knows
a machine by ``NodeHostName``, the first part of that name, and calls its node ``NodeName``, which may be another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tocsin.pipeline.actions.executors.slurm_cluster import SlurmCluster, is_node_name
from tocsin.schemas.actions import Action
from tocsin.schemas.errors import ConfigError, TargetRefusedError

_WORDS_OF_A_LINE = 2


class NodeNames:
    """Finds the node of a host."""

    def __init__(self, cluster: SlurmCluster, known: Mapping[str, str] | None = None) -> None:
        """Ask nothing yet.

        Args:
            cluster: asks Slurm.
            known: names of nodes by host, as the site's administrators wrote them down; they win.
        """
        self._cluster = cluster
        self._known = dict(known or {})

    def on_nodes(self, action: Action) -> Action:
        """Return an action with the names of nodes in place of its hosts.

        Raises:
            TargetRefusedError: a host has several nodes, and none has its name; or it can be no node's name.
            TargetError: Slurm is away, or its answer cannot be read.
        """
        nodes = [replace(one, host=self.node_of(one.host)) for one in action.target.machines]
        return replace(action, target=replace(action.target, machines=tuple(sorted(nodes))))

    def node_of(self, host: str) -> str:
        """Return the name of the node that a host is; the host's own name where Slurm knows no such machine.

        A name that was written down counts first, then ``NodeHostName``, then ``NodeAddr``, then ``NodeName``; of each
        the whole name comes before its part up to the first dot.

        Raises:
            TargetRefusedError: several nodes are on this host, and none has its name; or it can be no node's name.
            TargetError: Slurm is away, or its answer cannot be read.
        """
        if host in self._known:
            return self._known[host]
        short = host.partition(".")[0]
        for name in dict.fromkeys((host, short)):
            node = self._cluster.node(name)
            if node is not None and node.host_name == name:
                return name
        return self._listed(host, short)

    def _listed(self, host: str, short: str) -> str:
        """Return the node of a host whose name is not that of its node."""
        machines = self._cluster.machines()
        for wanted in dict.fromkeys((host, short)):
            for fields in (
                [(one.host_name, one.name) for one in machines],
                [(one.address, one.name) for one in machines],
            ):
                found = sorted({name for value, name in fields if value == wanted})
                if wanted in found or len(found) == 1:
                    return wanted if wanted in found else found[0]
                if found:
                    some = ", ".join(found[:3])
                    raise TargetRefusedError(f"{host} has {len(found)} nodes ({some}): --node-map can name one of them")
        names = {one.name for one in machines}
        return next((name for name in (host, short) if name in names), host)


def read_node_map(path: str) -> Mapping[str, str]:
    """Read a file with a host and its node in each line; ``#`` begins a comment.

    Raises:
        ConfigError: the file cannot be read, or a line of it is wrong; it names the line.
    """
    found: dict[str, str] = {}
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("--node-map", path, f"a file that can be read ({error})") from error
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != _WORDS_OF_A_LINE or not is_node_name(words[1]):
            raise ConfigError("--node-map", f"{path}:{number}: {line.strip()}", "HOST NODE: one host and its one node")
        if found.setdefault(words[0], words[1]) != words[1]:
            raise ConfigError("--node-map", f"{path}:{number}: {line.strip()}", f"one node of the host {words[0]}")
    return found
