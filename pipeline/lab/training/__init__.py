"""Training of models and thresholds from recordings, with figures about the results. No engine imports this."""
