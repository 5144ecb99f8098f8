"""Simulated recordings with truth: random jobs, random faults, and benign disturbances that must not be accused."""
