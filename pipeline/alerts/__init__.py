"""Tells people about incidents: routes decide who is told what, adapters deliver it."""
