"""Why a job is slow: which cause costs which share of its time, by windows of steps."""
