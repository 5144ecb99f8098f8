"""What a process says of its own machine, and what it says of others."""

from __future__ import annotations

import pytest

from tocsin.schemas.causes import CAUSES
from tocsin.schemas.formats.last_words import SHOWN_CHARACTERS, cause_of_words, telling_part


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "ecc_error"),
        ("RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution", "nvlink_error"),
        ("RuntimeError: Unable to determine the device handle for GPU 0000:C1:00.0: GPU is lost.", "gpu_card_drop"),
        ("n3:1:2 [0] NET/IB : mlx5_0:1 Got async event : port error", "nic_dropout"),
        ("OSError: [Errno 116] Stale file handle: '/data/shard-3'", "hdfs_error"),
        ("RuntimeError: CUDA error: the launch timed out and was terminated", "gpu_execution_error"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED", "cuda_execution_error"),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", ""),
        ("ncclRemoteError: A call failed possibly due to a network error or a remote process exiting", ""),
        ("ValueError: bad batch", ""),
        ("", ""),
    ],
)
def test_only_what_is_said_of_the_own_machine_tells_a_cause(words: str, cause: str) -> None:
    assert cause_of_words(words) == cause
    assert cause == "" or cause in CAUSES


def test_what_says_most_is_shown_of_a_long_line_even_behind_a_lost_connection() -> None:
    lost, why = "connection closed by peer", "Detected mismatch between collectives"
    line = f"RuntimeError: {'x' * 50} {lost} {'y' * 300} {why} {'z' * 99}"
    shown = telling_part(line)
    assert shown.startswith("RuntimeError: ")
    assert "mismatch between collectives" in shown
    assert len(shown) <= SHOWN_CHARACTERS
    assert telling_part(line[:150]) == line[:150]
