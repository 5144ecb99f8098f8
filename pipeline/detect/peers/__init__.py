"""Machines compared with their peers, by metrics."""
