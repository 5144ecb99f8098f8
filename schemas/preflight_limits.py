"""Limits of the checks under load, each with the principle that it follows."""

from __future__ import annotations

from typing import Final

LEAST_PEERS_COUNT: Final = 3
"""Peers below which nothing is compared: a median of two is either of them (the principle of every peer comparison)."""

SLOWER_RATIO: Final = 0.7
"""Share of the peers' median below which a figure is too slow: two runs on one machine differ by up to a tenth, and
this is three times as much."""

OTHER_WRITES_RATIO: Final = 0.25
"""Bytes that others write during the disk check, as a share of the check's own: a host without a job writes its log,
some kilobytes a second; a quarter takes a share of the bandwidth that is larger than the spread of two runs."""

MOST_WRONG_SHOWN_COUNT: Final = 5
"""Wrong results that a detail names: the first ones say which core; a broken core gives thousands."""

SECONDS_PER_CHECK: Final = 10.0
"""Load of one check: after some seconds a processor or GPU has its clock and temperature of long load; the figures are
means over this time."""

GRACE_SECONDS: Final = 60.0
"""Time beyond its load that a check may take, for start and end: to import torch from a busy network file system takes
tens of seconds."""

MEMORY_BYTES: Final = 256 * 2**20
"""Size of the copied memory, all cores together: larger than most caches, and little beside a host's memory."""

DISK_BYTES: Final = 1024 * 2**20
"""Most that the disk check writes: larger than a disk's own cache, a negligible share of its endurance."""

DISK_BLOCK_BYTES: Final = 4 * 2**20
"""Size of one write or read: a checkpoint's are of this size, and it is a multiple of every device's sector."""

ALL_REDUCE_BYTES: Final = 64 * 2**20
"""Size of one all-reduce: bandwidth and not latency decides its time."""

MOST_HOSTS: Final = 1024
"""Hosts of one group: as many as one program can start and hear in the time of a check."""
