"""Find the cause of a process's death in its last error output, if it is on its own machine.

The patterns are texts that CUDA, NCCL, the driver's library and file systems print. Only statements about the
process's **own** parts count. Victims report that a peer is gone or that a collective timed out.
"""

from __future__ import annotations

import re
from typing import Final

_FAILED_KERNEL = (
    r"illegal memory access|unspecified launch failure|illegal instruction was encountered|misaligned address"
    r"|device-side assert|hardware stack error|invalid program counter|cu(blas|dnn|fft)_status_execution_failed"
    r"|cuda execution (error|fail)|cudaerror(launchfailure|illegaladdress|illegalinstruction|assert)"
)
_CAUSE_PATTERNS: Final[tuple[tuple[str, re.Pattern[str]], ...]] = tuple(
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
"""Rows: (cause, pattern of the error text), the most conclusive first."""

_EXPLAINING_PATTERNS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(?:\w+ )?collectives? mismatch|mismatch between collectives|mismatch\w*|out of memory|no space left",
        r"assert(?:ion)?\w* (?:failed|triggered)|segmentation fault|\bnan\b|permission denied|not found|no such file",
        r"timed? ?out\b|connection (?:was )?(?:reset|closed|refused|aborted)",
    )
)
"""Patterns of words that explain an error where no row of ``_CAUSE_PATTERNS`` matches, the most conclusive first."""
SHOWN_CHARACTERS: Final = 200
"""Characters of a line of error output that an evidence or a summary shows."""
_LEAD_CHARACTERS: Final = 80
"""Most characters of the line's beginning that are kept before the matched words."""
_GAP: Final = " … "


def telling_part(line: str, limit_characters: int = SHOWN_CHARACTERS) -> str:
    """Shorten a line of error output so that the words that explain the error are kept.

    A line within the limit is returned unchanged. Of a longer one the beginning is kept, which names the error. If the
    explaining words are behind the cut, half of the room is used for them.

    Args:
        line: one line.
        limit_characters: most characters of the result.

    >>> telling_part("RuntimeError: " + "x" * 300 + ": collective mismatch", 60)
    'RuntimeError: xxxxxxxxxxxxxxxx … xxxxxx: collective mismatch'
    """
    if len(line) <= limit_characters:
        return line
    patterns = (*(pattern for _, pattern in _CAUSE_PATTERNS), *_EXPLAINING_PATTERNS)
    found = [one for pattern in patterns if (one := pattern.search(line))]
    if not found or found[0].end() <= limit_characters:
        return line[:limit_characters]
    head = line[: min(_LEAD_CHARACTERS, limit_characters // 2)]
    room = limit_characters - len(head) - len(_GAP)
    before = max(0, room - len(found[0][0])) // 2
    begin = max(len(head), min(found[0].start() - before, len(line) - room))
    return head + _GAP + line[begin : begin + room]


def cause_of_words(words: str) -> str:
    """Return the cause on the process's own machine that an error output states, "" for none."""
    return next((cause for cause, pattern in _CAUSE_PATTERNS if pattern.search(words)), "")
