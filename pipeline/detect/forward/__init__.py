"""Forward passes of ranks against those of their peers, below what the step detector calls slow."""
