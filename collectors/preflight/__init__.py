"""Checks of a host under load: computation, bandwidths, exchanges, clocks, and the vendor's diagnostics.

The load runs in child processes with a deadline. The parent imports neither numpy nor torch.
"""
