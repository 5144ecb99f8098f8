"""Ranks compared with their peers, by the times of their steps."""
