"""Placement of a job in the network: Arnold's spread of communication groups, and other placements (ByteDance)."""
