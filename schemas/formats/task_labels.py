r"""Labels that a launcher writes before each line of a task's output: the task, and with it the rank.

>>> task_of(" 12: "), task_of("[3] "), task_of("[1,7]<stdout>:"), task_of("INFO: ")
('12', '3', '7', '')
"""

from __future__ import annotations

import re
from typing import Final

_FORMS: Final = (
    re.compile(r"\s*(\d{1,7}):\s*"),  # srun -l
    re.compile(r"\[(\d{1,7})\]:?\s*"),  # mpirun of Intel MPI and MPICH, -prepend-rank
    re.compile(r"\[\d+,(\d{1,7})\]<std(?:out|err)>:\s*"),  # mpirun --tag-output of Open MPI
    re.compile(r"\[(?:rank|default)(\d{1,7})\]:\s*"),  # torchrun
)
_DECORATION: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\ufeff")


def task_of(prefix: str) -> str:
    """Return the number of the task that a line's prefix names, "" where the prefix has another form.

    Colours of a terminal and a byte order mark are left out.
    """
    prefix = _DECORATION.sub("", prefix)
    for form in _FORMS:
        if found := form.fullmatch(prefix):
            return str(int(found[1]))
    return ""
