"""How the ranks of a job lie in its parallel dimensions and on its machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Final

from tocsin.schemas.errors import ConfigError

DIMENSIONS: Final = ("tp", "cp", "ep", "dp", "pp")
"""Names that a dimension may have."""
MOST_RANKS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Layout:
    """Ranks in a grid of parallel dimensions; machine m carries ranks m * g to m * g + g - 1.

    Attributes:
        sizes: dimension -> size; the coordinate of the first one changes fastest from rank to rank.
        gpus_per_machine_count: ranks of one machine (g).

    Raises:
        ConfigError: a size is below 1, a name is unknown, or the ranks do not fill the machines.
    """

    sizes: Mapping[str, int]
    gpus_per_machine_count: int = 1

    def __post_init__(self) -> None:
        """Check sizes and machines."""
        for name, size in self.sizes.items():
            if name not in DIMENSIONS:
                raise ConfigError("layout", name, f"one of {', '.join(DIMENSIONS)}")
            if size < 1:
                raise ConfigError(f"layout: {name}", size, "at least 1")
        if not self.sizes or self.rank_count > MOST_RANKS:
            raise ConfigError("layout", dict(self.sizes), f"one dimension or more, at most {MOST_RANKS} ranks")
        if self.gpus_per_machine_count < 1 or self.rank_count % self.gpus_per_machine_count:
            raise ConfigError("gpus per machine", self.gpus_per_machine_count, f"a divisor of {self.rank_count} ranks")

    @property
    def rank_count(self) -> int:
        """Number of ranks."""
        return prod(self.sizes.values())

    @property
    def machine_count(self) -> int:
        """Number of machines."""
        return self.rank_count // self.gpus_per_machine_count

    def machine_of(self, rank: int) -> int:
        """Return the machine of a rank."""
        return rank // self.gpus_per_machine_count

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the coordinates of a rank by dimension."""
        found = {}
        for name, size in self.sizes.items():
            rank, found[name] = divmod(rank, size)
        return found

    def rank_at(self, coordinates: Mapping[str, int]) -> int:
        """Return the rank at coordinates."""
        rank, stride = 0, 1
        for name, size in self.sizes.items():
            rank += stride * coordinates[name]
            stride *= size
        return rank

    def groups(self, dimension: str) -> Iterator[tuple[int, ...]]:
        """Yield the ranks of each group of a dimension: those that differ in this coordinate alone."""
        others = [name for name in self.sizes if name != dimension]
        for values in product(*(range(self.sizes[name]) for name in reversed(others))):
            fixed = dict(zip(reversed(others), values, strict=True))
            yield tuple(self.rank_at({**fixed, dimension: index}) for index in range(self.sizes[dimension]))

    def machine_groups(self, dimension: str) -> list[frozenset[int]]:
        """Return the machines of each group of a dimension, each set once."""
        return list(
            dict.fromkeys(frozenset(self.machine_of(rank) for rank in ranks) for ranks in self.groups(dimension))
        )


def parse_layout(text: str, gpus_per_machine_count: int = 1) -> Layout:
    """Return the layout of a text such as ``tp=2,pp=4,dp=4``, the dimension that changes fastest first.

    Raises:
        ConfigError: the text is no layout.
    """
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = part.strip().partition("=")
        if name in sizes or not size.isdecimal():
            raise ConfigError("layout", text, "such as tp=2,pp=4,dp=4, each dimension once")
        sizes[name] = int(size)
    return Layout(sizes, gpus_per_machine_count)
