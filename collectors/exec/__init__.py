"""``tocsin exec``: runs a program and reports its exit code, signal and last error output."""
