"""What reads the verdicts: consumers that know messages, and not where they come from (``pipeline/bus`` does)."""
