"""Recordings with truth: drawn jobs, drawn faults, and what must not be accused."""
