"""The recording: telemetry of one job in a folder. Read, write, replay, score."""
