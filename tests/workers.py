"""How ``make test`` spreads tests over processes (pytest-xdist): files stay whole, and one process has all of Flink."""

from __future__ import annotations

from typing import Final

import pytest
from xdist.scheduler import LoadFileScheduling

_CLUSTER = ("tests/chaos/", "tests/cli/cluster/", "tests/pipeline/runtime/flink/test_rest.py")
"""They start a Flink: a second one beside it takes the cores that both need, and tests come to their time limit."""

GATE: Final = (
    *_CLUSTER,
    "tests/attacks/",
    "tests/cli/test_alerts_run.py",
    "tests/cli/test_controller.py",
    "tests/cli/test_controller_actions.py",
    "tests/cli/test_kubernetes_kafka.py",
    "tests/cli/test_notes_kafka.py",
    "tests/cli/drill/test_act.py",
    "tests/cli/drill/test_drill.py",
    "tests/cli/test_serve_clickhouse.py",
    "tests/cli/test_sink.py",
    "tests/collectors/transport/test_kafka",
    "tests/pipeline/kafka/",
    "tests/pipeline/lab/training/test_bilstm.py",
    "tests/walks/",
)
"""What ``make test`` leaves to ``make test-gate``: real jobs, servers and attacks, which take most of the time."""

GATE_SECONDS: Final = 400
"""Seconds after which a test of the gate has hung, where it names none: a busy machine starts servers slowly."""

_LONGEST: Final = (
    "tests/cli/drill/",
    "tests/cli/test_sink.py",
    "tests/collectors/transport/test_kafka_sink.py",
    "tests/pipeline/detect/peers/",
    "tests/pipeline/lab/training/",
    "tests/pipeline/recording/test_outside.py",
    "tests/pipeline/recording/test_recorder.py",
    "tests/pipeline/recording/test_replay.py",
    "tests/pipeline/runtime/flink/test_driver.py",
    "tests/pipeline/runtime/flink/test_model_log.py",
    "tests/scenarios/",
    "tests/walks/",
)
"""Files of 20 s and more."""

PEERS: Final = "tests/peers/"
"""Tests against real programs of others, which ``make peers`` fetches; only ``make test-peers`` runs them."""
PEERS_KUBE: Final = "tests/peers_kube/"
"""Tests against a real API server, which ``make peers-kube`` builds; only ``make test-peers-kube`` runs them."""


class WholeFiles(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """A file's tests run in one process, which makes what they share once; so do all that start a Flink."""

    def _split_scope(self, nodeid: str) -> str:
        return _CLUSTER[0] if needs_cluster(nodeid) else str(super()._split_scope(nodeid))


def needs_cluster(nodeid: str) -> bool:
    """Whether a test may start a Flink."""
    return nodeid.startswith(_CLUSTER)


def mark_gate(items: list[pytest.Item]) -> None:
    """Mark the tests of ``GATE``, ``PEERS`` and ``PEERS_KUBE``; a slow one stays slow."""
    for item in items:
        if item.nodeid.startswith(GATE):
            item.add_marker("gate")
        if item.get_closest_marker("gate") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(GATE_SECONDS))
        if item.nodeid.startswith(PEERS):
            item.add_marker("peers")
        if item.nodeid.startswith(PEERS_KUBE):
            item.add_marker("peers_kube")


def longest_first(items: list[pytest.Item]) -> None:
    """Those with a cluster begin, then the longest files; all others fill the processes up to the end, in their order.

    A long file that begins last leaves one process to itself while the others are done.
    """
    items.sort(key=lambda item: (not needs_cluster(item.nodeid), not item.nodeid.startswith(_LONGEST)))
