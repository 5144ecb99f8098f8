"""Data loading: what a batch costs, how unevenly batches are shared out, which source or loader is slow."""
