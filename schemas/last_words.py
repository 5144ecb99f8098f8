"""What the last words of a process tell of its own machine: a cause, or nothing.

The texts are those that CUDA, NCCL, the driver's library and file systems print. Only what a process says of
its **own** parts counts: that a peer is gone, or that a collective took too long, is what victims say.
"""

from __future__ import annotations

import re
from typing import Final

_FAILED_KERNEL = (
    r"illegal memory access|unspecified launch failure|illegal instruction was encountered|misaligned address"
    r"|device-side assert|hardware stack error|invalid program counter|cu(blas|dnn|fft)_status_execution_failed"
    r"|cuda execution (error|fail)|cudaerror(launchfailure|illegaladdress|illegalinstruction|assert)"
)
_SAYINGS: Final[tuple[tuple[str, re.Pattern[str]], ...]] = tuple(
    (cause, re.compile(pattern, re.IGNORECASE))
    for cause, pattern in (
        ("ecc_error", r"uncorrectable (double.bit )?ecc|ecc uncorrectable|cudaerroreccuncorrectable|double.bit ecc"),
        ("nvlink_error", r"nvlink error|cudaerrornvlinkuncorrectable"),
        ("gpu_card_drop", r"fallen off the bus|gpu is lost|gpu_is_lost|no cuda-capable device is detected"),
        ("nic_dropout", r"got async event ?: ?(local )?(port|device) (error|fatal)|ibv_event_(port_err|device_fatal)"),
        ("hdfs_error", r"hdfs|dfsclient|dfsinputstream|stale file handle|transport endpoint is not connected"),
        ("gpu_execution_error", r"gpu execution (error|fail)|launch timed out and was terminated"),
        ("cuda_execution_error", _FAILED_KERNEL),
    )
)
"""(cause, what is said), the most telling first."""


def cause_of_words(words: str) -> str:
    """The cause that these words tell of the speaker's own machine, "" where they tell none."""
    return next((cause for cause, pattern in _SAYINGS if pattern.search(words)), "")
