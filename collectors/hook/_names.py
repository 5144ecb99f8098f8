"""Generated names of jobs without one: user, script, eight characters of the run's id.

Standard library only, imports nothing of the project: it runs inside the training process.
"""

import hashlib
import os
import pwd
import re
import sys
from collections.abc import Mapping, Sequence

ID_LETTERS = 8
_MAX_LETTERS = 48
_LAUNCHERS = ("torch.distributed.", "accelerate.", "deepspeed.")
_NO_RUN = "local"
_ODD = re.compile(r"[^A-Za-z0-9_.]+")
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)

_REPLICA = re.compile(r"(.+)-(?:master|worker|chief|launcher)-[0-9]+")
_SLURM_DIGITS = 20

_RESERVED = ("idle", "fleet")


def refused_name(job_id: str) -> str:
    """Return the sentence that a job's name is one of tocsin's own, so that no agent takes it; "" for any other."""
    if job_id not in _RESERVED:
        return ""
    return f"job {job_id!r} has one of tocsin's own names and is not watched: set TOCSIN_JOB_ID to another"


def job_name(env: Mapping[str, str], script: str = "") -> str:
    """Return the generated name of a job, the same for all its ranks on all hosts.

    Args:
        env: the environment with, the first that is there, a TORCHELASTIC_RUN_ID that somebody gave (not "none", not a
            UUID of torchrun's own), SLURM_JOB_ID, the pod's owner (``pod_owner``), MASTER_ADDR and MASTER_PORT; "local"
            if none of them identifies the run. A UUID of torchrun's own stands behind Slurm's number, or for itself.
        script: name of the script, "" for this process's script.
    """
    parts = (_user(), script or _own_script(), _run_id(env))
    return "-".join(_ODD.sub("_", part)[:_MAX_LETTERS] for part in parts)


def script_of(command: Sequence[str]) -> str:
    """Return the name of what a command runs: the first script or module in it, else the program.

    >>> script_of(["torchrun", "--nproc-per-node", "4", "jobs/train.py", "--config", "a.py"])
    'train'
    >>> script_of(["python", "-u", "-m", "jobs.train"])
    'train'
    """
    for word, following in zip(command, [*command[1:], ""], strict=True):
        if word.endswith(".py"):
            folder, name = os.path.split(word)
            return os.path.basename(folder) if folder and name == "__main__.py" else name[: -len(".py")] or "python"
        if word == "-m" and following and not following.startswith(_LAUNCHERS):
            return following.rpartition(".")[2]
    return os.path.basename(command[0]) if command else "python"


def _own_script() -> str:
    """Return the name of this process's script.

    A child of multiprocessing has its parent's ``sys.argv`` and a command line of its own.
    """
    named = getattr(sys, "argv", [""])[:1]
    return script_of(sys.orig_argv if named in ([], [""], ["-c"], ["-m"]) else named)


def _run_id(env: Mapping[str, str]) -> str:
    """Return some characters that identify the run, "local" if unknown."""
    given, slurm = env.get("TORCHELASTIC_RUN_ID", ""), env.get("SLURM_JOB_ID", "").strip()
    is_made = bool(_UUID.fullmatch(given))
    if given and given != "none" and not is_made:
        return given if len(given) <= ID_LETTERS else _digest(given)
    made = given[:ID_LETTERS] if is_made else ""
    if slurm.isascii() and slurm.isdigit() and len(slurm) <= _SLURM_DIGITS:
        return f"{slurm}.{made}" if made else slurm
    if made or slurm:
        return made or (slurm if len(slurm) <= ID_LETTERS else _digest(slurm))
    owner = pod_owner(env)
    if owner:
        return owner if len(owner) <= _MAX_LETTERS else _digest(owner)
    address, port = env.get("MASTER_ADDR", ""), env.get("MASTER_PORT", "")
    return _digest(f"{address}:{port}") if address and port else _NO_RUN


def pod_owner(env: Mapping[str, str]) -> str:
    """Return namespace and name of what made this process's pod, e.g. ``ml.llama``; "" if it is not known.

    All pods of one owner get the same: POD_OWNER where the pod's manifest sets it (from a label), else the part of
    POD_NAME before what the controllers of training jobs append: ``-INDEX-RANDOM`` for an indexed Job,
    ``-master-0``, ``-worker-1`` and the like for operators. Other names say nothing of an owner.
    """
    name, index = env.get("POD_NAME", "").strip(), env.get("JOB_COMPLETION_INDEX", "").strip()
    owner = env.get("POD_OWNER", "").strip()
    if not owner and index.isascii() and index.isdigit():
        found = re.fullmatch(rf"(.+)-{index}-[a-z0-9]{{5}}", name)
        owner = found[1] if found else ""
    if not owner:
        found = _REPLICA.fullmatch(name)
        owner = found[1] if found else ""
    namespace = env.get("POD_NAMESPACE", "").strip()
    return f"{namespace}.{owner}" if owner and namespace else owner


def _digest(text: str) -> str:
    """Return the first eight hexadecimal digits of a text's SHA-256."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:ID_LETTERS]


def _user() -> str:
    """Return the name of this process's user, ``uidN`` without one."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container without an entry for it
        return f"uid{os.getuid()}"
