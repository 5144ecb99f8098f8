"""Published detectors as they were published, to compare with."""
