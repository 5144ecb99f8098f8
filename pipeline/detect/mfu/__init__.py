"""Model FLOPs utilization of one job, by windows of steps, and whether it declined against its own past."""
