"""Modules that the forkserver imports once, so that a rank starts in milliseconds.

The forkserver joins the drill's process group here, before anything else, so that every rank is born in the group:
the drill (or its watchdog) ends all ranks with one signal, and no rank can escape it.
"""

from __future__ import annotations

import gc
import os

GROUP_VARIABLE = "TOCSIN_DRILL_PROCESS_GROUP"

if GROUP_VARIABLE in os.environ:
    os.setpgid(0, int(os.environ[GROUP_VARIABLE]))
    # Making a torch optimizer imports this: three seconds of CPU in each rank if not done here.
    import torch._dynamo  # noqa: F401 - imported to be there

    import tocsin.cli.drill.stages
    import tocsin.cli.drill.trainer
    import tocsin.cli.drill.uneven  # noqa: F401 - imported to be there

    gc.freeze()  # a collection in a rank would copy the pages that all ranks share
