"""Trackers of evidence from each source: exits, silence, collectives, dumps, hardware events, lost numbers."""
