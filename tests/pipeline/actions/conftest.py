"""Leaves one guard out of every chain where ``tests.tools.mutants`` asks for it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tocsin.pipeline.actions.chain import GuardChain
from tocsin.pipeline.incidents.maintenance import MaintenanceBook


@pytest.fixture(autouse=True, scope="session")
def _one_guard_less() -> Iterator[None]:
    name = os.environ.get("TOCSIN_TEST_WITHOUT_GUARD", "")
    if not name:
        yield
        return
    build = GuardChain.__init__

    def build_without(chain: GuardChain, maintenance: MaintenanceBook) -> None:
        build(chain, maintenance)
        chain.guards = [guard for guard in chain.guards if guard.name != name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GuardChain, "__init__", build_without)
        yield
