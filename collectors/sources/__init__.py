"""Collectors of host telemetry, one file per source."""
