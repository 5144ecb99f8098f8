"""The live display of the demo (needs rich and a terminal)."""

from __future__ import annotations

import sys
import time
from collections import deque
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tocsin.cli.drill.judge import Heard, accused, host_name
from tocsin.cli.drill.lines import Rates, ShownJob, rate_of, strike_text, verdict_texts
from tocsin.cli.terminal import unguarded
from tocsin.schemas.printable import plain

_LINES_SHOWN = 14
_BAR_WIDTH = 24


class LiveDisplay:
    """Display of the demo: a table of the ranks above the last events."""

    def __init__(self, *, acts: bool = False) -> None:
        """Create the display; nothing is drawn yet.

        Args:
            acts: whether what is proposed is carried out.
        """
        self._acts = acts
        self._began = time.monotonic()
        self._rates: Rates = {}
        self._faulty_rank: int | None = None
        self._accused: frozenset[str] = frozenset()
        self._events: deque[Text] = deque(maxlen=_LINES_SHOWN)
        self._live = Live(console=Console(file=unguarded(sys.stdout)), refresh_per_second=4, get_renderable=self._draw)

    def __enter__(self) -> Self:
        """Start drawing on the terminal."""
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop drawing; the last picture stays on the terminal."""
        self._live.__exit__(kind, error, trace)

    def say(self, text: str, style: str = "") -> None:
        """Add an event."""
        self._events.append(Text(f"{time.monotonic() - self._began:5.1f} s  {plain(text)}", style=style))

    def started(self, job: ShownJob) -> None:
        """Show that the ranks train."""
        self.say(f"{job.plan.rank_count} ranks train; the fault will strike in some seconds")

    def struck(self, job: ShownJob, onset_ns: int) -> None:
        """Show that the fault was injected, and mark the rank."""
        self._faulty_rank = job.plan.rank
        self.say(strike_text(job, onset_ns), "bold yellow")

    def heard(self, item: Heard) -> None:
        """Show a verdict that arrived, and mark the accused hosts."""
        self._accused |= accused(item.line)
        for text in verdict_texts(item, acts=self._acts):
            self.say(text, "bold red" if text.startswith("VERDICT") else "")

    def tick(self, job: ShownJob) -> None:
        """Do nothing: the display redraws itself."""

    def rates(self, rates: Rates) -> None:
        """Show these step rates."""
        self._rates = rates

    def _draw(self) -> RenderableType:
        """Return the picture to draw."""
        return Group(Panel(self._table(), title="tocsin drill", expand=False), *self._events)

    def _table(self) -> Table:
        """Return the table of the ranks with step, step rate and marks."""
        table = Table(box=None, padding=(0, 1))
        for column in ("rank", "host", "step", "steps/s", "", ""):
            table.add_column(column, justify="right" if column in {"rank", "step", "steps/s"} else "left")
        fastest = max((float(f.get("steps_per_second") or 0.0) for f in self._rates.values()), default=0.0)
        for rank, facts in sorted(self._rates.items()):
            share = float(facts.get("steps_per_second") or 0.0) / max(fastest, 5.0)
            marks = Text()
            if rank == self._faulty_rank:
                marks.append("struck ", "yellow")
            if host_name(rank) in self._accused:
                marks.append("named by tocsin", "bold red")
            bar = Text("█" * round(share * _BAR_WIDTH), style="green")
            table.add_row(
                str(rank), plain(facts.get("host", "")), str(facts.get("step", "")), rate_of(facts), bar, marks
            )
        return table
