"""What the executor tells the controller of all nodes: which UID each has, who cordoned it, and who took that back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from tocsin.pipeline.actions.executors.kubernetes_cluster import KubernetesCluster
from tocsin.pipeline.actions.executors.kubernetes_marks import CORDON, Mark, marks_on
from tocsin.pipeline.actions.executors.kubernetes_text import KubeNode
from tocsin.schemas.action_events import (
    ActionEvent,
    CordonOwner,
    CordonSeen,
    HumanChange,
    HumanChangeKind,
    MachineFacts,
)
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action
from tocsin.schemas.records import NS_PER_SECOND

_SWEEP_NS: Final = 30 * NS_PER_SECOND
_AGAIN_NS: Final = 300 * NS_PER_SECOND
"""When an unchanged fact is said again."""
_MOST_TOLD: Final = 200
"""Most facts of one call, so that a large cluster does not push out what else waits to be said."""
_MOST_UNDONE: Final = 1000


class NodeWatch:
    """Reads all nodes now and then, and keeps what is to be said of them."""

    def __init__(self, cluster: KubernetesCluster, host_of_node: Mapping[str, str]) -> None:
        """Ask nothing yet.

        Args:
            cluster: asks Kubernetes.
            host_of_node: the host's name in verdicts by node, where they differ.
        """
        self._cluster = cluster
        self._host_of_node = host_of_node
        self._swept_ns: dict[str, int] = {}
        self._told: dict[tuple[str, str], tuple[tuple[str, CordonOwner], int]] = {}
        """(cluster, node) -> what was said of it, and when."""
        self._given_back: set[tuple[str, str]] = set()
        """(node, action) that somebody uncordoned."""
        self._undone: dict[str, Action] = {}
        self._waiting: deque[ActionEvent] = deque()
        self._left: dict[str, Action] = {}

    def on_action(self, action: Action) -> None:
        """Take one change of an action. What is undone must have left nothing on a node."""
        if action.state is ActionState.UNDONE:
            self._undone[action.action_id] = action
            while len(self._undone) > _MOST_UNDONE:
                self._undone.pop(next(iter(self._undone)))
        else:
            self._undone.pop(action.action_id, None)

    def facts(self, cluster: str) -> list[ActionEvent]:
        """Return what is to be said now; the nodes are read when that is due.

        Args:
            cluster: the cluster's name in verdicts.

        Raises:
            TargetError: the API server is away, or its answer cannot be read.
        """
        now_ns = self._cluster.now_ns()
        if cluster not in self._swept_ns or now_ns - self._swept_ns[cluster] >= _SWEEP_NS:
            self._swept_ns[cluster] = now_ns
            for node in self._cluster.nodes():
                self._waiting.extend(self._news(cluster, node, now_ns))
        return [self._waiting.popleft() for _ in range(min(_MOST_TOLD, len(self._waiting)))]

    def take_leftovers(self) -> list[Action]:
        """Return the undone actions of which the last reading found a mark on a node: somebody uncordoned it."""
        found = list(self._left.values())
        self._left.clear()
        return found

    def _news(self, cluster: str, node: KubeNode, now_ns: int) -> Iterator[ActionEvent]:
        """What changed on one node, or was not said for long."""
        marks = marks_on(node)
        hosts = self._hosts_of(node, marks.values())
        ours = [name for name, mark in marks.items() if CORDON in mark.did]
        self._left.update({name: self._undone[name] for name in marks if name in self._undone})
        owner = CordonOwner.NOBODY
        if node.is_cordoned:
            owner = CordonOwner.TOCSIN if ours and node.is_cordon_ours else CordonOwner.OTHER
        for name in ours:
            back = node.name, name
            if node.is_cordoned:
                self._given_back.discard(back)
            elif back not in self._given_back:
                self._given_back.add(back)
                for host in hosts:
                    yield HumanChange(cluster, host, HumanChangeKind.UNCORDONED, "", now_ns)
        told, told_ns = self._told.get((cluster, node.name), (None, 0))
        if told != (node.uid, owner) or now_ns - told_ns >= _AGAIN_NS:
            self._told[cluster, node.name] = (node.uid, owner), now_ns
            for host in hosts:
                yield MachineFacts(cluster, host, now_ns, node_uid=node.uid)
                yield CordonSeen(cluster, host, owner, now_ns)

    def _hosts_of(self, node: KubeNode, marks: Iterable[Mark]) -> list[str]:
        """Return the names that a node's machine may have in verdicts: what was written down, or all that are known.

        These are the name in the marks of actions on it, the node's name, and its label ``kubernetes.io/hostname``.
        """
        known = self._host_of_node.get(node.name)
        names = [known] if known else [*(mark.host for mark in marks), node.name, node.host_label]
        return [name for name in dict.fromkeys(names) if name]
