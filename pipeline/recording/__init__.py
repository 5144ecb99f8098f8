"""Recordings: one job's telemetry in a folder; read, write, replay and score them."""
