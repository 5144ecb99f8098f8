from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.collectors.fakes import Agent
from tocsin.collectors import hook


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    """A fake agent, and this process's hook that speaks to it as rank 3 of a job."""
    agent = Agent(tmp_path / "agent.sock")
    hook.init("job", 3, "east", agent_socket=agent.path)
    yield agent
    hook.close()
    agent.close()
