"""What the model of one job needs in a step, and what its GPUs can do, as the job's ranks announce it."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any, Final, NamedTuple

from tocsin.models.mfu import peak_flops_per_second, transformer_flops
from tocsin.schemas.records import Event
from tocsin.schemas.wire.event_payloads import number

_KEPT_BATCHES: Final = 5
"""Told steps of a rank whose median is its tokens; a hook tells one in five seconds or more."""


class RankWork(NamedTuple):
    """Work of one rank.

    Attributes:
        flops: operations that the model needs of this rank in a step, 0.0 = unknown.
        peak: peak of its GPU in FLOP/s, 0.0 = unknown.
        gpu_name: name of its GPU, "" = unknown.
        counted_parameters: parameters that its hook counted, where no operations are known; 0.0 = none.
    """

    flops: float
    peak: float
    gpu_name: str
    counted_parameters: float = 0.0


class JobWork:
    """Work of one job's ranks: the means of what was announced.

    Where a rank announces its parameters and no tokens, its tokens are those of its batches, as its loader tells them.
    """

    def __init__(self) -> None:
        """Start without announcements."""
        self._ranks: dict[int, RankWork] = {}
        self._tokens: dict[int, list[float]] = {}
        """Rank -> tokens of its newest steps whose batches were told, oldest first."""
        self._means: tuple[float, float, str] | None = None
        """Mean operations, mean peak, and the name of a GPU without a peak; None = to be computed again."""

    def take(self, event: Event, world_size: int) -> None:
        """Take a rank's ``model`` event.

        Args:
            event: the event.
            world_size: number of the job's ranks, for an announcement of the whole job that does not tell it.
        """
        found = _work_of(event.payload, world_size)
        if event.rank >= 0 and self._ranks.get(event.rank) != found:
            self._ranks[event.rank] = found
            self._means = None

    def take_batch(self, event: Event) -> None:
        """Take a rank's ``loader`` event, which may tell the tokens of the rank's batches in one step."""
        work = self._ranks.get(event.rank)
        tokens = float(number(event.payload, "tokens", 0.0))
        if work is not None and work.counted_parameters and tokens > 0:
            self._tokens[event.rank] = [*self._tokens.get(event.rank, ()), tokens][-_KEPT_BATCHES:]
            self._means = None

    def _flops_of(self, rank: int, work: RankWork) -> float:
        """Return the operations of a rank in a step, 0.0 = unknown."""
        if work.flops or not work.counted_parameters or rank not in self._tokens:
            return work.flops
        return transformer_flops(work.counted_parameters, median(self._tokens[rank]))

    def _computed(self) -> tuple[float, float, str]:
        """Return mean operations and mean peak, 0.0 = unknown, and the name of a GPU whose peak is unknown."""
        if self._means is None:
            flops = [flops for rank, one in self._ranks.items() if (flops := self._flops_of(rank, one)) > 0]
            peaks = [one.peak for one in self._ranks.values()]
            nameless = sorted({one.gpu_name for one in self._ranks.values() if not one.peak}, reverse=True)
            is_whole = bool(peaks) and not nameless
            self._means = (
                sum(flops) / len(flops) if flops else 0.0,
                sum(peaks) / len(peaks) if is_whole else 0.0,
                nameless[0] if nameless else "",
            )
        return self._means

    @property
    def flops(self) -> float:
        """Mean operations of a rank in a step, 0.0 = unknown."""
        return self._computed()[0]

    @property
    def peak(self) -> float:
        """Mean peak of the ranks' GPUs in FLOP/s, 0.0 = unknown of at least one."""
        return self._computed()[1]

    @property
    def gpu_without_peak(self) -> str:
        """Name of a GPU whose peak is unknown, "" = there is none."""
        return self._computed()[2]

    def to_state(self) -> list[list[list[Any]]]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        tokens = [[rank, *told] for rank, told in sorted(self._tokens.items())]
        return [[[rank, *one] for rank, one in sorted(self._ranks.items())], tokens]

    def load_state(self, state: list[list[list[Any]]]) -> None:
        """Replace the state by values that ``to_state`` returned."""
        ranks, tokens = state
        self._ranks = {rank: RankWork(*values) for rank, *values in ranks}
        self._tokens = {rank: told for rank, *told in tokens}
        self._means = None


def _work_of(payload: Mapping[str, Any], world_size: int) -> RankWork:
    """Return the work that a ``model`` event announces."""

    def told(name: str) -> float:
        return max(0.0, float(number(payload, name, 0.0)))

    world = told("world_size") or float(world_size)
    shape = {name: int(told(name)) for name in ("layers", "hidden_size", "sequence_length")}
    counted = told("rank_parameters")
    whole = told("flops_per_step") or transformer_flops(told("parameters"), told("tokens_per_step"), **shape)
    flops = transformer_flops(counted, told("rank_tokens_per_step"))
    if whole:
        flops = whole / world if world else 0.0
    gpu_name = payload.get("gpu_name")
    gpu_name = gpu_name if isinstance(gpu_name, str) else ""
    peak = told("peak_flops_per_second") or peak_flops_per_second(gpu_name) or 0.0
    return RankWork(flops, peak, gpu_name, 0.0 if flops else counted)
