"""What a job is called that nobody gave a name: user, script, eight characters of the run's id.

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


def job_name(env: Mapping[str, str], script: str = "") -> str:
    """Return the job's name, the same for all ranks on all hosts.

    Args:
        env: the environment, with TORCHELASTIC_RUN_ID (not its default "none"), else SLURM_JOB_ID, else
            MASTER_ADDR and MASTER_PORT; "local" where none of them says which run it is.
        script: what runs, "" = this process's script.
    """
    parts = (_user(), script or _own_script(), _run_id(env))
    return "-".join(_ODD.sub("_", part)[:_MAX_LETTERS] for part in parts)


def script_of(command: Sequence[str]) -> str:
    """Return what a command runs: the first script or module in it, else the program.

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
    """A child of multiprocessing has its parent's ``sys.argv``, and a command line of its own."""
    named = getattr(sys, "argv", [""])[:1]
    return script_of(sys.orig_argv if named in ([], [""], ["-c"], ["-m"]) else named)


def _run_id(env: Mapping[str, str]) -> str:
    for name in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"):
        value = env.get(name, "")
        if value and not (name == "TORCHELASTIC_RUN_ID" and value == "none"):
            return value[:ID_LETTERS] if len(value) <= ID_LETTERS or _UUID.fullmatch(value) else _digest(value)
    address, port = env.get("MASTER_ADDR", ""), env.get("MASTER_PORT", "")
    return _digest(f"{address}:{port}") if address and port else _NO_RUN


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:ID_LETTERS]


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container without an entry for it
        return f"uid{os.getuid()}"
