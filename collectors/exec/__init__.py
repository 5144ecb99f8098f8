"""``tocsin exec``: a program's exit code, signal and last words."""
