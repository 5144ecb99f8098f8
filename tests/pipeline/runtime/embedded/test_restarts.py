"""An engine that is killed and started again says what an undisturbed one says, no more, no less, by the same ids."""

from __future__ import annotations

import base64
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.pipeline.runtime.embedded.restarts import SECOND_NS, Life, wait_written
from tocsin.pipeline.core.slices import SliceBundle
from tocsin.pipeline.lab.testing import JobShape
from tocsin.pipeline.rca.evidence.silence import SilenceConfig, silent_hosts
from tocsin.pipeline.runtime.embedded.engine_output import EngineOutput
from tocsin.pipeline.runtime.job_pipeline import BundleResult, JobPipeline
from tocsin.schemas.errors import EngineError
from tocsin.schemas.records import Event, EventSource, Severity
from tocsin.schemas.verdicts import VerdictState
from tocsin.schemas.wire.codec import encode

FAULTS = ("freeze", "kill", "slow")


def _strike(life: Life, kind: str) -> None:
    job = life.job
    if kind == "slow":
        job.slow(3, "forward", 4.0)
    else:
        getattr(job, kind)(3)


def _story(life: Life, kind: str, kills: dict[int, int], *, heal: bool = False) -> None:
    """Twenty-five seconds of health, a fault, forty seconds; killed at these seconds, for so long each."""
    starts = {second + away: 1 for second, away in kills.items()}

    def on_second(second: int) -> None:
        if second in starts and not life.is_up:
            life.start()
        if second in kills and life.is_up:
            life.kill()
            if not kills[second]:
                life.start()
        if second == 25:
            _strike(life, kind)
        if heal and second == 70:
            life.job.slow(3, "forward", 1.0)

    life.run(90 if heal else 65, on_second)
    if not life.is_up:
        life.start()


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("kills", [{25: 1}, {26: 3}, {27: 0, 28: 2, 31: 1}, {24: 4, 40: 5, 55: 1}])
def test_killed_around_an_onset_nothing_is_lost_doubled_or_expired(
    tmp_path: Path, kind: str, kills: dict[int, int]
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    whole, killed = Life(tmp_path / "a"), Life(tmp_path / "b")
    _story(whole, kind, {})
    _story(killed, kind, kills)
    wait_written((whole, killed))

    assert whole.lines()
    assert killed.lines() == whole.lines()
    assert killed.incidents() == whole.incidents()
    assert killed.actions() == whole.actions()
    assert not any(one.state is VerdictState.EXPIRED for one in killed.store.verdicts)
    assert killed.starts == 1 + len(kills)
    whole.end()
    killed.end()


def test_twenty_kills_through_a_fault_that_heals(tmp_path: Path) -> None:
    """Each action is taken back in the row that proposed it, whoever proposed it."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    drawn = random.Random(5)
    kills = {second: drawn.randrange(3) for second in sorted(drawn.sample(range(3, 88), 20))}
    whole, killed = Life(tmp_path / "a"), Life(tmp_path / "b")
    _story(whole, "slow", {}, heal=True)
    _story(killed, "slow", kills, heal=True)
    wait_written((whole, killed))

    assert killed.lines() == whole.lines()
    assert killed.actions() == whole.actions()
    assert killed.standing() == whole.standing() == 0
    assert [one.state for one in killed.incidents().values()] == [VerdictState.RESOLVED]
    whole.end()
    killed.end()


def test_an_orderly_stop_keeps_all_too(tmp_path: Path) -> None:
    life = Life(tmp_path, JobShape())
    life.run(25)
    life.job.freeze(3)
    while not life.lines():
        life.run(1)
    before = life.lines()
    life.end()
    life.start()
    life.run(30)

    assert life.lines()[: len(before)] == before
    assert life.lines()[len(before) :], "it goes on: confirmed, under the same id"
    assert len(life.incidents()) == 1
    life.end()


def _killed_at(tmp_path: Path, seconds: int) -> Life:
    life = Life(tmp_path)
    life.run(25)
    life.job.freeze(3)
    life.run(seconds)
    wait_written([life])
    life.kill()
    return life


@pytest.mark.parametrize("name", ["snapshot-*.json", "parts-*.pack", "journal-*.log"])
def test_a_state_that_cannot_be_read_is_set_aside_and_closes_nothing(tmp_path: Path, name: str) -> None:
    life = _killed_at(tmp_path, 10)
    before = life.incidents()
    for path in (tmp_path / "state").glob(name):
        path.write_bytes(b"damaged" * 9)
    life.start()

    assert life.incidents() == before, "what was open stays open, in the database"
    assert [path.name for path in (tmp_path / "state" / "aside").iterdir()] == ["000001-state_unreadable"]
    status = life.client.call("status")
    assert [event["name"] for event in status["events"]][-1] == "state_unreadable"
    life.end()


def test_what_is_said_again_after_a_lost_state_has_rising_updates(tmp_path: Path) -> None:
    """The same fault has the same id: its old row must not hide the new ones."""
    life = _killed_at(tmp_path, 10)
    old = life.incidents()
    for path in (tmp_path / "state").iterdir():
        if path.is_file():
            path.unlink()
    life.start()
    assert life.service.memory.floors == {name: one.update for name, one in old.items()}
    first = replace(next(iter(old.values())), update=0, detected_ns=life.job.now_ns)
    for output in (first, replace(first, update=1)):
        life.service._output.follow_up(EngineOutput((output,), (), (), 1), life.job.now_ns)  # noqa: SLF001  # by hand
    wait_written([life])

    newest = old[first.verdict_id].update
    assert [line["update"] for line in life.lines()] == [newest + 1, newest + 2]
    assert life.incidents()[first.verdict_id].update == newest + 2
    life.end()
    life.start()
    life.run(1)
    life.end()
    life.start()  # with a state: what is known of before is part of it
    assert life.service.memory.floors[first.verdict_id] == newest + 2
    life.end()


def test_an_engine_that_was_away_for_longer_than_a_verdict_lives_begins_anew(tmp_path: Path) -> None:
    life = _killed_at(tmp_path, 10)
    before = life.incidents()
    life.job.now_ns += 700 * SECOND_NS
    life.kept.clear()
    life.start()

    assert life.service.engine.now_ns is None
    assert [path.name for path in (tmp_path / "state" / "aside").iterdir()] == ["000001-state_too_old"]
    assert life.incidents() == before
    life.run(180)  # nobody renews it: its own time is over
    wait_written([life])
    assert {one.state for name, one in life.incidents().items() if name in before} == {VerdictState.EXPIRED}
    assert all(state != "proposed" for key, (state, _) in life.actions().items() if key[0] in before)
    life.end()


def test_the_engine_s_own_absence_accuses_nobody(tmp_path: Path) -> None:
    """One host comes back late: that it was not heard while nobody listened is not its silence."""
    life = Life(tmp_path)
    life.run(40)
    life.kill()
    for _ in range(60):
        life.kept += [encode(record) for record in life.job.second() if record.host != "n03"]
    life.start()
    graph = life.service.engine.pipeline(life.service.engine.jobs()[0]).graph  # type: ignore[union-attr]  # it is known

    assert graph.hosts["n03"].unheard_until_ns == life.job.now_ns
    assert not silent_hosts(graph, life.job.now_ns, SilenceConfig())
    life.run(30)
    assert not life.lines()
    life.end()


def test_a_record_that_ends_the_engine_twice_is_a_dead_letter_and_the_job_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the interpreter cannot survive (here: an exception that nobody may catch) would end each next one, too."""
    life = Life(tmp_path)
    life.run(25)
    poison = life.job.now_ns + SECOND_NS // 2
    real = JobPipeline.on_bundle

    def deadly(self: JobPipeline, turn: SliceBundle) -> BundleResult:
        if any(record.ts_ns == poison for record in turn.fast.records):
            raise KeyboardInterrupt
        return real(self, turn)

    monkeypatch.setattr(JobPipeline, "on_bundle", deadly)
    job = life.service.engine.jobs()[0]
    data = encode(Event(job, "n00", poison, 0, EventSource.PROCESS, "poison", Severity.INFO, {}))
    life.service.engine.take(data)
    with pytest.raises(KeyboardInterrupt):
        life.run(5)
    life.kill()
    with pytest.raises(KeyboardInterrupt):
        life.start()
    life.kill()
    life.start()
    life.run(3)
    life.job.freeze(3)
    life.run(20)

    assert [line["cause"] for line in life.lines()][:1] == ["process_frozen"]
    assert life.service.failures["judged_at_two_ends"] > 0
    life.end()
    dead_letters = [json.loads(line) for line in (tmp_path / "dead-letters.jsonl").read_text().splitlines()]
    assert base64.b64encode(data).decode() in {
        dead_letter["data_base64"] for dead_letter in dead_letters if dead_letter["reason"] == "judged_at_two_ends"
    }


def test_a_second_engine_on_the_folder_is_refused(tmp_path: Path) -> None:
    life = Life(tmp_path)
    with pytest.raises(EngineError, match="in use by another engine"):
        life.start()
    life.starts -= 1
    life.end()
