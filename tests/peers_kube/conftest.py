"""A real API server for the tests: ``make test-peers-kube``. One that is missing is a failure, never a skip."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.peers_kube.server import running_api
from tests.pipeline.actions.executors.kube_world import KubeWorld


@pytest.fixture(scope="session")
def started_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeWorld]:
    """A real API server, started once, in which the executor has the rights of ``deploy/``."""
    with running_api(tmp_path_factory.mktemp("kube")) as world:
        yield world


@pytest.fixture
def world(started_api: KubeWorld) -> Iterator[KubeWorld]:
    """A real API server without nodes and pods."""
    started_api.clock_ns[0] = time.time_ns()
    yield started_api
    started_api.clear()
