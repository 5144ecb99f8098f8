"""Findings become verdicts: their life cycle, flapping, proposed actions."""
