"""The in-process hook: standard library only, nothing of ours (a contract in pyproject.toml holds that)."""
