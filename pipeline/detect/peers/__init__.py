"""Comparison of machines with their peers by metrics."""
