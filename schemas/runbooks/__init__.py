"""Runbooks: what each cause looks like, what it is confused with, what to do by hand.

This is the one declaration. ``tocsin incidents show`` prints its steps, and the pages in ``docs/runbooks/`` are made
from it (``make runbooks``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tocsin.schemas.runbooks.form import ACTION_BY_HAND, HandStep, Lookalike, Runbook, telling_steps
from tocsin.schemas.runbooks.gpu import GPU_RUNBOOKS
from tocsin.schemas.runbooks.host import HOST_RUNBOOKS
from tocsin.schemas.runbooks.innocent import INNOCENT_RUNBOOKS
from tocsin.schemas.runbooks.network import NETWORK_RUNBOOKS
from tocsin.schemas.runbooks.program import PROGRAM_RUNBOOKS

__all__ = ["ACTION_BY_HAND", "RUNBOOKS", "HandStep", "Lookalike", "Runbook", "telling_steps"]

RUNBOOKS: Final[Mapping[str, Runbook]] = {
    one.cause: one for one in (*GPU_RUNBOOKS, *NETWORK_RUNBOOKS, *HOST_RUNBOOKS, *PROGRAM_RUNBOOKS, *INNOCENT_RUNBOOKS)
}
"""Cause -> its runbook; each cause of ``tocsin.schemas.causes`` has one."""
