"""Child process: one rank of an exchange between hosts or GPUs, as a group and in pairs.

All ranks meet at a store on rank 0. Each says there whether it has a GPU: only if all have one, NCCL is used, else
gloo. Buffers hold small integers, so each sum has one right result in any order of addition.

Usage: ``python -m tocsin.collectors.preflight._exchange_work DEVICE RANK WORLD HOST PORT SECONDS BYTES WAIT``;
prints one JSON object. ``DEVICE`` is ``cpu``, ``cuda:N``, or ``any``: the first GPU, else the CPU.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

MOST_PAIR_ROUNDS: Final = 8
"""Rounds of pairs: a host meets this many others, enough for a median; all pairs of a large group take too long."""
_WARM_COUNT: Final = 2
_LINGER_SECONDS: Final = 3.0
_MOST_REPEATS: Final = 2000
_VALUES: Final = 7


def partner_of(rank: int, world: int, turn: int) -> int | None:
    """Return whom a rank meets in a round of a tournament, None: it pauses. In ``world`` rounds each meets each.

    >>> [partner_of(rank, 4, 0) for rank in range(4)], [partner_of(rank, 3, 1) for rank in range(3)]
    ([3, 2, 1, 0], [1, 0, None])
    """
    size = world + world % 2
    if rank == size - 1:
        partner = next(other for other in range(size - 1) if (2 * other - turn) % (size - 1) == 0)
    else:
        partner = (turn - rank) % (size - 1)
        partner = size - 1 if partner == rank else partner
    return partner if partner < world else None


class ExchangeRank:
    """One rank that has met all others."""

    def __init__(self, torch: Any, device: str, rank: int, world: int) -> None:
        """Take a device; the process group must be there."""
        self._torch = torch
        self._dist = importlib.import_module("torch.distributed")
        self._device = torch.device(device)
        self._rank, self._world = rank, world

    def run(self, seconds: float, size_bytes: int) -> dict[str, object]:
        """Exchange for some seconds and return bandwidths and the numbers of wrong results."""
        size = max(1, size_bytes // 4)
        pattern = self._torch.arange(size, device=self._device) % _VALUES
        group = self._group(seconds / 2, pattern)
        rounds = range(min(MOST_PAIR_ROUNDS, self._world - 1 + self._world % 2))
        pairs = [self._pair(turn, seconds / 2 / len(rounds), pattern) for turn in rounds]
        return {**group, "pairs": [pair for pair in pairs if pair is not None]}

    def _group(self, seconds: float, pattern: Any) -> dict[str, object]:
        """Sum over all ranks for a time."""
        start = (pattern + self._rank).float()
        known = (pattern * self._world + sum(range(self._world))).float()
        took, wrong_count, count = self._repeated(lambda: self._summed(start), known, seconds)
        moved = 2 * (self._world - 1) / self._world * start.nbytes  # bytes a rank sends in a ring (nccl-tests: busbw)
        return {"bytes_per_second": moved / took, "wrong_count": wrong_count, "compared_count": count}

    def _summed(self, start: Any) -> Any:
        """Return the sum of all ranks' buffers."""
        total = start.clone()
        self._dist.all_reduce(total)
        return total

    def _pair(self, turn: int, seconds: float, pattern: Any) -> dict[str, object] | None:
        """Sum with one other rank for a time; None if this rank pauses in this round."""
        self._dist.barrier()
        other = partner_of(self._rank, self._world, turn)
        if other is None:
            return None
        start = (pattern + self._rank).float()
        known = (2 * pattern + self._rank + other).float()
        took, wrong_count, count = self._repeated(lambda: self._summed_with(other, start), known, seconds, other)
        rate = start.nbytes / took
        return {"peer": other, "bytes_per_second": rate, "wrong_count": wrong_count, "compared_count": count}

    def _summed_with(self, other: int, start: Any) -> Any:
        """Return the sum of this rank's buffer and another's."""
        dist, received = self._dist, self._torch.empty_like(start)
        sides = [dist.P2POp(dist.isend, start, other), dist.P2POp(dist.irecv, received, other)]
        for work in dist.batch_isend_irecv(sides):
            work.wait()
        return start + received

    def _repeated(
        self, exchange: Callable[[], Any], known: Any, seconds: float, other: int | None = None
    ) -> tuple[float, int, int]:
        """Repeat an exchange for about some seconds.

        The lowest rank that takes part says how often, so that all do it equally often.

        Returns:
            Seconds of one exchange, and how many results were wrong, of how many.
        """
        for _ in range(_WARM_COUNT):
            exchange()
        once = self._timed(exchange, 1)
        count = self._agreed(max(1, min(_MOST_REPEATS, int(seconds / max(once, 1e-6)))), other)
        took = self._timed(exchange, count) / count
        wrong_count = sum(not self._torch.equal(exchange(), known) for _ in range(_WARM_COUNT))
        return took, wrong_count, _WARM_COUNT

    def _agreed(self, count: int, other: int | None) -> int:
        """Return the lowest rank's number."""
        box = self._torch.tensor([count], device=self._device)
        if other is None:
            self._dist.broadcast(box, 0)
        elif self._rank < other:
            self._dist.send(box, other)
        else:
            self._dist.recv(box, other)
        return int(box.item())

    def _timed(self, exchange: Callable[[], Any], count: int) -> float:
        """Return the seconds that some exchanges take."""
        self._wait()
        start = time.perf_counter()
        for _ in range(count):
            exchange()
        self._wait()
        return time.perf_counter() - start

    def _wait(self) -> None:
        """Wait until the device has done everything."""
        if self._device.type == "cuda":
            self._torch.cuda.synchronize(self._device)


def meet(torch: Any, device: str, rank: int, world: int, store: Any, seconds: float) -> tuple[str, str] | list[int]:
    """Wait for the other ranks at the store and join the process group.

    Returns:
        The device and the backend in use; or the ranks that did not come, none where the first one has left.
    """
    store.set(f"kind/{rank}", "cpu" if device == "cpu" else "cuda")
    keys = [f"kind/{other}" for other in range(world)]
    try:
        store.wait(keys, timedelta(seconds=seconds))
    except RuntimeError:  # torch's DistStoreError is one
        return _absent(keys, store, is_first=rank == 0)
    kinds = {store.get(key) for key in keys}
    device, backend = (device, "nccl") if kinds == {b"cuda"} else ("cpu", "gloo")
    if backend == "nccl":
        torch.cuda.set_device(device)
    dist = importlib.import_module("torch.distributed")
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timedelta(seconds=seconds))
    return device, backend


def _absent(keys: list[str], store: Any, *, is_first: bool) -> list[int]:
    """Return the ranks that have not come; the store is gone once its rank has left."""
    try:
        absent = [rank for rank, key in enumerate(keys) if not store.check([key])]
    except RuntimeError:
        return []
    if is_first:
        time.sleep(_LINGER_SECONDS)  # the others ask the store, too, and their time ends a little later
    return absent


def work(arguments: list[str]) -> dict[str, object]:
    """Meet the others, exchange, and return what was found."""
    device, address = arguments[0], arguments[3]
    rank, world, port, size = (int(arguments[index]) for index in (1, 2, 4, 6))
    seconds, wait_seconds = float(arguments[5]), float(arguments[7])
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return {"missing": "torch"}
    dist = importlib.import_module("torch.distributed")
    if device == "any":
        device = "cuda:0" if torch.cuda.is_available() else "cpu"
    try:
        store = dist.TCPStore(
            address, port, world, is_master=rank == 0, timeout=timedelta(seconds=wait_seconds), wait_for_workers=False
        )
    except RuntimeError as error:
        return {"unreachable": f"{address}:{port}: {str(error).splitlines()[0][:200]}"}
    met = meet(torch, device, rank, world, store, wait_seconds)
    if isinstance(met, list):
        return {"absent": met}
    device, backend = met
    found = ExchangeRank(torch, device, rank, world).run(seconds, size)
    dist.barrier()
    if rank == 0:
        time.sleep(0.5)  # the store ends with this process, and the others still leave it
    dist.destroy_process_group()
    return {**found, "kind": f"{backend}, {world} ranks, torch {torch.__version__}"}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(work(sys.argv[1:])) + "\n")
