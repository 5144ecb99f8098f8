"""H1: an engine that is killed loses nothing, closes nothing and accuses nobody for its own absence."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.attacks.registry import Outcome, attack
from tests.chaos.live_round import LiveConfig, run_live_round
from tests.pipeline.runtime.embedded.restarts import Life, wait_written
from tocsin.schemas.verdicts import VerdictState


def _reported(folder: Path, kills: tuple[int, ...]) -> Life:
    """A rank is killed at second 15; the engine ends without a word at these seconds and starts again."""
    life = Life(folder)

    def on_second(second: int) -> None:
        if second == 15:
            life.job.kill(3)
        if second in kills:
            life.kill()
            life.start()

    life.run(25, on_second)
    wait_written([life])
    life.end()
    return life


@attack("H1", "killed with an open incident")
def killed_with_an_open_incident() -> Outcome:
    with tempfile.TemporaryDirectory() as name:
        whole, killed = Path(name) / "a", Path(name) / "b"
        whole.mkdir()
        killed.mkdir()
        kills = (14, 15, 16, 18, 20)
        wanted, found = _reported(whole, ()), _reported(killed, kills)
        expired = [one for one in found.store.verdicts if one.state is VerdictState.EXPIRED]
        equal = (found.lines(), found.actions()) == (wanted.lines(), wanted.actions())
        effect = f"{len(found.lines())} lines, {len(wanted.lines())} undisturbed, {len(expired)} expired"
        return Outcome(len(kills), effect, held=bool(wanted.lines()) and equal and not expired)


@attack("H1", "a real engine killed around onsets", slow=True)
def a_real_engine_killed_around_onsets() -> Outcome:
    with tempfile.TemporaryDirectory() as name:
        reported = run_live_round(LiveConfig(seed=4, faults_count=9, kills_count=10), Path(name))
        problems = reported.problems[:1] or "equal"
        effect = f"{reported.near_count} near an onset; longest delay {reported.delay_seconds:.1f} s; {problems}"
        return Outcome(reported.kills_count, effect[:500], held=not reported.problems and bool(reported.said))
