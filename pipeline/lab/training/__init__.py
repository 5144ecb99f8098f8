"""Training: recordings in; models, thresholds and the figures about them out. No engine imports this."""
