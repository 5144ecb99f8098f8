"""Paths of the agent's socket, the same for the agent, ``tocsin exec`` and the hook.

Standard library only, imports nothing of the project: it runs inside the training process.

==  ==========================================================================================
1   TOCSIN_AGENT_SOCKET; if set, no other path is used
2   /run/tocsin/agent.sock: an agent listens there if it may write into the folder
3   $XDG_RUNTIME_DIR/tocsin/agent.sock (not set: /run/user/UID) if that folder is the user's
4   /tmp/tocsin-UID/agent.sock: the folder is the user's alone, mode 0700, and no link
==  ==========================================================================================

An agent uses the first path that it may; senders use the first one with a listener.
"""

import os
import socket
import stat
from collections.abc import Iterable, Mapping

NAME = "agent.sock"
SYSTEM_FOLDER = "/run/tocsin"
SHARED_FOLDER = "/tmp"  # noqa: S108  # the folder in it is checked: the user's alone
VARIABLE = "TOCSIN_AGENT_SOCKET"
_OTHERS = 0o077


def agent_sockets(env: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the paths at which an agent may listen to this process, in the order in which they are tried."""
    named = env.get(VARIABLE)
    folders = (SYSTEM_FOLDER, *_runtime_folders(env), _shared_folder())
    return (named,) if named else tuple(f"{folder}/{NAME}" for folder in folders)


def own_socket(env: Mapping[str, str] = os.environ) -> str:
    """Return the path at which an agent of this user listens; its folder is created if missing.

    Raises:
        OSError: the folder cannot be created, or is not this user's alone.
    """
    named = env.get(VARIABLE)
    if named:
        return named
    is_there = os.path.isdir(SYSTEM_FOLDER)
    if os.access(SYSTEM_FOLDER if is_there else os.path.dirname(SYSTEM_FOLDER), os.W_OK | os.X_OK):
        return f"{SYSTEM_FOLDER}/{NAME}"
    folder = next(iter(_runtime_folders(env)), _shared_folder())
    if not os.path.isdir(folder):
        os.mkdir(folder, 0o700)
    if folder == _shared_folder() and not _is_private(folder):
        raise PermissionError(f"{folder} must be a folder of user {os.getuid()} alone, with mode 0700, and no link")
    return f"{folder}/{NAME}"


def may_speak_to(path: str) -> bool:
    """Return whether a listener at a path can be trusted as an agent; a folder in /tmp may belong to anybody."""
    folder = os.path.dirname(path)
    return folder != _shared_folder() or _is_private(folder)


def listening(paths: Iterable[str]) -> str:
    """Return the first of the paths with a listener, "" for none."""
    for path in paths:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
            asking.setblocking(False)
            try:
                if may_speak_to(path):
                    asking.connect(path)
                    return path
            except OSError:
                continue
    return ""


def no_agent(paths: tuple[str, ...]) -> str:
    """Return the sentence that no agent listens at these paths."""
    places = ", ".join(paths)
    return f"no agent listens at {places}: start one with 'tocsin agent', or set {VARIABLE} to its socket"


def _runtime_folders(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the folder for the socket in the user's runtime folder, none if that is not the user's."""
    base = env.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    try:
        is_own = base.startswith("/") and os.stat(base).st_uid == os.getuid()
    except OSError:
        is_own = False
    return (os.path.join(base, "tocsin"),) if is_own else ()


def _shared_folder() -> str:
    """Return the folder for the socket in /tmp."""
    return f"{SHARED_FOLDER}/tocsin-{os.getuid()}"


def _is_private(folder: str) -> bool:
    """Return whether a folder belongs to this user alone and is no link."""
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & _OTHERS
