"""Where the agent's socket is: one answer for the agent, ``tocsin exec`` and the hook.

Standard library only, imports nothing of the project: it runs inside the training process.

==  ==========================================================================================
1   TOCSIN_AGENT_SOCKET; nothing else is looked at where it is set
2   /run/tocsin/agent.sock: an agent listens there where it may write into the folder
3   $XDG_RUNTIME_DIR/tocsin/agent.sock (not set: /run/user/UID) where that folder is the user's
4   /tmp/tocsin-UID/agent.sock: the folder is the user's alone, mode 0700, and no link
==  ==========================================================================================

An agent takes the first place that it may use; whoever sends takes the first at which somebody listens.
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
    """Return where an agent may listen that this process speaks to, in the order in which the paths are tried."""
    named = env.get(VARIABLE)
    folders = (SYSTEM_FOLDER, *_runtime_folders(env), _shared_folder())
    return (named,) if named else tuple(f"{folder}/{NAME}" for folder in folders)


def own_socket(env: Mapping[str, str] = os.environ) -> str:
    """Return where an agent of this user listens; its folder is there when this returns.

    Raises:
        OSError: the folder cannot be made, or is not this user's alone.
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
    """Return whether what listens at a path may be an agent: a folder in /tmp may be anybody's."""
    folder = os.path.dirname(path)
    return folder != _shared_folder() or _is_private(folder)


def listening(paths: Iterable[str]) -> str:
    """Return the first of the paths at which somebody listens, "" = none."""
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
    """Return the sentence that says that nobody listens."""
    places = ", ".join(paths)
    return f"no agent listens at {places}: start one with 'tocsin agent', or set {VARIABLE} to its socket"


def _runtime_folders(env: Mapping[str, str]) -> tuple[str, ...]:
    base = env.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    try:
        is_own = base.startswith("/") and os.stat(base).st_uid == os.getuid()
    except OSError:
        is_own = False
    return (os.path.join(base, "tocsin"),) if is_own else ()


def _shared_folder() -> str:
    return f"{SHARED_FOLDER}/tocsin-{os.getuid()}"


def _is_private(folder: str) -> bool:
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & _OTHERS
