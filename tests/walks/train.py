"""A small DDP job as a user writes it, with tocsin's two lines: ``train.py FOLDER``.

The walk gives its orders by files in FOLDER: ``slow-RANK`` makes a rank's forward pass longer, ``nan-RANK`` spoils its
next losses, ``end`` ends the job. Each rank writes its process id into ``pid-RANK``, rank 0 its step into ``step``.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tocsin.collectors import hook

FORWARD_SECONDS = 0.05
SLOW_SECONDS = 0.15


class Net(nn.Module):
    """A layer, and the time that a larger network would take."""

    def __init__(self, folder: Path, rank: int) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 1)
        self._slow = folder / f"slow-{rank}"

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        time.sleep(SLOW_SECONDS if self._slow.exists() else FORWARD_SECONDS)
        output: torch.Tensor = self.layer(batch)
        return output


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    (folder / f"pid-{rank}").write_text(str(os.getpid()))
    model = DistributedDataParallel(Net(folder, rank))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = (torch.ones(4, 16) for _ in range(100_000))
    loader = hook.attach(model, optimizer, batches)
    for step, batch in enumerate(loader):
        loss = model(batch).square().mean()
        if (folder / f"nan-{rank}").exists():
            loss = loss * float("nan")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            (folder / "step").write_text(str(step))
        if (folder / "end").exists():
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
