"""How often Python looks for cycles in an engine's memory."""

GC_THRESHOLDS = (200_000, 50, 100)
"""For ``gc.set_threshold``. A job of 10,000 hosts brings half a million short-lived rows a slice, and its facts are a
million objects that live on; none of them lie in cycles. Python's own 700 walks through them hundreds of times a
slice: a third of the engine's time."""
