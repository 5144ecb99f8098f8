"""What a new user does first, with real programs: torchrun, ``tocsin serve``, ``tocsin agent``, ``tocsin exec``."""
