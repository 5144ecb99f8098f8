"""Numbers in, scores out: array decoding, detectors, baselines, training."""
