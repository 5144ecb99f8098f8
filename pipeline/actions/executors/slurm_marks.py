"""What is written into Slurm to say whose doing it is: a node's reason, a job's administrators' comment.

A node's reason is ``[HC] tocsin CAUSE ID``, with further ids of actions that found the node taken away by us and keep
it out, too (a reboot, an evict). The node comes back with the last of them. It is ours only if nothing else stands
there: whoever adds a word makes the node theirs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tocsin.pipeline.actions.executors.slurm_text import JobReading, NodeReading

PREFIX = "[HC] tocsin"
_REASON = re.compile(r"\[HC\] tocsin ([a-z0-9_]+)((?: [0-9a-f]{32})+)")
_NO_WORD = re.compile(r"[^a-z0-9_]+")


def node_reason(cause: str, action_ids: Sequence[str]) -> str:
    """Return the reason of a node that actions took away.

    Example:
        >>> node_reason("ecc_error", ["0" * 32])
        '[HC] tocsin ecc_error 00000000000000000000000000000000'
    """
    word = _NO_WORD.sub("_", cause.lower()) or "unknown"
    return " ".join((PREFIX, word, *action_ids))


def actions_of(node: NodeReading, user: str) -> tuple[str, ...]:
    """Return the ids of the actions that a node's reason names, the one that took it away first.

    Args:
        node: the node.
        user: the user as whom we write reasons.

    Returns:
        Nothing where the reason is somebody else's: other words, words added, or written by another user. Slurm itself
        adds words when it reboots a node, and is its writer then; these are left out.
    """
    found = _REASON.fullmatch(node.own_reason)
    if found is None or (node.reason == node.own_reason and node.reason_user != user):
        return ()
    return tuple(found[2].split())


def reason_with(node: NodeReading, action_ids: Sequence[str]) -> str:
    """Return a node's reason, which is one of ours, with other ids of actions; its cause stays."""
    found = _REASON.fullmatch(node.own_reason)
    return node_reason("" if found is None else found[1], action_ids)


def job_comment(job: JobReading, action_id: str) -> str:
    """Return a job's comment with the action and the job's restart count before it, behind what stands there."""
    mark = f"{PREFIX} {action_id} after {job.restart_count} restarts"
    return f"{job.admin_comment}; {mark}" if job.admin_comment else mark


def restarts_before(job: JobReading, action_id: str) -> int | None:
    """Return the job's restart count before an action began, None where its comment does not name the action."""
    found = re.search(rf"{re.escape(PREFIX)} {re.escape(action_id)} after (\d+) restarts", job.admin_comment)
    return None if found is None else int(found[1])
