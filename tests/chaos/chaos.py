"""``make chaos``: rounds of kills until each part was killed often enough; the incident tables must not show it.

``python -m tests.chaos.chaos [--kills 20] [--mode both] [--seed S] [--tally FILE]``: round after round, modes in turn.
``--rounds N`` ends after so many; ``--tally`` adds to what earlier runs did. ``--mode embedded``: ``tocsin serve``.
After the last round the sender of alerts and the controller are killed, then executors and the controller;
``--only alerts``, ``controller``, ``pages``: only one of the former, only both; ``--only actions``: only the latter.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.action_round import ActionRoundConfig, ActionsReported, run_action_round
from tests.chaos.action_site import ACTORS
from tests.chaos.agent_round import AGENT, AgentConfig, run_agent_round
from tests.chaos.broken import BROKEN
from tests.chaos.embedded_action_round import ROLES as EMBEDDED_ROLES
from tests.chaos.embedded_action_round import EmbeddedActionConfig, run_embedded_action_round
from tests.chaos.engine import servers
from tests.chaos.learned import Learned, add_learned_arguments, learned_of
from tests.chaos.live_round import LiveConfig, run_live_round
from tests.chaos.outcome import table_text
from tests.chaos.page_round import PageConfig, PageReported, run_page_round
from tests.chaos.page_site import ROLES
from tests.chaos.rounds import Reported, RoundConfig, run_round
from tests.chaos.up import COMPONENTS
from tocsin.cli.cluster.broker import Broker, BrokerConfig

ALL = (*COMPONENTS, AGENT)
MODES = {"at-least-once": (False,), "exactly-once": (True,), "both": (False, True)}
EMBEDDED = "embedded"
PAGES = "pages"
ACTIONS = "actions"


@dataclass
class Tally:
    """What all rounds did, by component.

    Attributes:
        kills: how often it was killed.
        rounds: in how many rounds.
        unequal: rounds that ended with another table.
        recovery_seconds: longest until the whole cluster worked again.
        seeds: of the rounds, with their mode.
    """

    kills: Counter[str] = field(default_factory=Counter)
    rounds: Counter[str] = field(default_factory=Counter)
    unequal: Counter[str] = field(default_factory=Counter)
    recovery_seconds: dict[str, float] = field(default_factory=dict)
    seeds: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path | None) -> Tally:
        if path is None or not path.exists():
            return cls()
        found = json.loads(path.read_text())
        return cls(
            Counter(found["kills"]),
            Counter(found["rounds"]),
            Counter(found["unequal"]),
            found["recovery_seconds"],
            found["seeds"],
        )

    def write(self, path: Path | None) -> None:
        if path is not None:
            path.write_text(json.dumps(vars(self), indent=1) + "\n")

    def add(self, reported: Reported, seed: str) -> None:
        """Count a round."""
        self.seeds.append(seed)
        self.kills += reported.counts
        for component in reported.counts:
            self.rounds[component] += 1
            self.unequal[component] += not reported.is_equal
        for component, seconds in reported.recovery_seconds.items():
            self.recovery_seconds[component] = max(self.recovery_seconds.get(component, 0.0), seconds)

    def text(self) -> str:
        """The table."""
        head = f"{'component':14} {'kills':>6} {'rounds':>7} {'longest recovery':>17}  tables"
        lines = []
        for name in ALL:
            longest = f"{self.recovery_seconds[name]:.0f} s" if name in self.recovery_seconds else "-"
            verdict = f"{self.unequal[name]} rounds differ" if self.unequal[name] else "equal"
            lines.append(f"{name:14} {self.kills[name]:6} {self.rounds[name]:7} {longest:>17}  {verdict}")
        return "\n".join([head, *lines])


def main() -> int:
    """Do rounds; 1 where a table differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="of each component, over all rounds")
    parser.add_argument("--kills-each-round", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=0, help="end after so many (default: when --kills is reached)")
    parser.add_argument("--mode", choices=(*MODES, EMBEDDED), default="both")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000, help="of the first round")
    parser.add_argument("--seconds", type=float, default=1200.0, help="of recording a round")
    parser.add_argument("--agent", action="store_true", help="only rounds that kill an agent's sink")
    parser.add_argument("--only", choices=(*ROLES, PAGES, ACTIONS), help="only a round that counts pages, or effects")
    parser.add_argument("--role", choices=ACTORS, action="append", help="with --only actions: whom to kill (all)")
    parser.add_argument("--without", choices=BROKEN, default="", help="with --only actions: leave that out, to see red")
    add_learned_arguments(parser)
    parser.add_argument("--tally", type=Path, help="a file that adds up runs")
    parser.add_argument("--folder", type=Path, help="keep all that is written there")
    args = parser.parse_args()
    if args.mode == EMBEDDED:
        return _embedded_actions(args) if args.only == ACTIONS else _embedded(args)
    if args.only == ACTIONS:
        return _actions(args)
    if args.only:
        return _pages(args, ROLES if args.only == PAGES else (args.only,))
    tally, done = Tally.read(args.tally), 0
    modes = MODES[args.mode]
    while done < args.rounds if args.rounds else min(tally.kills[name] for name in ALL) < args.kills:
        seed, is_exactly_once = args.seed + done, modes[done % len(modes)]
        is_agent = args.agent or min(tally.kills[name] for name in COMPONENTS) >= args.kills
        print(f"round with seed {seed}{', exactly-once' if is_exactly_once else ''}", flush=True)
        folder = Path(tempfile.mkdtemp(prefix="tocsin-chaos-", dir=args.folder))
        begun = time.monotonic()
        reported = _agent(seed, folder, is_exactly_once) if is_agent else _round(args, seed, folder, is_exactly_once)
        _print(reported, time.monotonic() - begun, folder, is_kept=args.folder is not None)
        tally.add(reported, f"{seed}{' exactly-once' if is_exactly_once else ''}{' agent' if is_agent else ''}")
        tally.write(args.tally)
        done += 1
    print(tally.text())
    problems_count = tally.unequal.total()
    if not args.rounds and not args.agent:
        problems_count += _pages(args, ROLES) + _actions(args)
    return 1 if problems_count else 0


def _pages(args: argparse.Namespace, roles: tuple[str, ...]) -> int:
    """A round that kills the sender of alerts, the controller or both; 1 where people were told something else."""
    print(f"pages: round with seed {args.seed}, {args.kills} kills of {' and '.join(roles)}", flush=True)
    config = PageConfig(args.seed, roles, args.kills)
    return _on_a_broker(args, "pages", lambda broker, folder: run_page_round(config, broker, folder, "chaos"))


def _actions(args: argparse.Namespace) -> int:
    """A round that kills executors and the controller; 1 where something else was carried out."""
    roles = tuple(args.role or ACTORS)
    print(f"actions: round with seed {args.seed}, {args.kills} kills of {', '.join(roles)}", flush=True)
    config = ActionRoundConfig(args.seed, args.kills, roles, without=args.without)
    return _on_a_broker(args, "actions", lambda broker, folder: run_action_round(config, broker, folder, "chaos"))


def _on_a_broker(
    args: argparse.Namespace, name: str, run: Callable[[Broker, Path], PageReported | ActionsReported]
) -> int:
    """Run a round on a broker of its own and print what it found; its folder is kept where something differs."""
    folder = Path(tempfile.mkdtemp(prefix=f"tocsin-{name}-", dir=args.folder))
    broker = Broker(BrokerConfig(folder / "kafka"))
    broker.start()
    try:
        reported = run(broker, folder)
    finally:
        broker.stop()
    print(reported.text(), flush=True)
    if reported.problems or args.folder is not None:
        print(f"  all that it wrote: {folder}", flush=True)
    else:
        shutil.rmtree(folder)
    return 1 if reported.problems else 0


def _embedded(args: argparse.Namespace) -> int:
    """Rounds of ``tocsin serve`` and real agents, each with ``--kills`` kills."""
    problems = 0
    for number in range(max(1, args.rounds)):
        folder = Path(tempfile.mkdtemp(prefix="tocsin-live-", dir=args.folder))
        print(f"round with seed {args.seed + number}, {args.kills} kills", flush=True)
        learned = Learned(tuple(args.detector))
        reported = run_live_round(LiveConfig(args.seed + number, kills_count=args.kills, learned=learned), folder)
        problems += len(reported.problems)
        print(reported.text(), flush=True)
        if reported.problems or args.folder is not None:
            print(f"  all that it wrote: {folder}", flush=True)
        else:
            shutil.rmtree(folder)
    return 1 if problems else 0


def _embedded_actions(args: argparse.Namespace) -> int:
    """Rounds that kill ``tocsin serve --act`` and its executor, until each was killed ``--kills`` times."""
    kills: Counter[str] = Counter()
    seed, problems_count = args.seed, 0
    while min(kills[role] for role in EMBEDDED_ROLES) < args.kills:
        folder = Path(tempfile.mkdtemp(prefix="tocsin-acting-", dir=args.folder))
        print(f"actions: round with seed {seed}", flush=True)
        reported = run_embedded_action_round(EmbeddedActionConfig(seed), folder)
        print(reported.text(), flush=True)
        kills += reported.kills
        problems_count += len(reported.problems)
        seed += 1
        if reported.problems or args.folder is not None:
            print(f"  all that it wrote: {folder}", flush=True)
        else:
            shutil.rmtree(folder)
    return 1 if problems_count else 0


def _round(args: argparse.Namespace, seed: int, folder: Path, is_exactly_once: bool) -> Reported:
    config = RoundConfig(
        seed,
        is_exactly_once,
        kills_each_count=args.kills_each_round,
        stream_seconds=args.seconds,
        learned=learned_of(args),
    )
    return run_round(config, folder)


def _agent(seed: int, folder: Path, is_exactly_once: bool) -> Reported:
    with servers(folder) as distributed:
        return run_agent_round(AgentConfig(seed, is_exactly_once, crashes_count=2), distributed, "chaos")


def _print(reported: Reported, seconds: float, folder: Path, *, is_kept: bool) -> None:
    print(table_text(reported.outcomes))
    if shown := sum((one.learned for one in reported.outcomes), Counter[str]()):
        print(f"verdict lines with evidence of learned detectors: {dict(shown)}")
    for problem in reported.problems:
        print(f"  {problem}")
    print(
        f"  {reported.counts.total()} kills in {seconds:.0f} s, {'equal' if reported.is_equal else 'DIFFERS'}",
        flush=True,
    )
    if reported.is_equal and not is_kept:
        shutil.rmtree(folder)
    else:
        print(f"  all that it wrote: {folder}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
