"""What both engines said of a play, and whether it is the same."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.embedded_rows import embedded_rows
from tests.chaos.learned import shown_counts
from tests.chaos.plays import Play
from tests.chaos.tables import Tables, difference, write_embedded
from tests.chaos.tables import read_tables as read_tables  # noqa: PLC0414  # re-exported
from tocsin.schemas.cloudevents import encode_verdict
from tocsin.schemas.verdicts import Verdict


@dataclass(frozen=True)
class Outcome:
    """One play.

    Attributes:
        name: of the play.
        line_count: verdict lines that the embedded engine says.
        repeated_count: lines that stand on the topic once more.
        differs: what differs, "" = nothing.
        learned: learned detector -> number of lines with its evidence.
    """

    name: str
    line_count: int
    repeated_count: int
    differs: str
    learned: Counter[str] = field(default_factory=Counter)


def embedded(plays: Sequence[Play], data: Path, *, is_whole: bool = False) -> dict[str, list[Verdict]]:
    """Job -> what the embedded engine says of it; also in the tables of a data folder.

    Args:
        plays: what is played.
        data: the data folder.
        is_whole: whether evidence, host health, the jobs' states and times are written, too.
    """
    if not is_whole:
        found = {play.job_id: play.embedded() for play in plays}
        write_embedded(data, [verdict for verdicts in found.values() for verdict in verdicts])
        return found
    rows = {play.job_id: embedded_rows(play.recording, play.in_order()) for play in plays}
    found = {job_id: list(one.write.verdicts) for job_id, one in rows.items()}
    write_embedded(data, [verdict for verdicts in found.values() for verdict in verdicts], list(rows.values()))
    return found


def outcome(
    play: Play,
    said: Sequence[Verdict],
    lines: Sequence[bytes],
    wanted: Mapping[str, Tables],
    found: Mapping[str, Tables],
) -> Outcome:
    """Compare the topic's lines, then the tables."""
    own = [encode_verdict(verdict) for verdict in said]
    reported = list(dict.fromkeys(lines))
    differs = line_difference(own, reported) or difference(wanted.get(play.job_id, {}), found.get(play.job_id, {}))
    return Outcome(play.name, len(own), len(lines) - len(reported), differs, shown_counts(said))


def line_difference(wanted: Sequence[bytes], found: Sequence[bytes]) -> str:
    """The first line that differs; the order of lines of one verdict counts."""
    names = Counter((str(json.loads(line)["data"]["id"]), json.loads(line)["data"]["update"]) for line in found)
    doubled = [name for name, count in names.items() if count > 1]
    if doubled:
        return f"verdict {doubled[0][0]}, update {doubled[0][1]} was said in {names[doubled[0]]} ways"
    missing, more = (
        [line for line in wanted if line not in set(found)],
        [line for line in found if line not in set(wanted)],
    )
    if missing or more:
        first = (missing or more)[0].decode()
        return f"{len(missing)} lines missing, {len(more)} too many, first {first:.300}"
    return "" if list(wanted) == list(found) else "the lines stand in another order"


def table_text(outcomes: Sequence[Outcome]) -> str:
    """All outcomes, a line each."""
    width = max(len(one.name) for one in outcomes)
    head = f"{'recording':{width}}  lines  repeated"
    rows = (
        f"{one.name:{width}}  {one.line_count:5}  {one.repeated_count:8}  {one.differs or 'equal'}" for one in outcomes
    )
    return "\n".join([head, *rows])
