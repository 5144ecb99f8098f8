"""Sources of host telemetry, a file each."""
