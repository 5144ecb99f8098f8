"""Fixtures for all tests."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.clickhouse_fixtures import certificates as certificates  # noqa: PLC0414  # re-exported: a fixture
from tests.clickhouse_fixtures import clickhouse_endpoint as clickhouse_endpoint  # noqa: PLC0414  # re-exported
from tests.clickhouse_fixtures import old_server as old_server  # noqa: PLC0414  # re-exported: a fixture
from tests.clickhouse_fixtures import private_endpoint as private_endpoint  # noqa: PLC0414  # re-exported: a fixture
from tests.flink_fixtures import flink_cluster as flink_cluster  # noqa: PLC0414  # re-exported: a fixture
from tests.flink_fixtures import stream as stream  # noqa: PLC0414  # re-exported: a fixture
from tests.kafka_fixtures import kafka_broker as kafka_broker  # noqa: PLC0414  # re-exported: a fixture
from tests.kafka_fixtures import private_broker as private_broker  # noqa: PLC0414  # re-exported: a fixture
from tests.kafka_fixtures import topic_prefix as topic_prefix  # noqa: PLC0414  # re-exported: a fixture
from tests.workers import WholeFiles, longest_first, mark_gate

ROOT = Path(__file__).resolve().parents[1]

# deadline: this machine may be shared. derandomize: CI must say the same of the same commit twice.
settings.register_profile("tocsin", deadline=None, derandomize=bool(os.environ.get("CI")), print_blob=True)
settings.load_profile("tocsin")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> WholeFiles:
    """Which process runs what."""
    return WholeFiles(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In random order, but for what takes longest."""
    mark_gate(items)
    longest_first(items)


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """Commands set the package's logger up; the next test finds it as it was."""
    logger = logging.getLogger("tocsin")
    handlers, level, propagate = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.propagate = handlers, propagate
    logger.setLevel(level)


@pytest.fixture(scope="session")
def repo_root() -> Path:
    """The root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Files of real systems, which do not live in the repository; skips where they are absent."""
    named = os.environ.get("TOCSIN_SHARED_DATA")
    folder = Path(named) if named else ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no shared data at {folder}: set TOCSIN_SHARED_DATA to the folder that holds them")
    return folder
