"""Thresholds for Python's cyclic garbage collector in an engine."""

GC_THRESHOLDS = (200_000, 50, 100)
"""Arguments for ``gc.set_threshold``.

A job of 10,000 hosts creates half a million short-lived rows per slice and keeps a million objects alive, none in
reference cycles. With Python's default of 700 the collector would scan them hundreds of times per slice, which takes a
third of the engine's time.
"""
