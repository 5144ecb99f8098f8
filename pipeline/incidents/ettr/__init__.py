"""The effective training time of each job: the share of its wall time that made progress, and where the rest went."""
