"""What a new user does first, played with real programs: torchrun, ``tocsin serve``, ``tocsin agent``, ``tocsin exec``."""
