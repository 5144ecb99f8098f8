"""Parts that follow the verdicts: they see each line, add lines of their own, and come back after a restart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.pipeline.runtime.embedded.restarts import Life
from tocsin.pipeline.lab.testing import FakeJob
from tocsin.pipeline.runtime.embedded.control_socket import Handler
from tocsin.pipeline.runtime.embedded.supervised_thread import SupervisedThread
from tocsin.schemas.formats.prometheus_text import Family, Sample
from tocsin.schemas.verdicts import Verdict, VerdictState


class Counting:
    """Counts open verdicts, and answers each with one of its own."""

    name = "counting"

    def __init__(self, *, raises: bool = False) -> None:
        self.opened: list[str] = []
        self.is_started = self.is_closed = False
        self._raises = raises

    def on_verdicts(self, verdicts: Sequence[Verdict], now_ns: int) -> Sequence[Verdict]:
        if self._raises:
            raise RuntimeError("broken")
        own = {*self.opened, *(f"f{one[1:]}" for one in self.opened)}
        new = [one for one in verdicts if one.state is VerdictState.OPEN and one.verdict_id not in own]
        self.opened += [one.verdict_id for one in new]
        return [replace(one, verdict_id=f"f{one.verdict_id[1:]}") for one in new]

    def start(self) -> None:
        self.is_started = True

    def close(self) -> None:
        self.is_closed = True

    def threads(self) -> Sequence[SupervisedThread]:
        return ()

    def status(self) -> Mapping[str, Any]:
        return {"opened": len(self.opened)}

    def families(self) -> Sequence[Family]:
        return [Family("opened", "counter", "Opened.", (Sample({}, len(self.opened)),))]

    def handlers(self) -> Mapping[str, Handler]:
        return {"opened": lambda _request: {"ids": self.opened}}

    def snapshot(self) -> dict[str, bytes]:
        return {"ids": ",".join(self.opened).encode()}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        self.opened = [one for one in parts.get("ids", b"").decode().split(",") if one]


class Followed(Life):
    """An engine's life with followers; each process has new ones."""

    def make(self) -> list[Counting]:
        return [Counting(raises=True), Counting()]

    def attached(self) -> None:
        self.followers = self.make()
        self.followers[0].name = "broken"
        for one in self.followers:
            self.service.attach(one)


def _strike(job: FakeJob, second: int) -> None:
    if second == 20:
        job.kill(1)


def test_lines_of_followers_are_stored_and_a_broken_one_hurts_nobody(tmp_path: Path) -> None:
    life = Followed(tmp_path)
    life.run(30, lambda second: _strike(life.job, second))

    broken, counting = life.followers
    assert counting.is_started
    assert counting.opened
    stored = set(life.incidents())
    assert {f"f{one[1:]}" for one in counting.opened} < stored
    assert set(counting.opened) < stored
    assert life.client.call("opened")["ids"] == counting.opened
    assert life.client.call("status")["counting"] == {"opened": len(counting.opened)}
    assert life.service.failures["broken"] >= 30
    life.end()
    assert counting.is_closed
    assert broken.is_closed


def test_a_follower_goes_on_after_a_kill(tmp_path: Path) -> None:
    life = Followed(tmp_path)
    life.run(40, lambda second: _strike(life.job, second))
    opened = life.followers[1].opened
    life.kill()
    life.start()
    life.run(5)

    assert opened
    assert life.followers[1].opened == opened
    life.end()
