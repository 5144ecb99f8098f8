"""Slurm's network topology: ``topology.conf``, or what ``scontrol show topology`` prints of it.

A line is one switch (plugin tree) or one block (plugin block)::

    SwitchName=s1 Level=0 LinkSpeed=1 Nodes=node[1-4]
    SwitchName=pod1 Level=1 LinkSpeed=1 Nodes=node[1-8] Switches=s[1-2]

    BlockName=b1 BlockIndex=0 Nodes=node[1-4] BlockSize=4
    AggregatedBlock=b[1-2] BlockIndex=2 Nodes=node[1-8] BlockSize=8
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tocsin.schemas.errors import FieldError
from tocsin.schemas.formats.host_list import expand_host_list
from tocsin.schemas.formats.switch_place import SwitchPlace

_HEADS: Final = ("switchname", "blockname", "aggregatedblock", "blocksizes")
_FORM: Final = "a line that begins with SwitchName=, BlockName=, AggregatedBlock= or BlockSizes="


@dataclass(frozen=True, slots=True)
class _Line:
    """One line: number, its first key in lower case, and all of its pairs with keys in lower case."""

    file: str
    number: int
    head: str
    pairs: Mapping[str, str]

    @property
    def name(self) -> str:
        """The name of the switch or block."""
        return self.pairs[self.head]

    def hosts(self, key: str) -> tuple[str, ...]:
        """Return the names that a key's list stands for."""
        return expand_host_list(self.pairs.get(key, ""), f"{self.file} line {self.number}: {key.capitalize()}")

    def wrong(self, key: str, value: str, must: str) -> FieldError:
        """Return the error that a value on this line is wrong."""
        return FieldError(f"{self.file} line {self.number}: {key}", value, must)


@dataclass(slots=True)
class _Tree:
    """Switches as far as they are read.

    Attributes:
        leaf_of: host -> leaf switch.
        above: switch -> the switch above it.
        hosts: all hosts in the order of the file.
        names: switches and blocks that have a line.
        children: (line, switch that it names as a child).
    """

    leaf_of: dict[str, str] = field(default_factory=dict)
    above: dict[str, str] = field(default_factory=dict)
    hosts: dict[str, None] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    children: list[tuple[_Line, str]] = field(default_factory=list)

    def take(self, line: _Line) -> None:
        """Learn a switch or a block."""
        if line.name in self.names:
            raise line.wrong(line.head, line.name, "named once")
        self.names.add(line.name)
        below, hosts = line.hosts("switches"), line.hosts("nodes")
        self.hosts.update(dict.fromkeys(hosts))
        for child in below:
            known = self.above.setdefault(child, line.name)
            if known != line.name:
                raise line.wrong("Switches", child, f"below one switch only; it is below {known!r} too")
            self.children.append((line, child))
        for host in () if below else hosts:  # scontrol repeats the hosts of all levels above
            known = self.leaf_of.setdefault(host, line.name)
            if known != line.name:
                raise line.wrong("Nodes", host, f"below one leaf only; it is below {known!r} too")

    def is_above_itself(self, name: str) -> bool:
        """Return whether the way up from a switch leads back to it."""
        passed, at = set[str](), self.above.get(name)
        while at is not None and at != name and at not in passed:
            passed.add(at)
            at = self.above.get(at)
        return at == name

    def take_aggregate(self, line: _Line, sizes: dict[str, int]) -> None:
        """Learn an aggregated block; of those that hold a block, the smallest counts.

        Args:
            line: the line.
            sizes: name of an aggregated block -> its number of blocks.
        """
        blocks = line.hosts(line.head)
        self.hosts.update(dict.fromkeys(line.hosts("nodes")))
        sizes[line.name] = len(blocks)
        for block in blocks:
            known = self.above.get(block)
            if known is None or sizes.get(known, 0) > len(blocks):
                self.above[block] = line.name
            self.children.append((line, block))


def places_of_slurm(text: str, file: str) -> dict[str, SwitchPlace]:
    """Return host -> leaf and minipod.

    A switch without switches below it is a leaf, and the switch above it the minipod. A block is a leaf, and the
    smallest aggregated block that holds it the minipod. Hosts of no leaf have neither.

    Args:
        text: content of the file.
        file: its name, for errors.

    Raises:
        FieldError: a line has another form, a host or switch is in two places, a switch is above itself or has no
            line.
    """
    tree, sizes = _Tree(), dict[str, int]()
    for line in _lines(text, file):
        if line.head == "aggregatedblock":
            tree.take_aggregate(line, sizes)
        elif line.head != "blocksizes":
            tree.take(line)
    for line, child in tree.children:
        if child not in tree.names:
            raise line.wrong("Switches" if line.head == "switchname" else line.head, child, "described on a line")
        if line.head == "switchname" and tree.is_above_itself(child):
            raise line.wrong("Switches", child, "not above itself")
    if not tree.hosts:
        raise FieldError(f"{file} line 1", text[:80], "a topology: no line names a host")
    leaves = {host: tree.leaf_of.get(host, "") for host in tree.hosts}
    return {host: SwitchPlace(leaf, tree.above.get(leaf, "")) for host, leaf in leaves.items()}


def _lines(text: str, file: str) -> Iterator[_Line]:
    """Yield the lines that say something, comments left out."""
    for number, raw in enumerate(text.splitlines(), 1):
        words = raw.partition("#")[0].split()
        if not words:
            continue
        pairs: dict[str, str] = {}
        for word in words:
            key, equals, value = word.partition("=")
            if not equals:
                raise FieldError(f"{file} line {number}", word, "key=value")
            pairs[key.lower()] = value
        head = next(iter(pairs))
        if head not in _HEADS or not pairs[head]:
            raise FieldError(f"{file} line {number}", raw.strip(), _FORM)
        yield _Line(file, number, head, pairs)
