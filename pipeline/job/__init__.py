"""Knowledge of one job.

Dependency graph, facts of ranks and hosts, layout, and which host may report which rank.
"""
