"""Which actions are about a GPU, so that only a check of the GPUs proves the machine well (docs/actions.md)."""

from __future__ import annotations

import re
from typing import Final

from tocsin.pipeline.actions.tracked import TrackedAction
from tocsin.schemas.verdicts import ComponentKind

_GPU_WORDS: Final = frozenset({"gpu", "cuda", "ecc", "hbm", "nvlink", "nvswitch", "xid", "sxid", "dcgm", "nvml"})
"""Words of a cause, or of a class of evidence, that concern a GPU."""
_WORD: Final = re.compile(r"[a-z]+")


def is_about_gpu(tracked: TrackedAction) -> bool:
    """Return whether an action's component, a suspect, its cause or its class of evidence concerns a GPU."""
    suspects = [suspect.component for suspect in tracked.verdict.suspects]
    if any(one is not None and one.kind is ComponentKind.GPU for one in (tracked.action.target.component, *suspects)):
        return True
    return not _GPU_WORDS.isdisjoint(_WORD.findall(f"{tracked.action.cause} {tracked.signal}".lower()))
