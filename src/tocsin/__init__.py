"""Tocsin says which rank, GPU or host spoils a training job, why, and what to do about it.

The rooms and the arrows between them:

* ``tocsin.schemas``: what crosses a process boundary; standard library only.
* ``tocsin.collectors``: what runs on a training host.
* ``tocsin.models``: numbers in, scores out.
* ``tocsin.pipeline``: operators, runtimes, stores.
* ``tocsin.cli``: the command line, the only place that sees all rooms.

Importing this package imports none of them: a training script pays for what it uses.
"""

__version__ = "0.1.0"
