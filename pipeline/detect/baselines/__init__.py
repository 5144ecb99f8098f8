"""Published detectors, implemented as published, as baselines for comparison."""
