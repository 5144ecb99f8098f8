"""Pure numerics: decoding of telemetry into arrays, detectors' scoring methods, trained models and their training."""
