"""Comparison of ranks with their peers by step times."""
