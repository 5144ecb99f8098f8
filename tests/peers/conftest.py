"""Real peers, started for the tests: ``make test-peers``. A peer that is missing is a failure, never a skip."""

from __future__ import annotations

import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.peers.slurm import Slurm, running_slurm
from tests.pipeline.alerts.adapters.receiver import Receiver, Reply, receiving, refused_port
from tests.pipeline.waiting import until
from tests.tools import peers

ALERTMANAGER = """
route:
  receiver: webhook
  group_by: ['...']
  group_wait: 100ms
  group_interval: 500ms
  repeat_interval: 4h
receivers:
  - name: webhook
    webhook_configs:
      - url: {url}
        send_resolved: true
"""


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return int(answer.status) == 200
    except (urllib.error.URLError, OSError):
        return False


@contextmanager
def running(name: str, flags: list[str], ready_url: str, log: Path) -> Iterator[None]:
    """Run one of the peers until the block ends."""
    assert not peers.missing(), "make peers fetches them"
    with log.open("wb") as output:
        process = subprocess.Popen([peers.program(name), *flags], stdout=output, stderr=output)
        try:
            until(lambda: answers(ready_url) or process.poll() is not None, 60)
            assert process.poll() is None, log.read_text()
            yield
        finally:
            process.terminate()
            process.wait(60)


def _skipped_count(config: pytest.Config) -> int:
    reporter = config.pluginmanager.getplugin("terminalreporter")
    return len(reporter.stats.get("skipped", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if terminalreporter.config.option.markexpr == "peers":
        terminalreporter.write_line(f"peers: {_skipped_count(terminalreporter.config)} skipped")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A skipped test is a failure here."""
    if session.config.option.markexpr == "peers" and _skipped_count(session.config) and not session.exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def webhook() -> Iterator[Receiver]:
    """Receives what Alertmanager tells."""
    with receiving(lambda _request: Reply()) as server:
        yield server


@pytest.fixture
def alertmanager(tmp_path: Path, webhook: Receiver) -> Iterator[str]:
    """A real Alertmanager that tells the webhook; its address."""
    config = tmp_path / "am.yml"
    config.write_text(ALERTMANAGER.format(url=webhook.url))
    port = refused_port()
    flags = [
        f"--config.file={config}",
        f"--storage.path={tmp_path / 'am'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    ]
    url = f"http://127.0.0.1:{port}"
    with running("prometheus-alertmanager", flags, f"{url}/-/ready", tmp_path / "am.log"):
        yield url


@pytest.fixture(scope="module")
def started_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A real Slurm of eight nodes, started once for each module: none begins with what another one did to it."""
    with running_slurm(tmp_path_factory.mktemp("slurm")) as slurm:
        yield slurm


@pytest.fixture
def slurm(started_slurm: Slurm) -> Iterator[Slurm]:
    """A real Slurm of eight idle nodes without jobs."""
    yield started_slurm
    started_slurm.reset()
