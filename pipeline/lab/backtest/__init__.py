"""Detectors over whole recordings, offline: what they would have answered, and when."""
