"""Many open files, as a training process with loader workers or an engine with many agents has them."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def many_open_files(count: int = 1100) -> Iterator[None]:
    """Within it, new descriptors have numbers from ``count`` on; skips where the system allows fewer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = count + 200
    if soft < least:
        if hard != resource.RLIM_INFINITY and hard < least:
            pytest.skip(f"at most {hard} files may be open here")
        resource.setrlimit(resource.RLIMIT_NOFILE, (least, hard))
    opened = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while opened[-1] < count:
            opened.append(os.dup(opened[0]))
        yield
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
