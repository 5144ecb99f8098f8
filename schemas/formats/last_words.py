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

_TELLING: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(?:\w+ )?collectives? mismatch|mismatch between collectives|mismatch\w*|out of memory|no space left",
        r"assert(?:ion)?\w* (?:failed|triggered)|segmentation fault|\bnan\b|permission denied|not found|no such file",
        r"timed? ?out\b|connection (?:was )?(?:reset|closed|refused|aborted)",
    )
)
"""What says why, where none of ``_SAYINGS`` is found, the most telling first."""
SHOWN_CHARACTERS: Final = 200
"""Of one line of last words, in an evidence or a summary."""
_LEAD_CHARACTERS: Final = 80
"""What stands before the telling words and is shown with them; the line's begin, too."""
_GAP: Final = " … "


def telling_part(line: str, limit_characters: int = SHOWN_CHARACTERS) -> str:
    """A line of last words, cut so that the words that say why stay in it.

    A line within the limit is returned as it is. Of a longer one the begin is shown, which names the error; where
    what says why stands behind the cut, half of the room goes to it.

    Args:
        line: one line.
        limit_characters: the longest answer.

    >>> telling_part("RuntimeError: " + "x" * 300 + ": collective mismatch", 60)
    'RuntimeError: xxxxxxxxxxxxxxxx … xxxxxx: collective mismatch'
    """
    if len(line) <= limit_characters:
        return line
    patterns = (*(pattern for _, pattern in _SAYINGS), *_TELLING)
    found = [one for pattern in patterns if (one := pattern.search(line))]
    if not found or found[0].end() <= limit_characters:
        return line[:limit_characters]
    head = line[: min(_LEAD_CHARACTERS, limit_characters // 2)]
    room = limit_characters - len(head) - len(_GAP)
    before = max(0, room - len(found[0][0])) // 2
    begin = max(len(head), min(found[0].start() - before, len(line) - room))
    return head + _GAP + line[begin : begin + room]


def cause_of_words(words: str) -> str:
    """The cause that these words tell of the speaker's own machine, "" where they tell none."""
    return next((cause for cause, pattern in _SAYINGS if pattern.search(words)), "")
