"""Backtests: detectors run offline over whole recordings, with their accusations scored against the truth."""
